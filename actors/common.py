"""What the actors of all kinds of learners have in common: what they are made from, what they say, how they save.

Ray runs an actor's `run` in one thread, which owns the weights, and everything else in another.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Optional

import ray

from actors import checkpoint, compiled, device
from actors.keeper import Upload
from actors.outgoing import Outgoing
from learners.batches import Split
from learners.options import Learner, Mechanics
from learners.options import Record as Recording
from learners.rbd.clocks import Clock, Taken

CURVE_POINTS = 10
"""Training points that TensorBoard gets between two evaluations; the records have them all."""
SPEED_SECONDS = 0.5
"""Over how long steps per second are counted."""
FINISH_SECONDS = 10.0
"""How long a learner that has ended waits for its records to be written."""
STOPPED_SECONDS = 3.0
"""The same for one that was told to stop."""


class Diverged(ArithmeticError):
    """A learner's own loss is no longer finite."""


@dataclass(frozen=True)
class Data:
    """The data as an actor gets it: splits by reference, one copy per host in Ray's object store."""

    train: tuple[ray.ObjectRef, ...]  #: one Split; in a tuple, so that Ray hands over the reference
    validation: tuple[ray.ObjectRef, ...]
    test: tuple[ray.ObjectRef, ...]
    private: bool  #: children do not hold the training rows: features travel
    width: int
    classes: int
    dtype: str
    example: tuple[int, ...]  #: shape of one example before it was laid flat
    scale: float
    offset: float


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that any learner is made from."""

    name: str
    incarnation: int
    seed: int  #: of the run
    options: Learner
    data: Data
    record: Recording
    recorder: Any  #: its handle
    keeper: Any  #: its handle
    upload: float  #: bytes per second at most, of states to the keeper
    mechanics: Mechanics = field(default_factory=Mechanics)
    state: tuple[ray.ObjectRef, ...] = ()  #: the checkpoint file to go on from, if there is one


@dataclass(frozen=True)
class Standing:
    """What the supervisor wants to know of a member, with every sign of life."""

    clock: Clock = field(default_factory=Clock)  #: what it has, applied or not
    holding: Mapping[tuple[int, int], Taken] = field(default_factory=dict)  #: of incarnations that end
    accused: tuple[tuple[tuple[int, int], str], ...] = ()  #: incarnations that sent what no member sends, and why
    done: bool = False  #: a worker makes no more, and the log has all that it made
    fault: str = ""  #: why a relay can't write its log


@dataclass(frozen=True)
class Beat:
    """A sign of life."""

    step: int
    idle: float  #: seconds since the training thread last looked at its inbox; 0 before it begins and once it ends
    accused: tuple[tuple[str, int, str], ...] = ()  #: neighbours (incarnation, why) refused three times in a row
    bytes: Mapping[str, int] = field(default_factory=dict)  #: so far, by way; they grow after the last step too
    standing: Optional[Standing] = None  #: in its group


@dataclass(frozen=True)
class Summary:
    """What a learner has reached."""

    learner: str
    incarnation: int
    steps: int
    seconds: float  #: from the first step to the last
    final: Mapping[str, float]  #: test/..., validation/... over the whole sets; empty if it was stopped
    counts: Mapping[str, int]  #: of the exchange, of messages whose arrays could not be had, of records dropped
    unwritten: int  #: records that the recorder has not taken
    bytes: Mapping[str, int]
    spent: Mapping[str, float]  #: seconds of its loop, by what they went into (actors/account.py)
    processor: Mapping[str, float]  #: the same of a processor, and of its other threads
    stopped: bool
    digest: str = ""  #: of the weights that a group shares, in hexadecimal
    clock: Optional[Clock] = None  #: of the updates in them


def here() -> str:
    """Where a learner is, as the run is told."""
    return f"process {os.getpid()} on {platform.node()}"


def splits(setup: Setup, outgoing: Outgoing) -> tuple[Split, Split, Split]:
    """Load TensorFlow for what the learner may use of its host; training, validation and test rows."""
    outgoing.log.info("the process has begun")
    if not setup.options.resources.get("gpus"):
        compiled.keep()
    device.configure(setup.options.cpus)
    outgoing.log.info("TensorFlow is loaded")
    train, validation, test = ray.get([*setup.data.train, *setup.data.validation, *setup.data.test])
    outgoing.log.info("data is here")
    return train, validation, test


def restored(setup: Setup) -> Optional[tuple[checkpoint.State, dict[str, Any]]]:
    """The state that this incarnation goes on from, and what was noted beside it."""
    if not setup.state:
        return None
    (content,) = ray.get(list(setup.state))
    return checkpoint.unpack(content)


class Saving:
    """States on their way to the keeper: each is taken when a set wants one, and sent when its records are written.

    Who goes on from a state finds every step before it in the records.

    Args:
        state: step, arrays that nobody changes any more, and what is noted beside them.
    """

    def __init__(
        self, setup: Setup, outgoing: Outgoing, state: Callable[[], tuple[int, checkpoint.State, dict[str, Any]]]
    ) -> None:
        self._setup, self._outgoing, self._state = setup, outgoing, state
        self._upload = Upload(setup.name, setup.keeper, setup.upload, outgoing.log)
        self._wanted: SimpleQueue[int] = SimpleQueue()
        self._taken: list[tuple[int, tuple[Any, ...]]] = []  # each with how many records lie before it
        self.left = False  # nothing changes any more, and either thread may save
        self._leaving = threading.Lock()

    def want(self, number: int) -> None:
        """Checkpoint set `number` wants the state, as it is after the current step."""
        self._wanted.put(number)
        if self.left:
            with self._leaving:
                self.take()

    def take(self) -> None:
        """Between two steps: take the state for every set that wants it."""
        while not self._wanted.empty():
            number = self._wanted.get()
            step, state, more = self._state()
            data = self._setup.data
            about = {
                "learner": self._setup.name,
                "incarnation": self._setup.incarnation,
                "example": data.example,
                "classes": data.classes,
                "scale": data.scale,
                "offset": data.offset,
                **more,
            }
            self._taken.append((self._outgoing.taken, (number, step, state, about)))
        self.send()

    def send(self) -> None:
        """Send those whose records are written."""
        while self._taken and (self.left or self._taken[0][0] <= self._outgoing.settled):
            self._upload.put(*self._taken.pop(0)[1])

    def leave(self) -> None:
        """The learner has ended: what is wanted now or later is had at once."""
        with self._leaving:
            self.left = True
            self.take()


class Speed:
    """Steps per second over the last half second or more."""

    def __init__(self, step: int) -> None:
        self._since, self._step, self._speed = time.monotonic(), step, 0.0

    def at(self, step: int) -> float:
        """After so many steps."""
        seconds = time.monotonic() - self._since
        speed = (step - self._step) / max(seconds, 1e-6)
        if seconds >= SPEED_SECONDS:
            self._since, self._step, self._speed = time.monotonic(), step, speed
        return self._speed or speed
