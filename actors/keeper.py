"""The keeper: writes checkpoint sets into the run folder, beside the driver; and how a learner sends it its state.

Consumes: states in pieces, from learners on any host. Produces: complete checkpoint sets.
Waits for: the disk (`Keeper`); an acknowledgement of each piece and the rate limit (`Upload`, in a thread of its own).
Unblocked by: the disk; a time limit. Training does not notice either.
"""

import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
from loguru import logger

from actors import checkpoint

PIECE = 1_000_000
"""Bytes of a piece."""
PIECE_SECONDS = 60.0
"""How long a piece may take; a state that gets stuck is given up, and the next set has another."""


class Kept(msgspec.Struct, frozen=True):
    """What the keeper says of its sets."""

    newest: int  #: number of the newest complete set; -1 before the first
    open: int  #: sets that still wait for a learner
    fault: str  #: why the last one could not be written; "" if it could


class Keeper:
    """Plain class behind `KeeperActor`.

    Args:
        folder: of the checkpoint sets.
        keep: complete sets that stay.
    """

    def __init__(self, folder: str, keep: int) -> None:
        self._folder, self._keep = Path(folder), keep
        found, _ = checkpoint.newest(self._folder)
        self._newest = -1 if found is None else found.number
        self._awaited: dict[int, set[str]] = {}
        self._steps: dict[int, dict[str, int]] = {}
        self._pieces: dict[tuple[int, str], list[bytes]] = {}
        self._fault = ""

    def begin(self, number: int, learners: tuple[str, ...]) -> None:
        """Set `number` will be complete when these learners have sent their state."""
        self._awaited[number], self._steps[number] = set(learners), {}

    def piece(self, number: int, learner: str, step: int, content: bytes, last: bool) -> None:
        """Take the next piece of a learner's file, as of `step`; it is written with the last one."""
        if learner not in self._awaited.get(number, ()):
            return
        pieces = self._pieces.setdefault((number, learner), [])
        pieces.append(content)
        if not last:
            return
        whole = b"".join(self._pieces.pop((number, learner)))
        try:
            checkpoint.write(self._folder, number, learner, whole)
            self._steps[number][learner] = step
            self._drop(number, learner)
        except OSError as error:  # the set stays partial; the ones before it are whole
            self._fault = f"checkpoint set {number}: {type(error).__name__}: {error}"
            self._give_up(number)

    def without(self, learner: str) -> None:
        """This learner has died: sets that wait for it can't be completed, and the next will be."""
        for number in [n for n, awaited in self._awaited.items() if learner in awaited]:
            self._give_up(number)

    def look(self) -> Kept:
        """What has been kept so far."""
        return Kept(self._newest, len(self._awaited), self._fault)

    def _drop(self, number: int, learner: str) -> None:
        self._awaited[number].discard(learner)
        if self._awaited[number]:
            return
        del self._awaited[number]
        checkpoint.complete(self._folder, number, self._steps.pop(number))
        self._newest, self._fault = max(self._newest, number), ""
        checkpoint.prune(self._folder, self._keep)

    def _give_up(self, number: int) -> None:
        self._awaited.pop(number, None)
        self._steps.pop(number, None)
        for key in [key for key in self._pieces if key[0] == number]:
            del self._pieces[key]


KeeperActor = ray.remote(num_cpus=0, max_restarts=0)(Keeper)


class Upload:
    """A learner's way to the keeper: packs and sends states in a thread of its own, one after the other.

    Args:
        rate: bytes per second at most.
    """

    def __init__(self, learner: str, keeper: Any, rate: float) -> None:
        self._learner, self._keeper, self._rate = learner, keeper, rate
        self._waiting: queue.SimpleQueue[tuple[int, int, Mapping[str, np.ndarray], Mapping[str, Any]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def put(self, number: int, step: int, state: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Take a state that nobody changes any more; never waits."""
        self._waiting.put((number, step, state, about))
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="checkpoint upload", daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        while True:
            number, step, state, about = self._waiting.get()
            try:
                self._send(number, step, checkpoint.pack(state, about))
            except ray.exceptions.RayError as error:
                logger.warning("{}: state for checkpoint set {}: {}", self._learner, number, type(error).__name__)

    def _send(self, number: int, step: int, content: bytes) -> None:
        for start in range(0, len(content), PIECE):
            began, piece = time.monotonic(), content[start : start + PIECE]
            last = start + PIECE >= len(content)
            ray.get(self._keeper.piece.remote(number, self._learner, step, piece, last), timeout=PIECE_SECONDS)
            time.sleep(max(0.0, len(piece) / self._rate - (time.monotonic() - began)))
