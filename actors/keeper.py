"""The keeper: writes checkpoint sets into the run folder, beside the driver; and how a learner sends it its state.

Consumes: states in pieces, from learners on any host. Produces: complete checkpoint sets.
Waits for: the disk (`Keeper`); an acknowledgement of each piece and the rate limit (`Upload`, in a thread of its own).
Unblocked by: the disk; a time limit. Training does not notice either.
A disk that refuses: the set is given up and the fault told; the sets before it are whole.
Its own death: a new one finds the complete sets; the set that was being written is asked for again, or the next one.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import msgspec
import numpy as np
import ray

from actors import checkpoint

PIECE = 4_000_000
"""Bytes of a piece: every one is a call, and an object in Ray's store."""
Buffer = Union[bytes, np.ndarray]

PIECE_SECONDS = 60.0
"""How long a piece may take; a state that gets stuck is given up, and the next set has another."""


class Kept(msgspec.Struct, frozen=True):
    """What the keeper says of its sets."""

    newest: int  #: number of the newest complete set; -1 before the first
    steps: dict[str, int]  #: of each learner in it
    begun: int  #: highest number of a set that this keeper was asked for; -1 before
    open: tuple[int, ...]  #: sets that still wait for a learner
    fault: str  #: why the last one could not be written; "" if it could


class Keeper:
    """Plain class behind `KeeperActor`.

    Args:
        folder: of the checkpoint sets.
        keep: complete sets that stay.
    """

    def __init__(self, folder: str, keep: int) -> None:
        self._folder, self._keep = Path(folder), keep
        self._newest, _ = checkpoint.newest(self._folder)
        self._begun = -1
        self._awaited: dict[int, set[str]] = {}  # learners of an open set that have not sent all
        self._carried: dict[int, tuple[str, ...]] = {}
        self._steps: dict[int, dict[str, int]] = {}  # of who has
        self._pieces: dict[tuple[int, str], list[Buffer]] = {}
        self._fault = ""

    def begin(self, number: int, learners: tuple[str, ...], carried: tuple[str, ...] = ()) -> None:
        """Set `number` will be complete when these learners have sent their state.

        Those who are carried are in it as they were in the set before: what they would go on from is not lost.
        """
        self._begun = max(self._begun, number)
        self._awaited[number] = set(learners) - self._steps.setdefault(number, {}).keys()
        self._carried[number] = carried
        self._attempt(number, lambda: self._complete(number))

    def piece(self, number: int, learner: str, step: int, index: int, content: Buffer, last: bool) -> None:
        """Take the piece of that index of a learner's file, as of `step`; the file is written with the last one."""
        if number <= self._begun and learner not in self._awaited.get(number, ()):
            return  # given up; a learner may be faster than the supervisor's `begin`
        pieces = self._pieces.setdefault((number, learner), [])
        if index != len(pieces):
            return  # a former keeper has the ones before
        pieces.append(content)
        if last:
            whole = self._pieces.pop((number, learner))
            self._attempt(number, lambda: self._take(number, learner, step, whole))

    def without(self, learner: str) -> None:
        """This learner has died: sets that wait for it can't be completed, and the next will be."""
        for number in [n for n, awaited in self._awaited.items() if learner in awaited]:
            self._give_up(number)

    def look(self) -> Kept:
        """What has been kept so far."""
        newest = self._newest
        number, steps = (-1, {}) if newest is None else (newest.number, dict(newest.steps))
        return Kept(number, steps, self._begun, tuple(self._awaited), self._fault)

    def _attempt(self, number: int, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:  # the sets before it are whole
            self._fault = f"checkpoint set {number}: {type(error).__name__}: {error}"
            self._give_up(number)

    def _take(self, number: int, learner: str, step: int, content: Sequence[Buffer]) -> None:
        checkpoint.write(self._folder, number, learner, *content)
        self._steps.setdefault(number, {})[learner] = step
        self._awaited.get(number, set()).discard(learner)
        self._complete(number)

    def _complete(self, number: int) -> None:
        if self._awaited.get(number, True):
            return
        steps = dict(self._steps[number])
        for learner in self._carried[number]:
            if self._newest is not None and learner in self._newest.steps:
                checkpoint.carry(self._folder, number, self._newest, learner)
                steps[learner] = self._newest.steps[learner]
        made = checkpoint.complete(self._folder, number, steps)
        self._forget(number)
        if self._newest is None or number > self._newest.number:
            self._newest = made
        self._fault = ""
        checkpoint.prune(self._folder, self._keep)

    def _forget(self, number: int) -> None:
        for known in (self._awaited, self._carried, self._steps):
            known.pop(number, None)
        for key in [key for key in self._pieces if key[0] == number]:
            del self._pieces[key]

    def _give_up(self, number: int) -> None:
        self._forget(number)
        checkpoint.discard(self._folder, number)


KeeperActor = ray.remote(num_cpus=0, max_restarts=-1)(Keeper)


class Upload:
    """A learner's way to the keeper: packs and sends states in a thread of its own, one after the other.

    Args:
        rate: bytes per second at most.
        log: a logger.
    """

    def __init__(self, learner: str, keeper: Any, rate: float, log: Any) -> None:
        self._learner, self._keeper, self._rate, self._log = learner, keeper, rate, log
        self._waiting: queue.SimpleQueue[tuple[int, int, Mapping[str, np.ndarray], Mapping[str, Any]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._send_all, name="checkpoint upload", daemon=True).start()

    def put(self, number: int, step: int, state: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Take a state that nobody changes any more; never waits."""
        self._waiting.put((number, step, state, about))

    def _send_all(self) -> None:
        while True:
            number, step, state, about = self._waiting.get()
            if not all(np.isfinite(array).all() for array in state.values()):
                self._log.error("the state at step {} is not finite: checkpoint set {} does not get it", step, number)
                continue  # the set stays open, and the next step ends this incarnation
            try:
                self._send(number, step, checkpoint.pack(state, about))
            except ray.exceptions.RayError as error:
                self._log.warning("the state for checkpoint set {} did not arrive: {}", number, type(error).__name__)

    def _send(self, number: int, step: int, content: bytes) -> None:
        view = np.frombuffer(content, np.uint8)  # Ray copies bytes three times, an array once
        for index, start in enumerate(range(0, len(content), PIECE)):
            began, piece = time.monotonic(), view[start : start + PIECE]
            last = start + PIECE >= len(content)
            sent = self._keeper.piece.remote(number, self._learner, step, index, piece, last)
            ray.get(sent, timeout=PIECE_SECONDS)
            time.sleep(max(0.0, len(piece) / self._rate - (time.monotonic() - began)))
