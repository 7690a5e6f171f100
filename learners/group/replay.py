"""From a log to weights: what its entries are, and how they are applied and compared. Pure.

Updates are applied in batches, so that one expansion does for many. A log is checked in three ways while it is
replayed: nothing is missing in it, recorded digests are those of their clocks, and the result is what the sums say that
updates carry. What a clock lacks ends a replay, by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional, Union

from learners.group.parcels import Holds, Sent, Whose
from learners.group.sums import MASK, Sums
from learners.rbd.clocks import Clock, Name, Taken
from learners.rbd.replica import Replica, Update

BATCH = 256
"""Updates that are applied together: more gain nothing, and are held as arrays."""


@dataclass(frozen=True)
class Ended:
    """This incarnation has ended with these updates."""

    whose: Whose
    taken: Taken


@dataclass(frozen=True)
class Mark:
    """What a replica was at a clock."""

    node: int  #: who says so
    clock: Clock
    digest: int  #: mod 2^64


Entry = Union[tuple[Sent, ...], Ended, Mark]


class Unlike(ValueError):
    """A replay comes to other bits than were recorded, or can't come to any."""


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    replica: Replica
    holds: Holds
    sums: Sums
    updates: int  #: that were applied
    marks: int  #: recorded digests that were compared
    late: int = 0  #: recorded digests of clocks that the replay did not come to, or had gone beyond


@dataclass
class _History:
    """What updates carry, by incarnation and sequence."""

    base: dict[Whose, int] = field(default_factory=dict)  #: sequence of the first
    sums: dict[Whose, array[int]] = field(default_factory=dict)

    @staticmethod
    def of(sums: Sums) -> _History:
        base = {whose: sequence for whose, (sequence, _) in sums.last.items()}
        return _History(base, {whose: array("I", [running]) for whose, (_, running) in sums.last.items()})

    def add(self, sent: Sent) -> None:
        whose = sent.name[:2]
        at, there = sent.name.sequence - self.base.setdefault(whose, 0), self.sums.setdefault(whose, array("I"))
        if at >= 0:
            there.extend([0] * (at + 1 - len(there)))
            there[at] = sent.running

    def digest(self, clock: Clock) -> Optional[int]:
        """Mod 2^32; None for a clock with holes, or one from before the replay."""
        total = 0
        for whose, taken in clock.taken.items():
            at = taken.below - 1 - self.base.get(whose, 0)
            if taken.early or not 0 <= at < len(self.sums.get(whose, ())):
                return None
            total += self.sums[whose][at]
        return total & MASK


class Replay:
    """Takes in entries in any portions; `done` says what came of them.

    Args:
        replica: at the start, or as a snapshot has it.
        read: makes an update of what was sent (`parcels.unpacked`).
        holds, sums: of the snapshot.
        upto: updates beyond this clock are left out.
    """

    def __init__(
        self,
        replica: Replica,
        read: Callable[[Sent], Update],
        *,
        holds: Optional[Holds] = None,
        sums: Optional[Sums] = None,
        upto: Optional[Clock] = None,
    ) -> None:
        self._replica, self._read, self._upto = replica, read, upto
        self._closed = dict(holds.closed) if holds else {}
        self._sums, self._history = sums or Sums(), _History.of(sums or Sums())
        self._clock = replica.clock  #: with what is pending
        self._pending: list[Sent] = []
        self._open_marks: list[Mark] = []
        self._updates = self._marks = 0

    def take(self, entries: Iterable[Entry]) -> None:
        """Apply updates that are new, compare digests that can be compared.

        Raises:
            Unlike: a recorded digest is not that of its clock.
            ValueError: an update is not of this group.
        """
        for entry in entries:
            if isinstance(entry, Ended):
                self._closed[entry.whose] = entry.taken
            elif isinstance(entry, Mark):
                self._mark(entry)
            else:
                self._take_updates(entry)

    def done(self, *, whole: bool = True) -> Replayed:
        """What came of it.

        Args:
            whole: whether nothing may be missing: not so for the first records of a log only.

        Raises:
            Unlike: an update is missing, or the digest is not what updates or marks say.
        """
        self._flush()
        if whole:
            _refuse_holes(self._clock, self._closed, self._upto)
        late = 0
        for mark in self._open_marks:
            late += not self._compare(mark)
        digest, wanted = self._replica.digest, self._sums.of(self._clock)
        if wanted is not None and wanted != digest & MASK:
            raise Unlike(f"log: its updates come to digest {digest & MASK:08x}; {wanted:08x} is what their senders say")
        holds = Holds(self._clock, self._closed)
        return Replayed(self._replica, holds, self._sums, self._updates, self._marks, late)

    def _take_updates(self, updates: tuple[Sent, ...]) -> None:
        fresh = {sent.name: sent for sent in updates if sent.name not in self._clock}
        chosen = [sent for name, sent in fresh.items() if self._upto is None or name in self._upto]
        self._clock = self._clock.add(sent.name for sent in chosen)
        for sent in chosen:
            self._history.add(sent)
        self._pending += chosen
        while len(self._pending) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        now, self._pending = self._pending[:BATCH], self._pending[BATCH:]
        if now:
            self._replica = self._replica.apply(map(self._read, now))
            self._sums = self._sums.add(now)
            self._updates += len(now)
            self._flush()

    def _mark(self, mark: Mark) -> None:
        if not self._compare(mark):
            self._open_marks.append(mark)

    def _compare(self, mark: Mark) -> bool:
        """Whether it could be compared: in full at the very clock, else by what updates carry."""
        if mark.clock == self._clock:
            self._flush()
            found, wanted = self._replica.digest, mark.digest
        else:
            carried = self._history.digest(mark.clock)
            if carried is None:
                return False
            found, wanted = carried, mark.digest & MASK
        if found != wanted:
            raise Unlike(f"log: member {mark.node} has recorded digest {wanted:x}; its updates come to {found:x}")
        self._marks += 1
        return True


def _refuse_holes(clock: Clock, closed: Mapping[Whose, Taken], upto: Optional[Clock]) -> None:
    """Unlike, with the first update that is missing and counts."""
    wanted = Clock(dict(closed)) if upto is None else upto
    missing = {whose: numbers for whose, numbers in clock.gaps.items() if upto is None and whose not in closed}
    for name in wanted.beyond(clock):
        missing.setdefault(name[:2], []).append(name.sequence)
    for whose, numbers in missing.items():
        if numbers:
            raise Unlike(
                f"log: {Name(*whose, min(numbers))} and {len(numbers) - 1} more of that incarnation are missing"
            )
