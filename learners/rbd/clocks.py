"""Vector clocks: which updates a replica has taken in. Pure values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Name(NamedTuple):
    """Names one update: no two updates of a run share it."""

    sender: int  #: number of the worker, below 2^16 - 1: a basis key has 16 bits for it
    incarnation: int  #: grows by one with every restart of the sender, from 0, below 2^12
    sequence: int  #: counts the updates of this incarnation, from 0, below 2^32


class Taken(NamedTuple):
    """What has been taken in of one incarnation of one sender."""

    below: int = 0  #: every sequence below this one
    early: frozenset[int] = frozenset()  #: and these, all above it: something before them is still missing

    def add(self, sequence: int) -> Taken:
        """With one more, which was not in it."""
        below, early = self.below, self.early | {sequence}
        while below in early:
            below += 1
        return Taken(below, frozenset(one for one in early if one > below))

    def __contains__(self, sequence: object) -> bool:
        return sequence in self.early or (isinstance(sequence, int) and sequence < self.below)

    def beyond(self, other: Taken) -> Iterator[int]:
        """Those that another lacks; what both have all of costs nothing."""
        return (n for n in chain(range(other.below, self.below), sorted(self.early)) if n not in other)


@dataclass(frozen=True)
class Clock:
    """A set of updates. Two replicas may be compared exactly where their clocks are equal."""

    taken: Mapping[tuple[int, int], Taken] = field(default_factory=dict)  #: by (sender, incarnation), none empty

    def __contains__(self, name: Name) -> bool:
        return name.sequence in self.taken.get(name[:2], Taken())

    def add(self, names: Iterable[Name]) -> Clock:
        """With these too, each of which must be new: `assert`s it, since callers have asked before."""
        taken = dict(self.taken)
        for name in names:
            before = taken.get(name[:2], Taken())
            assert name.sequence not in before, f"{name} twice"
            taken[name[:2]] = before.add(name.sequence)
        return Clock(taken)

    @property
    def count(self) -> int:
        """Updates in it."""
        return sum(taken.below + len(taken.early) for taken in self.taken.values())

    def beyond(self, other: Clock) -> Iterator[Name]:
        """Updates that another lacks."""
        for whose, taken in self.taken.items():
            yield from (Name(*whose, n) for n in taken.beyond(other.taken.get(whose, Taken())))

    @property
    def gaps(self) -> dict[tuple[int, int], list[int]]:
        """Sequences that are missing below one that is there, by (sender, incarnation)."""
        return {
            whose: [n for n in range(taken.below, max(taken.early)) if n not in taken.early]
            for whose, taken in self.taken.items()
            if taken.early
        }

    def save(self) -> NDArray[np.int64]:
        """int64 [rows, 4]: sender, incarnation, sequence, and 0 where all below it are taken or 1 where it alone is."""
        rows = [
            row
            for (sender, incarnation), (below, early) in sorted(self.taken.items())
            for row in [(sender, incarnation, below, 0), *((sender, incarnation, n, 1) for n in sorted(early))]
        ]
        return np.array(rows, np.int64).reshape(-1, 4)

    @staticmethod
    def restored(rows: NDArray[np.int64]) -> Clock:
        """The clock that `save` was called on."""
        taken: dict[tuple[int, int], Taken] = {}
        for sender, incarnation, sequence, alone in rows.tolist():
            if alone:
                below, early = taken[sender, incarnation]
                taken[sender, incarnation] = Taken(below, early | {sequence})
            else:
                taken[sender, incarnation] = Taken(sequence)
        return Clock(taken)
