"""Watching: what a descent along directions does, as numbers. Values in, values out; no TensorFlow.

Cheap, of every round that is to be watched, and recorded by name:
    correlation/all, correlation/<tensor>   cosine between the way that the weights went down and the gradient
    moved/all, moved/<tensor>               length of that way, as a share of the weights' length
    weights/<tensor>                        root mean square of the weights, after the round
    coordinates/mean, rms, kurtosis, positive   of the coordinates before they are shaped and rounded
    coordinates/zero, clipped, error        what shaping and rounding did to them
Costly, of one moment, from a checkpoint:
    directional Hessian   U H U^T along unit directions U, or its diagonal alone
    landscape             the loss along one random unit direction, or over the plane of two
    orthogonality         how far from orthogonal random directions are

Letters: D weights, d directions, n directions that are looked at, G points of a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from learners.bases import Basis, Key, expand
from learners.layout import Tensor
from learners.rbd.clocks import Name
from learners.rbd.coordinates import LIMITS, Quantised
from learners.rbd.directions import Directions
from learners.rbd.shaping import correlation

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
MOST_ORTHOGONAL = 1024
"""Directions whose Gram matrix is looked at, at most: 400 MB of them at 100,000 weights."""


class Probe(NamedTuple):
    """One learner at one moment, as the costly instruments look at it."""

    learner: str
    step: int
    rows: int  #: that loss and Hessian are means over
    theta_D: Floats
    loss: Callable[[Floats], float]  #: theta [D] -> mean loss
    product: Callable[[Floats], Floats]  #: v [D] -> H v [D] at theta_D
    directions: Optional[Directions] = None  #: of a learner that goes along any
    name: Name = Name(0, 0, 0)  #: of its next update
    basis: Optional[Basis] = None  #: what its directions are drawn from, if they are random


# ---------------------------------------------------------------- of every round


def moves(
    tensors: Sequence[Tensor], before_D: Floats, after_D: Floats, gradient_D: Optional[Floats]
) -> dict[str, float]:
    """Correlations and magnitudes of one round.

    Args:
        before_D, after_D: weights before and after it.
        gradient_D: the mean gradient of its batches; None where none was taken (nes).
    """
    way = before_D - after_D
    found = magnitudes(tensors, way, after_D)
    return found if gradient_D is None else found | correlations(tensors, way, gradient_D)


def correlations(tensors: Sequence[Tensor], way_D: Floats, gradient_D: Floats) -> dict[str, float]:
    """The cosine between a way down and a gradient, over all weights and over each tensor's; 0 where one is 0."""
    found = {f"correlation/{t.name}": correlation(way_D[t.place], gradient_D[t.place]) for t in tensors}
    return {"correlation/all": correlation(way_D, gradient_D), **found}


def magnitudes(tensors: Sequence[Tensor], way_D: Floats, theta_D: Floats) -> dict[str, float]:
    """How long a way is beside the weights that it leads to, |way| / |theta|, and how large these are.

    A tensor of zeros has no share: it is left out, and "all" is not.
    """
    found = {"moved/all": _length(way_D) / max(_length(theta_D), np.finfo(np.float32).tiny)}
    for tensor in tensors:
        weights, way = theta_D[tensor.place], way_D[tensor.place]
        if length := _length(weights):
            found[f"moved/{tensor.name}"] = _length(way) / length
        found[f"weights/{tensor.name}"] = length / len(weights) ** 0.5
    return found


def coordinate_statistics(found: Sequence[Floats], sent: Sequence[Quantised], precision: str) -> dict[str, float]:
    """Of all compartments together; nothing where no coordinates were sent.

    Args:
        found: of each compartment, before shaping and rounding.
        sent: what became of them.

    Returns:
        mean, rms (units of weight); kurtosis, <(c - mean)^4> / variance^2 (3 for a normal distribution, 1 for two
        values, 0 where all are equal); positive, the share above 0; zero, the share that was sent as 0; clipped, the
        share of whole numbers at their limit (none for float32 and sign); error, |c - what was sent| / |c|.
    """
    if not found or not sent:
        return {}
    c, q = np.concatenate(found).astype(np.float64), np.concatenate([part.coordinates for part in sent])
    centred, length = c - c.mean(), float(np.linalg.norm(c))
    variance = float(np.mean(centred**2))
    statistics = {
        "mean": float(c.mean()),
        "rms": length / len(c) ** 0.5,
        "kurtosis": float(np.mean(centred**4)) / variance**2 if variance**2 else 0.0,
        "positive": float(np.mean(c > 0)),
        "zero": float(np.mean(q == 0)),
        "error": float(np.linalg.norm(c - q)) / length if length else 0.0,
    }
    if precision in LIMITS and precision != "sign":
        values = np.concatenate([part.values for part in sent])
        statistics["clipped"] = float(np.mean(np.abs(values) == LIMITS[precision]))
    return {f"coordinates/{name}": value for name, value in statistics.items()}


def _length(vector: Floats) -> float:
    return float(np.linalg.norm(vector))


# ---------------------------------------------------------------- directions


def columns(directions: Directions, name: Name) -> Iterator[Floats]:
    """The directions of an update one after the other, each as float32 [D] of length 1, 0 outside its compartment."""
    size = sum(part.size for part in directions.parts)
    for m, part in enumerate(directions.parts):
        for one in np.eye(part.dimensions, dtype=np.float32):
            column = np.zeros(size, np.float32)
            part.scatter(directions.expand(m, [name], one[None]), column)
            yield unit(column)


def random_units(count: int, size: int, seed: int) -> Floats:
    """Directions drawn evenly from the sphere, float32 [count, size] of length 1."""
    generator = np.random.Generator(np.random.Philox(seed))
    return np.stack([unit(generator.standard_normal(size, np.float32)) for _ in range(count)])


def unit(vector: Floats) -> Floats:
    """Brought to length 1; 0 stays 0."""
    length = _length(vector)
    return vector / np.float32(length) if length else vector


# ---------------------------------------------------------------- directional Hessian


def curvatures(product: Callable[[Floats], Floats], units: Iterable[Floats]) -> Doubles:
    """The curvature e^T H e along each unit direction, float64 [n]: one Hessian-vector product each."""
    return np.array([float(np.dot(e, product(e))) for e in units], np.float64)


def hessian(product: Callable[[Floats], Floats], units_nD: Floats) -> Doubles:
    """U H U^T along unit directions, float64 [n, n]: n products and n x n sums.

    H is symmetric, and this is so but for the rounding of the products; `asymmetry` says how much that is. For
    directions that are orthogonal its eigenvalues lie between those of H.
    """
    return np.stack([(units_nD @ product(e)).astype(np.float64) for e in units_nD])


def asymmetry(matrix_nn: Doubles) -> float:
    """|M - M^T| / |M|, a measure of rounding where M should be symmetric."""
    length = float(np.linalg.norm(matrix_nn))
    return float(np.linalg.norm(matrix_nn - matrix_nn.T)) / length if length else 0.0


# ---------------------------------------------------------------- landscape


def profile(loss: Callable[[Floats], float], theta_D: Floats, unit_D: Floats, distances_G: Doubles) -> Doubles:
    """The loss at theta + distance x direction, float64 [G]."""
    return np.array([loss(theta_D + np.float32(distance) * unit_D) for distance in distances_G], np.float64)


def plane(
    loss: Callable[[Floats], float], theta_D: Floats, units: tuple[Floats, Floats], distances_G: Doubles
) -> Doubles:
    """The loss at theta + a one + b other, float64 [G, G]: a by row, b by column."""
    one, other = units
    return np.stack([profile(loss, theta_D + np.float32(a) * one, other, distances_G) for a in distances_G])


# ---------------------------------------------------------------- orthogonality


class Orthogonality(NamedTuple):
    """How far from orthogonal n directions of D weights are. Orthonormal ones: 0, 1, 1, 1."""

    weights: int  #: D
    directions: int  #: n
    cosine: float  #: root mean square of the cosine of two; of independent directions 1 / sqrt(D)
    least: float  #: eigenvalue of the Gram matrix of the unit directions; about (1 - sqrt(n / D))^2
    greatest: float  #: about (1 + sqrt(n / D))^2
    condition: float  #: greatest / least; infinite where they depend on one another


def orthogonality(units_nD: Floats) -> Orthogonality:
    """Of unit directions, float32 [n, D].

    Marchenko and Pastur (1967) give the ends of the spectrum for independent entries.
    """
    count, size = units_nD.shape
    gram = (units_nD @ units_nD.T).astype(np.float64)
    beside = gram[~np.eye(count, dtype=bool)]
    eigenvalues = np.linalg.eigvalsh(gram)
    least, greatest = max(0.0, float(eigenvalues[0])), float(eigenvalues[-1])
    # what rounding leaves of an eigenvalue 0
    floor = count * float(np.finfo(np.float32).eps)
    condition = greatest / least if least > floor else float("inf")
    cosine = float(np.sqrt(np.mean(beside**2))) if count > 1 else 0.0
    return Orthogonality(size, count, cosine, least, greatest, condition)


def drawn(basis: Basis, seed: int, size: int) -> Floats:
    """A basis' directions at the first update of worker 0, as unit rows: float32 [d, D], D = `size`."""
    key, each = Key(seed, 1, 0, 0), np.eye(basis.dimensions, dtype=np.float32)
    return np.stack([unit(expand(basis, key, one, size)) for one in each])


def by_dimension(basis: Basis, seed: int, sizes: Sequence[int], counts: Sequence[int]) -> list[Orthogonality]:
    """For each D and each d that is possible for it, at most `MOST_ORTHOGONAL`, by D and then by d."""
    kinds = [
        (size, count)
        for size in sizes
        for count in counts
        if 1 < count <= min(size, MOST_ORTHOGONAL) and not (basis.antithetic and count % 2)
    ]
    return [orthogonality(drawn(basis._replace(dimensions=count), seed, size)) for size, count in kinds]
