"""Whether a replica has the bits that it should have, from the sums that updates carry.

A digest is linear: that of a replica is the sum of the digests of its updates, whatever their order. Each update
carries the sum over its incarnation up to itself, so the last one of each says what any replica must come to, and
nothing need be expanded. 32 bits travel: one lost, doubled or falsely expanded update in four billion goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from learners.group.parcels import Sent, Whose
from learners.rbd.clocks import Clock

MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Sums:
    """The last update of each incarnation and what it carries."""

    last: Mapping[Whose, tuple[int, int]] = field(default_factory=dict)  #: sequence, running sum

    def add(self, updates: Iterable[Sent]) -> Sums:
        """With these too."""
        last = dict(self.last)
        for sent in updates:
            whose, sequence = sent.name[:2], sent.name.sequence
            if sequence >= last.get(whose, (0, 0))[0]:
                last[whose] = (sequence, sent.running)
        return Sums(last)

    def of(self, clock: Clock) -> Optional[int]:
        """The digest of that clock, mod 2^32; None where updates are missing in it, or others were added last."""
        total = 0
        for whose, taken in clock.taken.items():
            sequence, running = self.last.get(whose, (-1, 0))
            if taken.early or sequence != taken.below - 1:
                return None
            total += running
        return total & MASK

    def save(self) -> NDArray[np.int64]:
        """int64 [rows, 4]: sender, incarnation, sequence, sum."""
        return np.array([(*whose, *last) for whose, last in sorted(self.last.items())], np.int64).reshape(-1, 4)

    @staticmethod
    def restored(rows: NDArray[np.int64]) -> Sums:
        """The sums that `save` was called on."""
        return Sums({(sender, incarnation): (n, total) for sender, incarnation, n, total in rows.tolist()})
