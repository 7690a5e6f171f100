"""The relay of a group: passes updates on between its workers and keeps the log, beside the driver.

Consumes: parcels of workers. Produces: parcels to workers, the log, snapshots; what a joining worker begins with.
Waits for: a parcel, or the moment when one is due; the disk. Unblocked by: these, `stop`.
A disk that refuses: nothing leaves that the log has not got, so workers train on and hear nothing; `beat` says why.
Its own death: the supervisor starts another one, which finds in the log what counts.

Ray runs `run` in one thread, which owns rules and log, and everything else in another.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Optional

import numpy as np
import ray

from actors import log, snapshots
from actors.common import Standing, here
from actors.log import Log
from actors.member import RELAY, Member, Neighbours
from actors.transport import Ways
from learners.group import parcels
from learners.group.alike import group_digest, unlike
from learners.group.events import Close, Ending, Event, Found, Instruction, Joined, Keep, KeepClosed, Logged, Look
from learners.group.parcels import Sent, Whose
from learners.group.replay import Ended, Entry, Mark
from learners.group.rules import Group, Limits
from learners.layout import Tensor
from learners.rbd.clocks import Clock
from learners.rbd.options import AnyLearner
from learners.rbd.replica import Update

IDLE_SECONDS = 0.1
"""Longest wait for a parcel when none is due."""
AGAIN_SECONDS = 0.5
"""Until a disk that has refused is tried again."""
SNAPSHOT_UPDATES = 2_000
"""Updates that a joining worker must expand at most: one or two seconds of its time."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that it is made from."""

    incarnation: int
    folder: Path  #: of the log
    options: AnyLearner  #: of the group's workers, filled
    tensors: tuple[Tensor, ...]
    seed: int  #: of the group's directions
    limits: Limits


@dataclass(frozen=True)
class History:
    """What a joining worker begins with."""

    snapshot: bytes  #: the newest one as a file; b"": there is none
    start: int  #: where in the log the rest begins
    log: bytes  #: the log from there on


class Relay:
    """Plain class behind `RelayActor`; tests construct it as it is."""

    def __init__(
        self, setup: Setup, ways: Optional[Neighbours] = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._setup, self._clock = setup, clock
        self._read = reader(setup.options, setup.tensors, setup.seed)
        self._member = Member(ways or Ways(), self._perform, clock)
        self._log: Optional[Log] = None
        self._traits: dict[str, str] = {}
        self._begun, self._stopped, self._fault = threading.Event(), False, ""
        self._turn: Optional[float] = None
        self._handles: dict[int, Any] = {}  # of workers that can be asked for a snapshot
        self._since = 0  # updates of the log since the last snapshot was asked for
        self._marks: list[Mark] = []
        self._taken: list[tuple[int, Clock, bytes]] = []  # snapshots whose updates the log has not all
        if (setup.folder / log.NAME).exists():
            former = self._header()
            if former is not None:
                self._begin(former)

    # -- called by others, in the second thread

    def ready(self) -> str:
        """Answers once it is built: where it is."""
        return here()

    def join(self, traits: Mapping[str, str]) -> None:
        """A worker has come, in the first place or again.

        Raises:
            ValueError: it is not of this group; says what differs.
        """
        if not self._begun.is_set():
            self._begin(dict(traits))
        if differ := unlike(self._traits, traits):
            raise ValueError(f"this worker is not like the others of its group: {'; '.join(differ)}")

    def history(self, before: Optional[int] = None) -> History:
        """What a worker begins with; `before`: with a snapshot of less of the log, since a later one can't be read."""
        assert self._log is not None, "it has joined"
        names = sorted(self._setup.folder.glob(snapshots.SNAPSHOTS), reverse=True)
        content, start = b"", 0
        for path in names:
            end = int(path.stem.split("-")[1])
            if before is None or end < before:
                content, start = path.read_bytes(), end
                break
        with (self._setup.folder / log.NAME).open("rb") as file:
            file.seek(start)
            return History(content, start, file.read(self._log.end - start))

    def receive(self, content: bytes) -> None:
        """A worker's parcel."""
        self._member.receive(content)

    def open(self, node: int, incarnation: int, handle: Any) -> None:
        """The supervisor says where a worker is, and as which incarnation."""
        self._handles[node] = handle
        self._member.open(node, incarnation, handle)

    def gone(self, node: int) -> None:
        """The supervisor says that a worker is not there."""
        self._handles.pop(node, None)
        self._member.gone(node)

    def ending(self, whose: Whose) -> None:
        """The supervisor asks what there is of an incarnation that is over."""
        self._member.note(Ending(whose, self._clock()))

    def close(self, whose: Whose) -> None:
        """The supervisor says that what there is of it is all."""
        self._member.note(Close(whose, self._clock()))

    def joined(self, sender: int, incarnation: int, first: int) -> None:
        """The supervisor says for whom all wait; of a synchronous group."""
        self._member.note(Joined(sender, incarnation, first, self._clock()))

    def mark(self, node: int, clock: Clock, digest: int) -> None:
        """What a worker's replica is at a clock: replays compare it."""
        self._marks.append(Mark(node, clock, digest))

    def keep(self, end: int, clock: Clock, content: bytes) -> None:
        """A worker's snapshot of this clock, which has all of the first `end` bytes of the log."""
        self._taken.append((end, clock, content))

    def beat(self) -> tuple[float, Standing]:
        """A sign of life: seconds since the loop last looked, and how the relay stands."""
        turn = self._turn
        idle = 0.0 if turn is None or self._fault else time.monotonic() - turn
        return idle, self._member.standing(fault=self._fault)

    def open_ends(self) -> tuple[Whose, ...]:
        """Incarnations in the log that nobody has closed."""
        assert self._log is not None, "it has begun"
        return tuple(whose for whose in self._log.holds.clock.taken if whose not in self._log.holds.closed)

    def stop(self) -> None:
        """End soon; `run` returns when the log is on the disk."""
        self._stopped = True

    # -- the loop, in the first thread

    def run(self) -> float:
        """Pass on and write down, until it is stopped; seconds of a processor that this took."""
        began = time.process_time()
        while not self._begun.wait(IDLE_SECONDS):
            if self._stopped:
                return 0.0
        assert self._log is not None
        while not self._stopped:
            self._turn = time.monotonic()
            self.turn(min(self._member.until, self._clock() + IDLE_SECONDS))
        self.turn()
        self._turn = None
        self._log.close()
        return time.process_time() - began

    def turn(self, until: float = 0.0) -> None:
        """Once round: what has come, what is due."""
        assert self._log is not None
        self._member.handle(*(self._member.came(until) or [self._member.tick()]))
        while self._marks:
            self._append(self._marks.pop(0))
        self._keep_snapshots()
        self._written(self._log.sync_if_due)

    # -- what it does

    def _perform(self, said: Instruction) -> Iterable[Event]:
        assert self._log is not None
        if isinstance(said, Keep):
            self._append(said.updates)
            self._since += len(said.updates)
            return [Logged(self._log.holds.clock, self._clock())]
        if isinstance(said, KeepClosed):
            self._append(Ended(said.whose, said.taken))
        elif isinstance(said, Look):
            return [Found(said.to, tuple(islice(self._lacked(said.has), self._setup.limits.window)), self._clock())]
        return []

    def _lacked(self, has: Clock) -> Iterable[Sent]:
        path = self._setup.folder / log.NAME
        return (
            sent for entry in log.entries(path) if isinstance(entry, tuple) for sent in entry if sent.name not in has
        )

    def _append(self, entry: Entry) -> None:
        """Returns when it is written: nothing may leave before."""
        assert self._log is not None
        self._written(lambda: self._log.append(entry))  # type: ignore[union-attr]

    def _written(self, write: Callable[[], None]) -> None:
        """Tries until the disk takes it."""
        while True:
            try:
                write()
            except OSError as error:
                self._fault = f"{type(error).__name__}: {error}"
                if self._stopped:
                    return
                time.sleep(AGAIN_SECONDS)
            else:
                self._fault = ""
                return

    # -- snapshots: workers have the weights, so one of them is asked now and then

    def _keep_snapshots(self) -> None:
        assert self._log is not None
        have = self._log.holds.clock
        complete = [one for one in self._taken if next(one[1].beyond(have), None) is None]
        for one in complete:
            self._taken.remove(one)
            self._written(partial(_put, self._setup.folder, one[0], one[2]))
        if self._since >= SNAPSHOT_UPDATES and self._handles:
            self._since, end = 0, self._log.end
            node = sorted(self._handles)[end % len(self._handles)]  # now this one, now that one
            self._handles[node].snapshot.remote(end, have)

    # -- its beginning

    def _header(self) -> Optional[dict[str, str]]:
        try:
            return dict(log.header(self._setup.folder / log.NAME).traits)
        except log.Damaged:
            return None  # the first worker to join says what they are

    def _begin(self, traits: dict[str, str]) -> None:
        self._traits, self._log = traits, Log(self._setup.folder, traits)
        holds = self._log.holds
        group = Group(
            RELAY,
            self._setup.incarnation,
            self._read,
            self._setup.limits,
            holds=parcels.Holds(holds.clock, holds.closed, holds.clock),
            sums=self._log.sums,
            logs=True,
        )
        self._member.begin(group, group_digest(traits))
        self._begun.set()


def _put(folder: Path, end: int, content: bytes) -> None:
    snapshots.put(folder, end, content)


def reader(options: AnyLearner, tensors: tuple[Tensor, ...], seed: int) -> Callable[[Sent], Update]:
    """Makes an update of what was sent, or raises ValueError where no worker of this group sends such."""
    from learners.rbd.directions import dimensions
    from learners.rbd.replica import Replica
    from learners.rbd.workers import Method, start

    method = Method(options, tensors)
    shared = start(method, np.zeros(method.size, np.float32), seed).shared
    wanted, check = dimensions(shared.directions), shared.check if isinstance(shared, Replica) else None

    def read(sent: Sent) -> Update:
        update = parcels.unpacked(sent, wanted, method.precision, method.size)
        if check is not None:
            check(update)
        return update

    return read


# a parcel is a call, and Ray's notes of every call cost a fifth of it
RelayActor = ray.remote(num_cpus=0, max_concurrency=2, max_restarts=0, enable_task_events=False)(Relay)
