"""Random directions in plain NumPy: slow and obvious, a stand-in with the signatures of the kernels.

Letters: D weights, d directions, n keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from learners.seeds import derive

Floats = NDArray[np.float32]


class Key(NamedTuple):
    """What a basis is drawn from; equal keys, equal directions."""

    seed: int
    worker: int
    sequence: int
    compartment: int


class Basis(NamedTuple):
    """How a basis is drawn: entries of zero mean and unit variance."""

    dimensions: int  #: d
    distribution: str = "rademacher"  #: rademacher, hadamard, uniform, normal, lognormal
    normalize: str = "constant"  #: constant, column (each column gets the norm sqrt(D)), none
    antithetic: bool = False  #: column 2 i + 1 is minus column 2 i


def draw(basis: Basis, key: Key, size: int) -> Floats:
    """E, float32 [D, d]."""
    d = basis.dimensions
    drawn = d // 2 if basis.antithetic else d
    chance = np.random.Generator(np.random.Philox(derive(key.seed, key.worker, key.sequence, key.compartment)))
    if basis.distribution == "rademacher":
        entries = chance.integers(0, 2, (size, drawn)) * 2.0 - 1.0
    elif basis.distribution == "hadamard":
        length = 1 << (size - 1).bit_length()
        rows = chance.permutation(length)[:drawn]
        parity = np.zeros((size, drawn), np.int64)
        common = np.arange(size)[:, None] & rows
        while common.any():
            parity ^= common & 1
            common >>= 1
        entries = (1.0 - 2.0 * parity) * (chance.integers(0, 2, (size, 1)) * 2.0 - 1.0)
    elif basis.distribution == "uniform":
        entries = chance.uniform(-(3**0.5), 3**0.5, (size, drawn))
    elif basis.distribution == "normal":
        entries = chance.standard_normal((size, drawn))
    else:
        entries = (np.exp(chance.standard_normal((size, drawn))) - np.exp(0.5)) / (np.exp(2) - np.exp(1)) ** 0.5
    if basis.normalize == "column":
        entries *= size**0.5 / np.linalg.norm(entries, axis=0)
    if basis.antithetic:
        entries = np.stack([entries, -entries], axis=2).reshape(size, -1)
    return entries.astype(np.float32)


def project(basis: Basis, key: Key, gradient_D: Floats) -> Floats:
    """E^T g, float32 [d]."""
    found: Floats = (draw(basis, key, len(gradient_D)).T.astype(np.float64) @ gradient_D).astype(np.float32)
    return found


def expand(basis: Basis, key: Key, coordinates_d: Floats, size: int) -> Floats:
    """E c, float32 [D]."""
    return (draw(basis, key, size).astype(np.float64) @ coordinates_d).astype(np.float32)


def expand_many(basis: Basis, keys: Sequence[Key], coordinates_nd: Floats, size: int) -> Floats:
    """The sum over n keys of E c, float32 [D]; exact for +-1 entries and whole c with sums below 2^24."""
    total = np.zeros(size, np.float32)
    for key, coordinates_d in zip(keys, coordinates_nd):
        total += expand(basis, key, coordinates_d, size)
    return total


def scale(basis: Basis, size: int) -> float:
    """What makes scale x E E^T a contraction: 1 / D, for Hadamard 1 / 2^k, 1 where nothing is normalised."""
    if basis.normalize == "none":
        return 1.0
    return 1.0 / (1 << (size - 1).bit_length() if basis.distribution == "hadamard" else size)
