"""What runs have reached, read from their folders alone."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table


def runs(folder: Path) -> list[dict[str, Any]]:
    """All runs under `folder`, oldest first."""
    return [_listed(path.parent) for path in sorted(folder.glob("*/run.json"), key=lambda path: path.stat().st_mtime)]


def _listed(folder: Path) -> dict[str, Any]:
    """One run; a damaged one must not hide the others."""
    try:
        return read(folder)
    except ValueError:
        return {"run": str(folder), "state": "unreadable", "status": None, "learners": {}}


def newest(folder: Path) -> Path:
    """The run folder that was started last."""
    found = sorted(folder.glob("*/chain.yaml"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(f"{folder}: holds no run; give a run folder, or --runs, or start one: machworks run FILE")
    return found[-1].parent


def read(folder: Path) -> dict[str, Any]:
    """One run: its state (running, ended, broken off) and the newest figures of each learner."""
    manifest = folder / "run.json"
    if not manifest.is_file():
        raise ValueError(f"{folder}: not a run folder: it has no run.json")
    try:
        content = json.loads(manifest.read_text())
    except ValueError as error:
        raise ValueError(f"{manifest}: not readable: {error}") from error
    return {
        "run": str(folder),
        "state": _state(content),
        "status": content.get("outcome", {}).get("status"),
        "learners": {path.stem: _latest(path) for path in sorted((folder / "records").glob("*.jsonl"))},
    }


def _state(content: dict[str, Any]) -> str:
    """A run that never wrote its end, and whose process is gone, has been broken off."""
    if content["state"] != "running" or content["host"] != platform.node():
        return str(content["state"])
    try:
        os.kill(content["process"], 0)
    except ProcessLookupError:
        return "broken off"
    except PermissionError:
        pass
    return "running"


def _latest(path: Path, tail: int = 64 * 1024) -> dict[str, Any]:
    """The newest value of every figure in the last 64 kB of a learner's records."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        lines = file.read().split(b"\n")
    # the first may be cut by our seek, the last by a kill
    whole = lines[1:-1] if size > tail else lines[:-1]
    figures: dict[str, Any] = {}
    for record in map(json.loads, whole):
        figures |= record["values"] | {"step": record["step"]}
    return figures


def table(found: Sequence[dict[str, Any]]) -> Table:
    """A line per learner of each run."""
    shown = Table("run", "state", "learner", "step", "accuracy", "synthetic", "fall-backs", box=None, pad_edge=False)
    for one in found:
        state = one["state"] if one["status"] is None else f"{one['state']}, status {one['status']}"
        for name, figures in one["learners"].items() or [("-", {})]:
            cells = [_percent(figures, f"accuracy/{way}") for way in ("child", "synthetic")]
            fallbacks = f"{figures.get('exchange/fallbacks', 0):.0f}"
            shown.add_row(one["run"], state, name, str(figures.get("step", 0)), *cells, fallbacks)
    return shown


def _percent(figures: dict[str, Any], key: str) -> str:
    """On the test set where it is known, else on validation rows."""
    value = figures.get(f"test/{key}", figures.get(f"validation/{key}"))
    return "-" if value is None else f"{value:.2%}"
