"""What a run came to, and `run.json`, which says so in its folder."""

import json
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

import msgspec

from learners.options import Topology

FORMAT = 1
"""Of run folders."""
DONE, FAILED, INTERRUPTED = 0, 1, 130
"""Exit statuses of a run."""
STATES = {DONE: "done", FAILED: "failed", INTERRUPTED: "stopped"}
"""What a run that came to such an end is called, as its learners are; before that it is `running`."""


@dataclass(frozen=True)
class Reached:
    """What one learner came to."""

    status: str  #: done | stopped | failed | not started
    steps: int
    seconds: float  #: from its first step to its last
    accuracies: Mapping[str, float]  #: test/accuracy/child, ...; of a worker test/accuracy
    restarts: int
    fallbacks: int
    bytes: Mapping[
        str, int
    ]  #: of arrays: sent inline, sent store, received inline, received store; of a worker's updates
    counts: Mapping[str, int]
    spent: Mapping[str, float] = field(default_factory=dict)  #: seconds of its loop, by what they went into
    processor: Mapping[str, float] = field(default_factory=dict)  #: seconds of a processor, of its other threads too
    error: str = ""
    digest: str = ""  #: of the weights that a group shares
    missing: str = ""  #: which final figures there are none of, and why


@dataclass
class Outcome:
    """What a run came to; `status` is that of the command line."""

    folder: Path
    status: int = DONE  #: 0 done, 1 a learner failed for good or records are missing, 130 interrupted
    learners: dict[str, Reached] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  #: what went wrong, a line each
    events: list[str] = field(default_factory=list)  #: deaths that were made good, a line each
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """In a word; one of STATES."""
        return STATES[self.status]

    def fault(self, problem: str) -> None:
        """Note what went wrong."""
        self.problems.append(problem)
        self.status = self.status or FAILED

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "status": self.status,
            "run": str(self.folder),
            "seconds": self.seconds,
            "problems": self.problems,
            "events": self.events,
            "learners": msgspec.to_builtins(self.learners),
        }


def ended(summary: Any, figures: Mapping[str, float], restarts: int, children: Sequence[str] = ()) -> Reached:
    """What a learner says at its end (a `Summary` of actors/common.py); what was seen of it, if it was stopped."""
    splits = ("validation", "test") if children and not summary.stopped else ()
    missing = [name for split in splits if (name := f"{split}/accuracy/child") not in summary.final]
    return Reached(
        status="stopped" if summary.stopped else "done",
        steps=summary.steps,
        seconds=summary.seconds,
        accuracies=_accuracies(summary.final or figures),
        restarts=restarts,
        fallbacks=summary.counts.get("fallbacks", 0),
        bytes=summary.bytes,
        counts=summary.counts,
        spent=summary.spent,
        processor=summary.processor,
        digest=getattr(summary, "digest", ""),
        missing=f"no {' and no '.join(missing)}: {_UNANSWERED.format(' or '.join(children))}" if missing else "",
    )


_UNANSWERED = "at its end {} was gone, started anew, or left three requests in a row for held-out rows unanswered"


def last_seen(status: str, figures: Mapping[str, float], restarts: int, error: str = "") -> Reached:
    """What is known of a learner that could not say itself what it came to."""
    return Reached(
        status=status,
        steps=int(figures.get("step", 0)),
        seconds=0.0,
        accuracies=_accuracies(figures),
        restarts=restarts,
        fallbacks=int(figures.get("exchange/fallbacks", 0)),
        bytes={_way(key): int(size) for key, size in figures.items() if key.startswith("bytes/")},
        counts={},
        error=error,
    )


def _accuracies(figures: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in figures.items() if key.startswith(("validation/accuracy", "test/accuracy"))}


def _way(key: str) -> str:
    return key.removeprefix("bytes/").replace("_", " ")


def new_folder(runs: Path, topology: Topology, beside: Path = Path()) -> Path:
    """A folder that no other run has, with its `run.json`; OSError if the disk does not take it."""
    folder = runs / f"{topology.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True)
    write_manifest(folder, topology, {"state": "running", "beside": str(beside.resolve())})
    return folder.resolve()


def manifest(folder: Path) -> dict[str, Any]:
    """What `run.json` says; {} where there is none yet."""
    path = folder / "run.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_manifest(folder: Path, topology: Topology, more: Mapping[str, Any]) -> None:
    """Write `run.json`, whole or not at all; what it said before and is not said anew stays."""
    path, before = folder / "run.json", manifest(folder)
    packages = ("machworks", "ray", "tensorflow", "numpy", "tensorboardX")
    content = {
        **before,
        "format": FORMAT,
        "name": topology.name,
        "seed": topology.seed,
        "host": platform.node(),
        "process": os.getpid(),
        "born": born(os.getpid()),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
        "written": time.time(),
        **more,
    }
    partial = folder / "run.partial"
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def born(process: int) -> Optional[int]:
    """When a living process of this host was started, in ticks since the host was; None if there is none.

    Tells a process from a later one of the same number. One that has ended and is not yet collected does not live.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Of the checkout that runs, or nothing."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def words(error: BaseException) -> str:
    """An error in one line. Ray wraps what an actor raised, with its traceback first if that was at its start."""
    if type(error).__name__ in ("ActorDiedError", "ActorUnavailableError") and "creation task" not in str(error):
        return "its process has died"
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip() if "creation task" in lines[0] else f"{type(error).__name__}: {lines[0]}"
