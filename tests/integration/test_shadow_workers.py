"""A real Ray worker, in a directory with a foreign `learners.py`, says so itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]

DRIVER = """
import json, os, sys
from datetime import timedelta
import ray
from topology import shadow
os.chdir(sys.argv[1])
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print(json.dumps(shadow.on_hosts(timedelta(seconds=60))))
"""


def complaints_of_a_run_in(directory, tmp_path):
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    # The driver's path holds the rooms as an installed console script's would: by PYTHONPATH, behind the directory.
    done = subprocess.run(
        [sys.executable, str(driver), str(directory)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_worker_finds_the_foreign_room_and_none_elsewhere(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "learners.py").touch()
    (complaint,) = complaints_of_a_run_in(foreign, tmp_path)
    assert complaint.startswith("host ")
    assert f"{foreign / 'learners.py'} shadows machworks' own package 'learners'" in complaint

    empty = tmp_path / "empty"
    empty.mkdir()
    assert complaints_of_a_run_in(empty, tmp_path) == []
