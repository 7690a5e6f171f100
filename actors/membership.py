"""A worker's membership in its group: between two rounds it gives away what it has made and applies what has come.

Consumes: parcels of the relay, what the supervisor says. Produces: parcels to the relay, marks and snapshots for it.
Waits for: what it begins with (`begin`); in a synchronous group the others' updates of a round; at the end the relay,
until the log has all, and the supervisor, until all have (`end`). Unblocked by: these, `stop`.
Greatest staleness: what has come is applied before the next round, or `held_back` rounds later.

Plain values and calls, so that tests drive it without Ray. What is local to a worker is not in the log: who comes back
begins with no residual, at the step that its updates in the log come to.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Optional, Union

from actors import log, snapshots
from actors.common import Standing
from actors.member import RELAY, Discarded, Member, Neighbours
from actors.pace import budget_of
from learners.group import parcels
from learners.group.alike import group_digest
from learners.group.events import Apply, Done, Event, Instruction, Joined, Leave, Made, Ready
from learners.group.parcels import Holds, Sent
from learners.group.replay import Entry, Replay
from learners.group.rules import Group, Limits
from learners.group.sums import Sums
from learners.rbd.budget import chosen
from learners.rbd.clocks import Clock, Taken
from learners.rbd.floating import Weights
from learners.rbd.options import AnyLearner
from learners.rbd.replica import Replica, Update
from learners.rbd.workers import Method, Worker

IDLE_SECONDS = 0.1
"""Longest wait when nothing is due."""
HOLD_SECONDS = 0.01
"""Least time between two parcels to one neighbour. A worker sends between two rounds only, so rounds that are longer go
out one by one; of shorter ones, which a call's 0.7 ms of two processors would slow down, several go in a parcel."""
BEAT_SECONDS = 0.3
"""Between two clocks: some 100 bytes."""
PATIENCE_SECONDS = 0.5
"""After which what a neighbour lacks is sent again where all wait for it."""
CHECK_ROUNDS = 100
"""Between two looks at the own weights, of 0.2 ms."""
LEAVE_SECONDS = 1.5
"""How long who is stopped waits for the log to have its last updates."""


@dataclass(frozen=True)
class Place:
    """Where a worker begins, as the supervisor knows it."""

    incarnation: int  #: of the relay
    relay: Any  #: its handle
    first: int = 0  #: the round of this worker's first update; of a synchronous group
    joined: tuple[tuple[int, int, int], ...] = ()  #: sender, incarnation, first of all for whom all wait
    step: Optional[int] = None  #: of the worker, where rounds are of any length and the log does not say it
    offset: int = 0  #: steps of others that a worker which came later need not do


def limits_of(options: AnyLearner) -> Limits:
    """What bounds a group's traffic, memory and staleness."""
    exchange = options.exchange
    if exchange.mode == "sync":
        return Limits(hold=0.0, beat=BEAT_SECONDS, patience=PATIENCE_SECONDS, sync=True)
    bytes_ = budget_of(options)
    beat = chosen(bytes_, 1).beat if bytes_ else BEAT_SECONDS
    return Limits(
        hold=HOLD_SECONDS,
        beat=beat,
        patience=max(2.0, 2 * beat),
        held_back=exchange.held_back,
        max_staleness=exchange.max_staleness,
    )


def digest_of(shared: Union[Replica, Weights]) -> int:
    """What replicas are compared by."""
    if isinstance(shared, Replica):
        return shared.digest
    return int.from_bytes(hashlib.blake2b(shared.theta.tobytes(), digest_size=8).digest(), "little")


def _of_former_rounds(entry: Entry, place: Place) -> Entry:
    """Without updates of rounds that a worker of a synchronous group is still to come to: others may be ahead."""
    if not isinstance(entry, tuple) or not place.joined:
        return entry
    firsts = {(sender, incarnation): first for sender, incarnation, first in place.joined}
    return tuple(
        sent
        for sent in entry
        if sent.name[:2] not in firsts or firsts[sent.name[:2]] + sent.name.sequence < place.first
    )


class Membership:
    """One incarnation of one worker in its group.

    Args:
        start: the worker that has done nothing, of this number.
        read: makes an update of what was sent (`actors.relay.reader`).
        traits: of the group (`learners.group.alike`).
        ways: to neighbours.
        only: books what a block takes (`actors.account.Account.only`).
    """

    def __init__(
        self,
        method: Method,
        start: Worker,
        read: Callable[[Sent], Update],
        traits: Mapping[str, str],
        ways: Neighbours,
        only: Callable[[str, str], AbstractContextManager[None]] = lambda heading, before: nullcontext(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._method, self._start, self._read, self._traits, self._clock = method, start, read, traits, clock
        self._only = only
        self.member = Member(ways, self._perform, clock)
        self.relay: Any = None  #: its handle
        self._relay_incarnation = -1
        self._worker = start
        self._running = 0  # what its updates so far add to a digest
        self._held: list[Update] = []  # float: own update, until it is applied with the others'
        self._made: list[Event] = []  # not told yet
        self._applied: Optional[Apply] = None
        self.left = False  #: the log has all that it made
        self._end: Optional[Clock] = None  # with which to end
        self._wanted: list[tuple[int, Clock]] = []  # snapshots
        self._rounds = 0
        self.staleness: tuple[int, ...] = ()  #: of what was applied last
        self.applied = 0  #: others' updates

    # -- in the second thread

    def open(self, incarnation: int, relay: Any) -> None:
        """The supervisor says where the relay is, and as which incarnation."""
        if incarnation >= self._relay_incarnation:  # what a worker begins with may be older than what is said meanwhile
            self._relay_incarnation, self.relay = incarnation, relay
            self.member.open(RELAY, incarnation, relay)

    def finish(self, clock: Clock) -> None:
        """The supervisor says: this is all that will ever be."""
        self._end = clock
        self.member.note(self.member.tick())

    def snapshot(self, end: int, clock: Clock) -> None:
        """The relay wants a snapshot that has all of this clock, that of the first `end` bytes of the log."""
        self._wanted.append((end, clock))

    def standing(self) -> Standing:
        """What is to be said with a sign of life."""
        return self.member.standing(done=self.left)

    # -- in the loop

    def begin(self, place: Place, history: Callable[[Optional[int]], Any]) -> Worker:
        """The worker as it begins: with all that the log has, at the step that its own updates in it come to.

        Args:
            history: what the relay gives to begin with (`actors.relay.History`), with a snapshot of less than so many
                bytes of the log.
        """
        self.open(place.incarnation, place.relay)
        shared, holds, sums = self._joined(place, history)
        own = [taken.below for whose, taken in holds.clock.taken.items() if whose[0] == self._start.number]
        group = Group(
            self._start.number,
            self._start.incarnation,
            self._read,
            limits_of(self._method.learner),
            holds=Holds(holds.clock, holds.closed, holds.clock),
            sums=sums,
            first=place.first,
        )
        self.member.begin(group, group_digest(self._traits))
        for one in place.joined:
            self.joined(*one)
        step = place.offset + sum(own) * self._method.steps() if place.step is None else place.step
        self._worker = replace(self._start, shared=shared, step=step)
        return self._worker

    def joined(self, sender: int, incarnation: int, first: int) -> None:
        """The supervisor says for whom all wait; of a synchronous group."""
        self.member.note(Joined(sender, incarnation, first, self._clock()))

    def before_round(self, worker: Worker, stopped: Callable[[], bool] = lambda: False) -> Worker:
        """Tell what was made, apply what has come; of a synchronous group when all of the last round has come.

        Raises:
            Discarded: this incarnation is over.
        """
        self._worker, self._applied = worker, None
        self._tell(*self.member.came(), Ready(self._clock()))
        while self._applied is None and not stopped():
            self._tell(*(self._wait() or [self.member.tick()]))
        self._give_snapshots()
        self._rounds += 1
        if self._rounds % CHECK_ROUNDS == 0:
            self._check()
        return self._worker

    def made(self, update: Optional[Update], before: Worker, after: Worker) -> Worker:
        """Take a round's update, to be told before the next round; the worker as it goes on.

        Float weights are applied a round at a time, so that all come to the same sum: own updates wait for the others'.
        """
        if update is None:
            return after
        if isinstance(after.shared, Replica):
            assert isinstance(before.shared, Replica)
            self._running += after.shared.digest_since(before.shared)
        else:
            self._held.append(update)
            after = replace(after, shared=replace(before.shared, directions=after.shared.directions))
        seen = self.member.group.seen + 1
        sent = parcels.packed(update, self._method.precision, seen, self._running)
        self._made.append(Made(sent, self._clock()))
        return after

    def end(self, worker: Worker, stopped: Callable[[], bool] = lambda: False) -> Worker:
        """No more is made: until all have everything, or this worker is stopped and the log has what it made."""
        self._worker = worker
        self._tell(Ready(self._clock()), Done(self._clock()))
        deadline = self._clock() + LEAVE_SECONDS if stopped() else None
        while not (self._ended or (deadline is not None and (self.left or self._clock() > deadline))):
            self._tell(*self._wait(), Ready(self._clock()))
            if deadline is None and stopped():
                deadline = self._clock() + LEAVE_SECONDS
        self._check()
        return self._worker

    @property
    def lag(self) -> int:
        """Own updates that the log is not known to have: so far are others behind, at least."""
        whose = (self._start.number, self._start.incarnation)
        own = self.member.group.clock.taken.get(whose, Taken()).below
        return own - self.member.group.holds.logged.taken.get(whose, Taken()).below

    def figures(self) -> dict[str, float]:
        """What is recorded of a round."""
        counts, late = self.member.group.counts, self.staleness
        values = {
            "group/lag": float(self.lag),
            "group/applied": float(self.applied),
            "group/waiting": float(self.member.group.waiting),
            "group/lost": float(counts["resent"] + self.member.undelivered + self.member.unreadable),
            "group/repeated": float(counts["repeated"]),
            "group/refused": float(sum(count for key, count in counts.items() if key.startswith("refused"))),
        }
        return values | ({"staleness/updates": sum(late) / len(late)} if late else {})

    def summary(self) -> tuple[dict[str, int], dict[str, Any]]:
        """Counts, and what replicas are compared by: as fields of a `Summary`."""
        shared = self._worker.shared
        counts = {**self.member.group.counts, "applied": self.applied, "undelivered": self.member.undelivered}
        counts["in clock"] = shared.clock.count
        return counts, {"digest": f"{digest_of(shared):016x}", "clock": shared.clock}

    # -- what it does

    @property
    def _ended(self) -> bool:
        return self._end is not None and self._worker.shared.clock == self._end and not self._held

    def _wait(self) -> list[Event]:
        with self._only("wait", "messages"):
            return self.member.came(min(self.member.until, self._clock() + IDLE_SECONDS))

    def _tell(self, *events: Event) -> None:
        made, self._made = self._made, []
        self.member.handle(*made, *events)

    def _perform(self, said: Instruction) -> Iterable[Event]:
        if isinstance(said, Apply):
            own, self._held = self._held, []
            with self._only("apply", "messages"):
                self._worker = self._worker.apply([*own, *said.updates])
            self._applied, self.staleness = said, said.staleness
            self.applied += len(said.updates)
        elif isinstance(said, Leave):
            self.left = True
        return ()

    def _joined(self, place: Place, history: Callable[[Optional[int]], Any]) -> tuple[Any, Holds, Sums]:
        """What is shared as this worker begins, what that holds, and sums."""
        taken, found = self._snapshot(history)
        entries = [_of_former_rounds(entry, place) for entry in log.parsed(found.log, found.start)]
        if not isinstance(taken.replica, Replica):
            if any(isinstance(entry, tuple) and entry for entry in entries):
                raise ValueError("float weights can't be had from a log: their sums depend on the order; start anew")
            return taken.replica, Holds(Clock()), Sums()
        replay = Replay(taken.replica, self._read, holds=taken.holds, sums=taken.sums)
        replay.take(entries)
        done = replay.done(whole=False)
        return done.replica, done.holds, done.sums

    def _snapshot(self, history: Callable[[Optional[int]], Any]) -> tuple[snapshots.Snapshot, Any]:
        """The newest that can be read, else the start; and the history that goes with it."""
        nothing: Any = self._start.shared
        before = None
        while True:
            found = history(before)
            if not found.snapshot:
                return snapshots.Snapshot(nothing, Holds(Clock()), Sums(), 0), found
            try:
                return snapshots.unpacked(found.snapshot, self._traits, nothing), found
            except Exception:  # whatever a damaged file makes of the libraries that read it
                before = found.start

    def _give_snapshots(self) -> None:
        for end, clock in list(self._wanted):
            shared = self._worker.shared
            if not isinstance(shared, Replica):
                self._wanted.remove((end, clock))
            elif next(clock.beyond(shared.clock), None) is None:
                self._wanted.remove((end, clock))
                self._give(end, shared)

    def _give(self, end: int, shared: Replica) -> None:
        group = self.member.group
        taken = snapshots.Snapshot(shared, Holds(shared.clock, group.holds.closed), group.sums, end)
        self.relay.keep.remote(end, shared.clock, snapshots.packed(self._traits, taken))

    def _check(self) -> None:
        """Whether the weights are what all updates come to; the log gets their digest.

        Raises:
            Discarded: they are not.
        """
        shared = self._worker.shared
        if not isinstance(shared, Replica):
            return
        digest = shared.digest
        if self.member.group.agrees(shared.clock, digest) is False:
            raise Discarded(f"its weights have digest {digest & 0xFFFFFFFF:08x}, which its updates do not come to")
        self.relay.mark.remote(self._start.number, shared.clock, digest)
