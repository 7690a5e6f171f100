"""More or fewer workers of a live run: a wish is a file in the run folder, which the supervisor looks for and answers.

    scale.json    what is wished, written by `machworks scale`; with a number of its own
    scaled.json   the supervisor's answer to that number
So it needs no port and no connection to the cluster, only the run folder.
"""

import json
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional

import msgspec
from msgspec.structs import replace

from learners.options import Topology
from learners.rbd.options import AnyLearner, Local, Nes, Rbd, Sgd
from topology.placement import Host, missing

WISH, ANSWER = "scale.json", "scaled.json"


class Wish(msgspec.Struct, frozen=True):
    """So many workers of a group."""

    number: str  #: of the wish; no other has it
    group: str
    replicas: int


def refusal(topology: Topology, group: str, replicas: int) -> str:
    """Why this group can't have so many workers; "" if it can."""
    learner = topology.workers.get(group)
    if group not in topology.groups or learner is None:
        known = f"; known are {', '.join(topology.groups)}" if topology.groups else ""
        return f"{group}: not a group of workers of this run{known}"
    if replicas < 2:
        return f"{group}: {replicas} was given; a group has 2 workers or more (machworks stop ends a run)"
    if topology.data.shard == "by_learner":
        return f"{group}: each worker has its own part of the rows, and there is none for another"
    if counts(learner):
        return f"{group}: {counts(learner)} depends on the number of workers: begin a new run"
    return ""


def counts(learner: AnyLearner) -> str:
    """What is made for a certain number of workers; "" if nothing is."""
    if learner.exchange.mode == "sync":
        return "a round that waits for all"
    if isinstance(learner, (Local, Sgd)):
        return "an average"
    if isinstance(learner, (Rbd, Nes)) and learner.exchange.combine == "mean":
        return "exchange.combine: mean"
    return "basis.split" if learner.basis.split else ""


def lacking(topology: Topology, group: str, more: int, hosts: list[Host]) -> str:
    """Which resources are not free for so many more workers; "" if all are."""
    learner = topology.workers[group]
    lacks = missing(replace(topology, learners={group: replace(learner, replicas=more)}), hosts)
    return "; ".join(str(lack) for lack in lacks)


# ---------------------------------------------------------------- asking


def ask(folder: Path, group: str, replicas: int, patience: timedelta, alive: Callable[[], bool]) -> dict[str, Any]:
    """Tell the supervisor of a run, and wait for its answer.

    Raises:
        ValueError: it refuses, does not answer in time, or has ended.
    """
    wish = Wish(secrets.token_hex(8), group, replicas)
    _write(folder / WISH, msgspec.json.encode(wish))
    deadline = time.monotonic() + patience.total_seconds()
    while (answer := _read(folder / ANSWER)).get("number") != wish.number:
        if not alive() or time.monotonic() > deadline:
            raise ValueError(f"{folder}: the run has not answered within {patience.total_seconds():g} s, or has ended")
        time.sleep(0.1)
    if answer["refused"]:
        raise ValueError(f"{folder}: {answer['refused']}")
    return answer


class Wishes:
    """What is asked of a run, as its supervisor sees it. What was asked before it began counts no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = _read(folder / WISH).get("number")

    def next(self) -> Optional[Wish]:
        """A wish that has not been seen yet."""
        found = _read(self._folder / WISH)
        if not found or found.get("number") == self._seen:
            return None
        self._seen = found.get("number")
        return msgspec.convert(found, Wish)

    def answer(self, wish: Wish, refused: str) -> None:
        """What came of it."""
        _write(self._folder / ANSWER, json.dumps({**msgspec.to_builtins(wish), "refused": refused}).encode())


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}
