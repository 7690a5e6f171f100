"""Exact replicas: weights that do not depend on the order in which updates arrive.

    theta = theta_0 + 2^-s A          A int32 [D]
    an update moves A by -W v         v int32 [D], W 2^-f = w the outer weight
    its sender counts as shared       u = 2^f v, in units of 2^-s

v is a function of the update alone, so A is a sum of integer vectors, and integer sums commute: replicas that have
taken in the same set of updates have the same bits, whatever the order, the batches, the threads or the machine.

How v is had from coordinates q 2^x, with k = x + s - f >= 0 (a smaller exponent is refused; senders round to it):
    entries of +-1, whole q     v = (E q) 2^k. Every partial sum is a whole number below 2^24, which float32 holds
                                exactly, so many updates are expanded in one pass: with their q multiplied up to the
                                least k of the batch, as far as the bound allows; the rest goes into further passes.
    anything else               v = rint(2^k E c) of one update at a time. The kernel gives E c with the same bits on
                                every machine, rint is IEEE's, so v is a function of the update here too, and only
                                passes cannot be shared.

Why nothing overflows. An update whose |v| max(W, 2^f) could reach 2^30 (by the sum of |q| before it is expanded, or
by the largest entry) is refused by sender and receivers alike. Sums of a batch are int64. |A| stays below 2^30, and an
update that would lead beyond is an error, before anything has changed. At s = 26 that is 16 in units of weight: no
weight of these networks moves so far unless training diverges. 2^-26 = 1.5e-8 is a thousandth of what one sign of a
typical update moves, and half the distance of neighbouring float32 numbers at 0.25. So int32 will do for A.

Letters: D weights, M compartments, d directions of a compartment, n updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from learners.rbd.clocks import Clock, Name
from learners.rbd.coordinates import EXACT, NOTHING, Quantised
from learners.rbd.directions import Directions, dimensions

Floats = NDArray[np.float32]
ROOM = 2**30
"""|A| stays below it, and so does what one update moves."""


class Patch(NamedTuple):
    """Weights on which an update does not go by its coordinates; float mode only."""

    start: int
    stop: int
    values: Optional[Floats]  #: [stop - start] the update there; None: there is none

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: two numbers of four bytes, and the values."""
        return 8 + (0 if self.values is None else self.values.nbytes)


@dataclass(frozen=True, eq=False)
class Update:
    """What one worker did in one round."""

    name: Name
    parts: tuple[Quantised, ...]  #: one per compartment
    patches: tuple[Patch, ...] = ()


class Diverged(ValueError):
    """Weights have moved further than any that learn do."""


@dataclass(frozen=True)
class Grid:
    """The numbers that all replicas of a group must share to have the same bits."""

    bits: int = 26  #: s
    weight: float = 1.0  #: w, a multiple of 1/16

    def __post_init__(self) -> None:
        if self.weight <= 0 or (16 * self.weight) % 1:
            raise ValueError(f"outer weight: {self.weight} was given; a multiple of 1/16 above 0 was wanted")

    @cached_property
    def numerator(self) -> int:
        """W, odd or whole: w = W 2^-f."""
        return Fraction(self.weight).numerator

    @cached_property
    def shift(self) -> int:
        """f, 0 .. 4."""
        return Fraction(self.weight).denominator.bit_length() - 1

    @property
    def floor(self) -> int:
        """The least exponent of a coordinate, f - s."""
        return self.shift - self.bits


@dataclass(frozen=True, eq=False)
class Replica:
    """The shared weights as one worker holds them. A value: applying updates makes another one."""

    directions: Directions
    grid: Grid
    theta_0: Floats  #: [D]
    moved: NDArray[np.int32]  #: A [D]
    clock: Clock = field(default_factory=Clock)  #: the updates in A

    @staticmethod
    def at_start(directions: Directions, grid: Grid, theta_0: Floats) -> Replica:
        """No update taken in yet."""
        return Replica(directions, grid, theta_0, np.zeros(len(theta_0), np.int32))

    @cached_property
    def theta(self) -> Floats:
        """T, float32 [D]: theta_0 + 2^-s A, every operation rounded as IEEE says."""
        return self.at(None)

    def apply(self, updates: Iterable[Update]) -> Replica:
        """With those of the updates that are new; one that has been taken in before is passed over.

        Raises:
            ValueError: an update is not of this group (`check`).
            Diverged: a weight would move 2^(30 - s) or more from its start.
        """
        fresh = {update.name: update for update in updates if update.name not in self.clock}
        return self._moved(self.vector(list(fresh.values())), fresh) if fresh else self

    def apply_own(self, update: Update, shared: NDArray[Any]) -> Replica:
        """As `apply([update])`, by one who has expanded the update already: `shared` is its u. It must be new."""
        return self._moved(shared >> self.grid.shift, [update.name])

    def _moved(self, vector_D: NDArray[np.int64], names: Iterable[Name]) -> Replica:
        """By -W v."""
        moved = self.moved - self.grid.numerator * vector_D
        furthest = int(np.abs(moved).max())
        if furthest >= ROOM:
            raise Diverged(f"weights: one would be {furthest / 2**self.grid.bits:.3g} from its start: lower the rate")
        return replace(self, moved=moved.astype(np.int32), clock=self.clock.add(names))

    def vector(self, updates: Sequence[Update]) -> NDArray[np.int64]:
        """The sum of the updates' v, int64 [D]."""
        for update in updates:
            self.check(update)
        total = np.zeros(len(self.theta_0), np.int64)
        for m, part in enumerate(self.directions.parts):
            there = [update for update in updates if update.parts[m].exponent != NOTHING]
            whole = [update for update in there if self.directions.integral and _integers(update.parts[m])]
            others = [update for update in there if update not in whole]
            found = self._whole(m, whole)
            for update in others:
                found += self._rounded(m, update)
            part.scatter(found, total)
        return total

    def check(self, update: Update) -> None:
        """ValueError, with the sender's name, for an update that no member of this group sends."""
        wanted = dimensions(self.directions)
        if update.patches or tuple(len(part.values) for part in update.parts) != wanted:
            raise ValueError(f"{update.name}: not coordinates of {wanted}, one after the other: another basis?")
        for part in update.parts:
            if part.exponent != NOTHING and part.exponent < self.grid.floor:
                raise ValueError(f"{update.name}: exponent {part.exponent}; at least {self.grid.floor} was wanted")
            if not np.isfinite(part.values).all():
                raise ValueError(f"{update.name}: coordinates that are not finite")
            if part.exponent != NOTHING and self.directions.integral and _integers(part):
                self._check_reach(update, part)

    def _check_reach(self, update: Update, part: Quantised) -> None:
        reach = self.directions.reach(part.values)
        if reach >= EXACT:
            raise ValueError(f"{update.name}: coordinates sum to {reach}; less than {EXACT} was wanted")
        if reach << (part.exponent - self.grid.floor) >= self._room:
            raise Diverged(self._too_far(update))

    @property
    def _room(self) -> int:
        """|v| of an update stays below it."""
        return ROOM // max(self.grid.numerator, 1 << self.grid.shift)

    def _too_far(self, update: Update) -> str:
        return f"{update.name}: moves a weight by {ROOM / 2**self.grid.bits:g} or more: lower the rate"

    def _whole(self, m: int, updates: Sequence[Update]) -> NDArray[np.int64]:
        total = np.zeros(self.directions.parts[m].size, np.int64)
        for batch, k in _passes(self.directions, self.grid.floor, m, updates):
            factors = [1 << (update.parts[m].exponent - self.grid.floor - k) for update in batch]
            q_nd = np.stack([update.parts[m].values for update in batch]).astype(np.float32)
            q_nd *= np.array(factors, np.float32)[:, None]
            total += self.directions.expand(m, [update.name for update in batch], q_nd).astype(np.int64) << k
        return total

    def _rounded(self, m: int, update: Update) -> NDArray[np.int64]:
        values, exponent = update.parts[m]
        vector = self.directions.expand(m, [update.name], values.astype(np.float32)[None])
        found = np.rint(np.ldexp(vector.astype(np.float64), exponent - self.grid.floor))
        if not np.abs(found).max() < self._room:
            raise Diverged(self._too_far(update))
        return found.astype(np.int64)

    # -- what a worker needs for a residual of its own

    @property
    def floor(self) -> int:
        """Least exponent of coordinates."""
        return self.grid.floor

    def shared(self, update: Update) -> NDArray[np.int64]:
        """u, what the update says of its sender's way, in units of 2^-s: int64 [D]."""
        return self.vector([update]) << self.grid.shift

    def units(self, way_D: Floats) -> NDArray[np.int64]:
        """A vector of weights in units of 2^-s, to the nearest, int64 [D].

        Raises:
            Diverged: an entry is not finite or 2^(30 - s) or more.
        """
        found = np.rint(way_D.astype(np.float64) * 2.0**self.grid.bits)
        if not np.abs(found).max() < ROOM:
            raise Diverged("weights: a worker has moved them beyond all bounds in one round: lower the rate")
        return found.astype(np.int64)

    def value(self, units_D: NDArray[Any]) -> Floats:
        """The inverse of `units`, rounded to float32."""
        found: Floats = units_D.astype(np.float32) * np.float32(2.0**-self.grid.bits)  # exact, and faster than ldexp
        return found

    def at(self, residual: Optional[NDArray[Any]]) -> Floats:
        """T - e, float32 [D]: where a worker stands that has not yet shared `residual` (in units)."""
        units = self.moved.astype(np.int64) if residual is None else self.moved - residual
        found: Floats = self.theta_0 + self.value(units)
        return found

    # -- comparing and keeping

    @property
    def digest(self) -> int:
        """The sum of r_i A_i mod 2^64, which is the sum of the digests of the updates in A."""
        return _digest(self.moved.astype(np.int64))

    def digest_since(self, before: Replica) -> int:
        """What the updates that an earlier state of this replica lacks add to a digest."""
        return _digest(self.moved.astype(np.int64) - before.moved)

    def digest_of(self, update: Update) -> int:
        """What an update adds to the digest of any replica."""
        return _digest(-self.grid.numerator * self.vector([update]))

    def agrees(self, other: Replica) -> Optional[bool]:
        """Whether two replicas have the same bits; None while they have not taken in the same updates."""
        if self.clock != other.clock:
            return None
        return self.digest == other.digest

    def save(self) -> dict[str, NDArray[Any]]:
        """By name: A, the clock, and what theta_0 and the grid must be: restoring needs them."""
        return {"moved": self.moved, "clock": self.clock.save(), "about": self._about}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> Replica:
        """A replica of this group as it was saved; ValueError where theta_0, its size or the grid differ."""
        if not np.array_equal(arrays["about"], self._about):
            raise ValueError("replica: saved with another theta_0, number of bits or outer weight; give those again")
        return replace(self, moved=arrays["moved"].astype(np.int32), clock=Clock.restored(arrays["clock"]))

    @cached_property
    def _about(self) -> NDArray[np.int64]:
        start = _digest(self.theta_0.view(np.int32).astype(np.int64))
        return np.array([len(self.theta_0), self.grid.bits, round(16 * self.grid.weight), start >> 1], np.int64)


def _integers(part: Quantised) -> bool:
    return part.values.dtype == np.int16


def _passes(
    directions: Directions, floor: int, m: int, updates: Sequence[Update]
) -> Iterator[tuple[list[Update], int]]:
    """Cut updates into batches whose sums stay below 2^24 when all q are multiplied up to the batch's least k."""
    batch: list[Update] = []
    least, total = 0, 0
    for update in sorted(updates, key=lambda update: update.parts[m].exponent):
        k, reach = update.parts[m].exponent - floor, directions.reach(update.parts[m].values)
        if batch and total + (reach << (k - least)) >= EXACT:
            yield batch, least
            batch = []
        if not batch:
            least, total = k, 0
        batch.append(update)
        total += reach << (k - least)
    if batch:
        yield batch, least


def _digest(units_D: NDArray[np.int64]) -> int:
    """The sum of r_i x_i mod 2^64."""
    return int((_odd_numbers(len(units_D)) * units_D.astype(np.uint64)).sum(dtype=np.uint64))


@lru_cache(maxsize=4)
def _odd_numbers(size: int) -> NDArray[np.uint64]:
    """r_i: the i-th output of SplitMix64 from 0 (Steele, Lea, Flood 2014), made odd, so that no single x_i is lost."""
    z = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: NDArray[np.uint64] = z ^ (z >> np.uint64(31)) | np.uint64(1)
    return odd
