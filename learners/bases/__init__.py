"""Random bases: d directions of D weights, made from a key and stored nowhere.

Legend: D weights, d directions, n keys. E is the matrix [D, d] that basis, key and D stand for; a gradient g becomes
d coordinates, `project`: c = E^T g, and coordinates become an update, `expand`: E c, times `scale`.
Every distribution has mean 0 and variance 1 by entry. The same bits come out for any number of threads, with AVX2 and
with AVX-512, in any process: E's entries are functions of key and position, and the order of sums is fixed (it stands
at the head of `signs`, `entries` and `hadamard`). The kernels take `numba.get_num_threads()` threads at most, and fewer
where there is little to do: a thread that a busy machine makes wait costs more than it brings.

Source of the method: Gressmann, Eaton-Rosen, Luschi, "Improving neural network training in low dimensional random
bases", NeurIPS 2020. We differ: entries have mean 0 and variance 1 by distribution (theirs had not), and a column
that is normalised has norm sqrt(D), so that `scale` is 1 / D in either case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numba
import numpy as np

from learners.bases import entries, hadamard, signs
from learners.bases.philox import Domain, stream
from learners.bases.philox import Key as Key

Distribution = Literal["rademacher", "hadamard", "uniform", "normal", "lognormal"]
Normalize = Literal["constant", "column", "none"]
DENSE = {"uniform": entries.UNIFORM, "normal": entries.NORMAL, "lognormal": entries.LOGNORMAL}
ENTRIES_PER_THREAD = {"rademacher": 1 << 21, "hadamard": 1 << 19}
"""Entries (of Hadamard: additions) that take some 20 us, and so pay for a thread; 2^16 for the other distributions."""
MOST_DIMENSIONS = 1 << 18
"""More directions than that have no place in a key's stream (2^16 blocks of 4 columns)."""


class Basis(NamedTuple):
    """What kind of matrix E is."""

    #: d, directions
    dimensions: int
    #: of the entries: rademacher (+1, -1); hadamard (+1, -1, orthogonal); uniform; normal; lognormal (sigma 1, brought
    #: to mean 0 and variance 1)
    distribution: Distribution = "rademacher"
    #: constant: scale 1 / D; column: each column is brought to norm sqrt(D), scale 1 / D; none: scale 1
    normalize: Normalize = "constant"
    #: column 2 i + 1 is minus column 2 i: the pairs of finite differences, f(x + e) and f(x - e), whose errors of even
    #: order cancel. For a projected gradient they say the same thing twice, so E has half as many directions.
    antithetic: bool = False


def scale(basis: Basis, size: int) -> float:
    """What an update E c is multiplied by, so that E E^T g scale is a projection of g, in the mean or exactly.

    1 / D, or 1 / 2^k for Hadamard, 2^k the next power of two; 1 where nothing is normalised.
    """
    check(basis, size)
    if basis.normalize == "none":
        return 1.0
    return 1.0 / (hadamard.length(size) if basis.distribution == "hadamard" else size)


def check(basis: Basis, size: int) -> None:
    """Raises ValueError if there is no such basis of `size` weights."""
    d, kinds = basis.dimensions, ("rademacher", "hadamard", *DENSE)
    if basis.distribution not in kinds:
        raise ValueError(f"basis.distribution: {basis.distribution!r} is not one of {', '.join(kinds)}")
    if basis.normalize not in ("constant", "column", "none"):
        raise ValueError(f"basis.normalize: {basis.normalize!r} is not one of constant, column, none")
    if not 1 <= d <= MOST_DIMENSIONS:
        raise ValueError(f"basis.dimensions: {d} directions; wanted 1 to {MOST_DIMENSIONS:,}")
    if not 1 <= size < 1 << 31:
        raise ValueError(f"basis: {size} weights; wanted 1 to 2^31 - 1")
    if basis.antithetic and d % 2:
        raise ValueError(f"basis.dimensions: {d} antithetic directions; pairs want an even number")
    if basis.distribution == "hadamard" and d > size:
        raise ValueError(f"basis.dimensions: {d} orthogonal directions of {size} weights; wanted at most {size}")


def project(basis: Basis, key: Key, gradient_D: np.ndarray) -> np.ndarray:
    """E^T g, float32[d].

    Nothing is looked for in the gradient: a NaN or an infinity in it makes every coordinate NaN or infinite, so who
    sends them checks d numbers instead of D. Raises ValueError if gradient_D is not float32[D].
    """
    gradient_D = _floats(gradient_D, "gradient", 1)
    check(basis, len(gradient_D))
    if basis.antithetic:
        half = project(_half(basis), key, gradient_D)
        return np.stack([half, -half], axis=1).reshape(-1)
    at = _stream(basis, key)
    with _threads(basis, len(gradient_D)):
        if basis.distribution == "rademacher":
            return np.asarray(signs.project(gradient_D, basis.dimensions, at))
        if basis.distribution == "hadamard":
            return hadamard.project(gradient_D, basis.dimensions, at, stream(key, Domain.ROWS))
        kind = DENSE[basis.distribution]
        found = np.asarray(entries.project(kind, gradient_D, basis.dimensions, at, 0, entries.QUANTILES))
        return found * _factors(basis, key, len(gradient_D)) if basis.normalize == "column" else found


def expand(basis: Basis, key: Key, coordinates_d: np.ndarray, size: int) -> np.ndarray:
    """E c, float32[D], D = `size`. Raises ValueError if coordinates_d is not float32[d]."""
    return expand_many(basis, [key], np.asarray(coordinates_d)[None], size)


def expand_many(basis: Basis, keys: Sequence[Key], coordinates_nd: np.ndarray, size: int) -> np.ndarray:
    """The sum of E_k c_k over n keys, float32[D], in one pass.

    With entries of +1 and -1 and coordinates that are whole numbers, the result is exact, hence the same in any order
    and grouping of keys, as long as the sum of |c| over all keys and directions is at most 2^24: no sum on the way can
    then be greater, and float32 holds every whole number up to there.
    Raises ValueError if coordinates_nd is not float32[n, d].
    """
    check(basis, size)
    coordinates_nd = _floats(coordinates_nd, "coordinates", 2)
    if coordinates_nd.shape != (len(keys), basis.dimensions):
        wanted = (len(keys), basis.dimensions)
        raise ValueError(f"coordinates: the shape is {coordinates_nd.shape}; wanted (keys, dimensions) = {wanted}")
    if basis.antithetic:
        return expand_many(_half(basis), keys, coordinates_nd[:, ::2] - coordinates_nd[:, 1::2], size)
    ats = np.array([_stream(basis, key) for key in keys], np.uint64).reshape(-1, 5)
    with _threads(basis, size * max(1, len(keys))):
        if basis.distribution == "rademacher":
            return np.asarray(signs.expand(coordinates_nd, size, ats))
        if basis.distribution == "hadamard":
            rows = [stream(key, Domain.ROWS) for key in keys]
            return sum(map(hadamard.expand, coordinates_nd, [size] * len(keys), ats, rows), np.zeros(size, np.float32))
        if basis.normalize == "column":
            factors = [_factors(basis, key, size) for key in keys]
            coordinates_nd = coordinates_nd * np.array(factors, np.float32).reshape(coordinates_nd.shape)
        return np.asarray(entries.expand(DENSE[basis.distribution], coordinates_nd, size, ats, entries.QUANTILES))


@contextmanager
def _threads(basis: Basis, size: int) -> Iterator[None]:
    """No more threads than the work is worth."""
    most, kind = numba.get_num_threads(), basis.distribution
    work = size * (17 if kind == "hadamard" else basis.dimensions)
    numba.set_num_threads(max(1, min(most, work // ENTRIES_PER_THREAD.get(kind, 1 << 16))))
    try:
        yield
    finally:
        numba.set_num_threads(most)


def _stream(basis: Basis, key: Key) -> np.ndarray:
    domains = {"rademacher": Domain.RADEMACHER, "hadamard": Domain.SIGNS}
    return stream(key, domains.get(basis.distribution, Domain.WORDS))


def _half(basis: Basis) -> Basis:
    return basis._replace(dimensions=basis.dimensions // 2, antithetic=False)


def _factors(basis: Basis, key: Key, size: int) -> np.ndarray:
    """What brings each column to norm sqrt(D), float32[d]: one more pass over E."""
    ones, at = np.ones(size, np.float32), _stream(basis, key)
    squares = entries.project(DENSE[basis.distribution], ones, basis.dimensions, at, 1, entries.QUANTILES)
    return np.asarray(np.sqrt(np.float32(size) / squares))


def _floats(given: np.ndarray, name: str, axes: int) -> np.ndarray:
    if not isinstance(given, np.ndarray) or given.dtype != np.float32 or given.ndim != axes:
        what = f"{given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__
        raise ValueError(f"{name}: {what} came; wanted an array float32 of {axes} axes")
    return np.ascontiguousarray(given)
