"""What runs have reached, read from their folders alone."""

import json
import math
import os
import platform
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional

from rich.table import Table

from learners.records import Record, learner_of, lines
from topology.outcome import FORMAT, STATES, born


def runs(folder: Path) -> list[dict[str, Any]]:
    """All runs under `folder`, in the order of their start."""
    return [_listed(path) for path in _folders(folder)]


def _listed(folder: Path) -> dict[str, Any]:
    """One run; a damaged one must not hide the others."""
    try:
        return read(folder)
    except ValueError:
        return {"run": str(folder), "state": "unreadable", "status": None, "learners": {}}


def find(run: Optional[str], folder: Path) -> Path:
    """The folder of a run that is given by path, or by its name under `folder`; of the newest if none is given.

    Raises:
        ValueError: there is none.
    """
    if run is not None:
        return Path(run) if Path(run).exists() or not (folder / run).exists() else folder / run
    found = _folders(folder)
    if not found:
        raise ValueError(f"{folder}: holds no run; give a run folder, or --runs, or start one: machworks run FILE")
    return found[-1]


def _folders(folder: Path) -> list[Path]:
    """Run folders in the order of their start: `chain.yaml` is written then, and never again."""

    def started(run: Path) -> tuple[float, str]:
        first = run / "chain.yaml" if (run / "chain.yaml").exists() else run / "run.json"
        return first.stat().st_mtime, run.name

    return sorted((path.parent for path in folder.glob("*/run.json")), key=started)


def read(folder: Path) -> dict[str, Any]:
    """One run: its state (running, done, failed, stopped, broken off) and the newest figures of each learner."""
    manifest = folder / "run.json"
    if not manifest.is_file():
        raise ValueError(f"{folder}: not a run folder: there is no {manifest}; machworks status --all lists runs")
    try:
        content = json.loads(manifest.read_text())
    except ValueError as error:
        raise ValueError(f"{manifest}: not readable: {error}") from error
    if not isinstance(content, dict) or not content.keys() >= {"state", "host", "process", "born"}:
        raise ValueError(f"{manifest}: not a run's: it lacks state, host, process or born")
    if content.get("format", FORMAT) != FORMAT:
        raise ValueError(f"{manifest}: format {content['format']}, where {FORMAT} is known: another machworks wrote it")
    learners = {learner_of(path.stem): _latest(path) for path in sorted((folder / "records").glob("*.jsonl"))}
    known = [figures["incarnation"] for figures in learners.values() if "incarnation" in figures]
    return {
        "run": str(folder),
        "beside": content.get("beside", "."),
        "process": content["process"],
        "host": content["host"],
        "incarnation": max([content.get("incarnation", 0), *known]),
        "state": _state(content),
        "status": (content.get("outcome") or {}).get("status"),
        "learners": learners,
    }


def stop(folder: Path, patience: timedelta = timedelta(seconds=20)) -> str:
    """Tell the process that supervises a run to end it, and wait until it has; returns the state it is in then.

    Raises:
        ValueError: the run does not go on, or does so on another host.
    """
    before = read(folder)
    if before["state"] != "running":
        raise ValueError(f"{folder}: this run does not go on: it is {before['state']}")
    if before["host"] != platform.node():
        raise ValueError(f"{folder}: this run is supervised on {before['host']}, not here; stop it there")
    os.kill(before["process"], signal.SIGTERM)
    deadline = time.monotonic() + patience.total_seconds()
    while read(folder)["state"] == "running":
        if time.monotonic() > deadline:
            raise ValueError(
                f"{folder}: process {before['process']} has not ended within {patience.total_seconds():g} s"
            )
        time.sleep(0.1)
    return str(read(folder)["state"])


def _state(content: dict[str, Any]) -> str:
    """A run that never wrote its end, and whose process is gone, has been broken off."""
    if content["state"] != "running":
        return STATES.get((content.get("outcome") or {}).get("status", -1), str(content["state"]))
    if content["host"] != platform.node():
        return "running"
    alive = born(content["process"])
    return "running" if alive is not None and alive == content["born"] else "broken off"


def _latest(path: Path, tail: int = 64 * 1024) -> dict[str, Any]:
    """The newest value of every figure in the last 64 kB of a learner's records."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        content = file.read()
    if size > tail:  # our seek has cut the first line
        content = content.partition(b"\n")[2]
    figures: dict[str, Any] = {}
    for _, record in lines(content):
        if isinstance(record, Record):
            step = max(record.step, figures.get("step", 0))  # evaluations come later than their steps
            values = {
                key: value if math.isfinite(value) else None for key, value in record.values.items()
            }  # JSON has no NaN
            figures |= values | {"step": step, "incarnation": record.incarnation}
    return figures


def table(found: Sequence[dict[str, Any]]) -> Table:
    """A line per learner of each run."""
    shown = Table("run", "state", "learner", "step", "accuracy", "synthetic", "fall-backs", box=None, pad_edge=False)
    for one in found:
        for name, figures in one["learners"].items() or [("-", {})]:
            cells = [_percent(figures, "/child", ""), _percent(figures, "/synthetic")]
            fallbacks = f"{figures['exchange/fallbacks']:.0f}" if "exchange/fallbacks" in figures else "-"
            shown.add_row(one["run"], one["state"], name, str(figures.get("step", 0)), *cells, fallbacks)
    return shown


def _percent(figures: dict[str, Any], *ways: str) -> str:
    """On the test set where it is known, else on validation rows."""
    keys = [f"{split}/accuracy{way}" for split in ("test", "validation") for way in ways]
    return next((f"{figures[key]:.2%}" for key in keys if key in figures), "-")
