"""What is started apart ends with whoever started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DRIVER = """
import os, subprocess, sys, time
from topology import guard

started = "import subprocess, time; print(subprocess.Popen(['sleep', '600'], env={}).pid, flush=True); time.sleep(600)"
with guard.watching() as pipe:
    apart = guard.apart(subprocess.Popen, pipe)
    ours = apart([sys.executable, "-c", started], stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(1))
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(ours.pid, int(ours.stdout.readline()), other.pid, flush=True)
    if sys.argv[1] == "killed":
        time.sleep(600)
"""


def lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_what_is_started_apart_ends_with_the_driver_and_so_does_what_it_started(how):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, how], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    leader, ours, other = map(int, driver.stdout.readline().split())
    try:
        assert os.getsid(leader) == os.getsid(ours) == leader
        assert os.getpriority(os.PRIO_PROCESS, leader) == 1 + os.getpriority(os.PRIO_PROCESS, driver.pid)
        if how == "killed":
            assert lives(leader) and lives(ours)
            driver.kill()
        driver.wait(20)
        deadline = time.monotonic() + 20
        while lives(leader) or lives(ours):
            assert time.monotonic() < deadline
        assert lives(other)
    finally:
        for process in (leader, ours, other):
            if lives(process):
                os.kill(process, signal.SIGKILL)
        driver.stdout.close()
