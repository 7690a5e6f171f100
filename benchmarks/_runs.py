"""Runs of the command line, and of baselines, in processes of their own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learners.records import learner_of


@dataclass(frozen=True)
class Run:
    """What a run came to."""

    learners: Mapping[str, Any]  #: what each has reached, as `machworks run --json` says it
    records: Mapping[str, list[dict]]  #: of each learner
    log: str  #: logs/driver.log


def run(chain: Path, settings: Mapping[str, object]) -> Run:
    """`machworks run` with these values set, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--set={key}={value}" for key, value in settings.items()]
        outcome = said("topology.cli", "run", chain, "--json", f"--runs={folder}", *options)
        place = Path(outcome["run"])
        records = {learner_of(path.stem): read(path) for path in sorted((place / "records").glob("*.jsonl"))}
        return Run(outcome["learners"], records, (place / "logs" / "driver.log").read_text())


def said(module: str, *arguments: object) -> Any:
    """The JSON that `python -m module arguments` prints last; ends everything if it fails."""
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(map(str, arguments))} has failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def read(path: Path) -> list[dict]:
    """Records in the order in which they were written, without the seals."""
    return [record for record in map(json.loads, path.read_text().splitlines()) if "seal" not in record]
