"""What a worker's coordinates are coordinates of: directions drawn from a seed, past gradients, or all weights.

Each kind says how a vector of D weights is projected to coordinates in units of weight, c = scale E^T h, and how
coordinates become a vector again, E c; scale makes E c a contraction of h. Pure values: nothing random is stored.

Letters: D weights, M compartments, d directions of a compartment, n updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from learners import bases
from learners.bases import Basis, Key, kept
from learners.rbd.clocks import Name
from learners.rbd.compartments import Compartment

Floats = NDArray[np.float32]
EXACT = ("rademacher", "hadamard")
"""Distributions whose entries are +-1."""


class Directions(Protocol):
    """What replicas and workers need to know of them."""

    @property
    def parts(self) -> tuple[Compartment, ...]:
        """The M compartments; together they are [0, D)."""

    @property
    def integral(self) -> bool:
        """Whether E c is exact in float32 for whole c, as long as `reach` is below 2^24."""

    def project(self, name: Name, vector_D: Floats) -> list[Floats]:
        """Coordinates of each compartment, scale E^T h."""

    def expand(self, m: int, names: Sequence[Name], coordinates_nd: Floats) -> Floats:
        """The part of the weights that is compartment m: sum over n of E c."""

    def reach(self, values: NDArray[Any]) -> int:
        """The most that |E q| can be for one weight."""


def dimensions(directions: Directions) -> tuple[int, ...]:
    """The d of each compartment."""
    return tuple(part.dimensions for part in directions.parts)


@dataclass(frozen=True)
class Drawn:
    """Random directions: each compartment has its own, drawn anew every `redraw` updates."""

    seed: int
    parts: tuple[Compartment, ...]
    basis: Basis  #: its `dimensions` is not used; each compartment has its own
    redraw: int = 1  #: updates of a sender that share directions; 0: all of them, for ever
    shared: bool = False  #: whether updates with the same sequence share directions, whoever sent them
    keep: bool = False  #: whether matrices stay in memory

    @property
    def integral(self) -> bool:
        """True for entries +-1."""
        return self.basis.distribution in EXACT and self.basis.normalize != "column"

    def key(self, name: Name, m: int) -> Key:
        """What the directions of an update are drawn from.

        Sequences start anew with every incarnation, so the incarnation goes in front: incarnation 2^32 + sequence.
        Shared directions go by the sequence alone, and by worker 0; a worker's own by 1 + its number.
        """
        number = name.sequence if self.shared else (name.incarnation << 32) + name.sequence
        return Key(self.seed, 0 if self.shared else 1 + name.sender, number // self.redraw if self.redraw else 0, m)

    def project(self, name: Name, vector_D: Floats) -> list[Floats]:
        """The coordinates scale E^T h of each compartment."""
        found = []
        for m, part in enumerate(self.parts):
            basis, key, piece = self._basis(m), self.key(name, m), part.gather(vector_D)
            if self.keep:
                raw = kept.project_kept(basis, _kept(self, self.key(name, 0))[m], piece)
            else:
                raw = bases.project(basis, key, piece)
            found.append(raw * np.float32(bases.scale(basis, part.size)))
        return found

    def expand(self, m: int, names: Sequence[Name], coordinates_nd: Floats) -> Floats:
        """Sum over n of E c, in one pass; coordinates in the same directions are added before they are expanded."""
        size, by_key = self.parts[m].size, dict[Key, Floats]()
        for name, c in zip(names, coordinates_nd):
            key = self.key(name, m)
            by_key[key] = by_key[key] + c if key in by_key else c
        if self.keep:
            total = np.zeros(size, np.float32)
            for key, c in by_key.items():
                total += kept.expand_kept(self._basis(m), _kept(self, key._replace(compartment=0))[m], c)
            return total
        return bases.expand_many(self._basis(m), list(by_key), np.stack(list(by_key.values())), size)

    def reach(self, values: NDArray[Any]) -> int:
        """Sum of |q|: all signs may agree."""
        return int(np.abs(values, dtype=np.int64).sum())

    def _basis(self, m: int) -> Basis:
        return self.basis._replace(dimensions=self.parts[m].dimensions)


@lru_cache(maxsize=1)
def _kept(drawn: Drawn, key: Key) -> list[Floats]:
    """The matrices [D_m, d_m] of all compartments, from the key of the first; the last ones asked for stay."""
    return [kept.draw(drawn._basis(m), key._replace(compartment=m), part.size) for m, part in enumerate(drawn.parts)]


@dataclass(frozen=True)
class Whole:
    """No bases: every weight is its own coordinate, as in local SGD."""

    size: int  #: D
    integral: bool = True

    @property
    def parts(self) -> tuple[Compartment, ...]:
        """One compartment of as many dimensions as weights."""
        return (Compartment(((0, self.size),), self.size),)

    def project(self, name: Name, vector_D: Floats) -> list[Floats]:
        """The vector itself."""
        return [vector_D]

    def expand(self, m: int, names: Sequence[Name], coordinates_nd: Floats) -> Floats:
        """Sum of the n vectors."""
        total: Floats = coordinates_nd.sum(0, dtype=np.float32)
        return total

    def reach(self, values: NDArray[Any]) -> int:
        """The largest |q|."""
        return int(np.abs(values, dtype=np.int64).max())


@dataclass(frozen=True)
class Learned:
    """Random directions that are redrawn one by one: base learning. One compartment, float mode."""

    seed: int
    size: int  #: D
    basis: Basis
    births: tuple[int, ...]  #: [d] the sequence at which each direction was drawn

    integral = False

    @property
    def parts(self) -> tuple[Compartment, ...]:
        """One compartment."""
        return (Compartment(((0, self.size),), len(self.births)),)

    def keys(self, name: Name) -> list[Key]:
        """One for each direction: its birth and its place."""
        return [Key(self.seed, 1 + name.sender, birth, j) for j, birth in enumerate(self.births)]

    def project(self, name: Name, vector_D: Floats) -> list[Floats]:
        """The coordinates scale E^T h, direction by direction."""
        one = self.basis._replace(dimensions=1)
        raw = np.concatenate([bases.project(one, key, vector_D) for key in self.keys(name)])
        return [raw * np.float32(bases.scale(one, self.size))]

    def expand(self, m: int, names: Sequence[Name], coordinates_nd: Floats) -> Floats:
        """Sum over n and over directions, in one pass."""
        one = self.basis._replace(dimensions=1)
        keys = [key for name in names for key in self.keys(name)]
        return bases.expand_many(one, keys, coordinates_nd.reshape(-1, 1), self.size)

    def reach(self, values: NDArray[Any]) -> int:
        """Sum of |q|."""
        return int(np.abs(values, dtype=np.int64).sum())

    def redrawn(self, coordinates_d: Floats, what: str, fraction: float, sequence: int) -> Learned:
        """With new directions in place of those with the smallest (`what` "small") or largest |c|; at least one."""
        order = np.argsort(np.abs(coordinates_d), kind="stable")
        count = max(1, round(fraction * len(order)))
        replaced = order[:count] if what == "small" else order[-count:]
        births = np.array(self.births)
        births[replaced] = sequence
        return replace(self, births=tuple(births.tolist()))


@dataclass(frozen=True, eq=False)
class Past:
    """The directions of the last d gradients, kept orthonormal. One compartment, float mode."""

    rows: Floats  #: [d, D], orthonormal or zero where there have not been so many gradients
    oldest: int = 0  #: the row that is replaced next

    integral = False

    @property
    def parts(self) -> tuple[Compartment, ...]:
        """One compartment."""
        d, size = self.rows.shape
        return (Compartment(((0, size),), d),)

    def project(self, name: Name, vector_D: Floats) -> list[Floats]:
        """Coordinates in the span; orthonormal rows need no scale."""
        return [self.rows @ vector_D]

    def expand(self, m: int, names: Sequence[Name], coordinates_nd: Floats) -> Floats:
        """Sum over n."""
        total: Floats = coordinates_nd.sum(0, dtype=np.float32) @ self.rows
        return total

    def reach(self, values: NDArray[Any]) -> int:
        """Sum of |q|."""
        return int(np.abs(values, dtype=np.int64).sum())

    def with_gradient(self, gradient_D: Floats) -> Past:
        """With this gradient's new direction in place of the oldest one (Gram-Schmidt, twice for its rounding).

        A gradient that lies in the span of the others to one part in 10^4 brings no direction, and changes nothing.
        """
        rows = self.rows.copy()
        rows[self.oldest] = 0.0
        new = gradient_D.astype(np.float32)
        for _ in range(2):
            new = new - (rows @ new) @ rows
        norm = float(np.linalg.norm(new))
        if norm <= 1e-4 * float(np.linalg.norm(gradient_D)):
            return self
        rows[self.oldest] = new / np.float32(norm)
        return Past(rows, (self.oldest + 1) % len(rows))
