"""From the command to the first training step of the digits chain, and where the time goes.

Seconds since the command was given, medians of `--repeats` runs; `cold_` are those of runs that find nothing compiled
(the first on a host). Of what learners do, the last learner counts:
    data          imports of the driver, file read, data loaded
    ray           a fresh Ray is up
    starting      hosts surveyed, run folder made, recorder, keeper and learners asked for
    process       the learner's process runs our code
    tensorflow    TensorFlow is imported there
    compiled      the network is built, its functions are traced and compiled
    training      all learners know their neighbours and are told to go
    first_step    the first learner has done a step
    all_stepped   every learner has
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks import _report, _runs

CHAIN = Path("topology/chains/digits.yaml")
STEPS = 5
TOLD = {"rows;": "data", "Ray is up": "ray", "starting bottom": "starting", "training bottom": "training"}
LOGGED = {"process has begun": "process", "TensorFlow is loaded": "tensorflow", "network is compiled": "compiled"}
ORDER = ("data", "ray", "starting", "process", "tensorflow", "compiled", "training", "first_step", "all_stepped")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures above."""
    cold, warm = [], []
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(_start(cache))
            warm.append(_start(cache))
        _report.say(f"first step after {cold[-1]['first_step']:.2f} s, again {warm[-1]['first_step']:.2f} s")
    figures = {name: median(run[name] for run in warm) for name in ORDER}
    return figures | {f"cold_{name}": median(run[name] for run in cold) for name in ORDER}


def _start(cache: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as runs:
        options = (str(CHAIN), "--json", f"--runs={runs}", f"--set=defaults.steps={STEPS}")
        began = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "topology.cli", "run", *options],
            env={**os.environ, "XDG_CACHE_HOME": cache, "COLUMNS": "1000"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None and process.stdout is not None
        found: dict[str, float] = {}
        told = []
        for line in process.stderr:
            told.append(line)
            found |= {name: time.time() - began for words, name in TOLD.items() if words in line}
        said = process.stdout.read()
        if process.wait():
            raise SystemExit("".join(told) + said)
        folder = Path(json.loads(said.splitlines()[-1])["run"])
        return {**found, **_logged(folder, began), **_stepped(folder, began)}


def _logged(folder: Path, began: float) -> dict[str, float]:
    """When the last learner logged what."""
    lines = [line for path in (folder / "logs").glob("*.log") for line in path.read_text().splitlines()]
    return {
        name: max(_moment(line) for line in lines if words in line) - began for words, name in LOGGED.items()
    }  # fmt: skip


def _moment(line: str) -> float:
    return datetime.strptime(line.split(" | ")[0], "%Y-%m-%d %H:%M:%S.%f").timestamp()


def _stepped(folder: Path, began: float) -> Mapping[str, float]:
    firsts = [_runs.read(path)[0]["time"] for path in (folder / "records").glob("*.jsonl")]
    return {"first_step": min(firsts) - began, "all_stepped": max(firsts) - began}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench startup", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--repeats", type=int, default=3)
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
