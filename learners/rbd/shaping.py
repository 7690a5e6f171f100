"""What happens to coordinates between projection and the wire, and how losses become coordinates. Pure.

Letters: d coordinates of a compartment, N offspring.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def centred_ranks(values_N: NDArray[np.floating[Any]]) -> Floats:
    """Ranks laid out evenly from -1/2 (the lowest) to 1/2; equal values share the mean of their ranks."""
    order = np.argsort(values_N, kind="stable")
    ranks = np.empty(len(values_N))
    ranks[order] = np.arange(len(values_N))
    _, same, count = np.unique(values_N, return_inverse=True, return_counts=True)
    means = np.bincount(same, ranks) / count
    centred: Floats = (means[same] / max(1, len(values_N) - 1) - 0.5).astype(np.float32)
    return centred


def transformed(coordinates_d: Floats, transform: str) -> Floats:
    """Coordinates by their ranks or between their extremes.

        none    c
        ranks   centred ranks of c
        minmax  2 (c - min) / (max - min) - 1
    The last two are scaled to the root mean square of c, so that a learning rate means the same with all three. Both
    move the middle of c to 0; all equal coordinates become 0.
    """
    if transform == "none":
        return coordinates_d
    if transform == "ranks":
        shaped = centred_ranks(coordinates_d)
    else:
        low, high = coordinates_d.min(), coordinates_d.max()
        shaped = 2 * (coordinates_d - low) / (high - low) - 1 if high > low else np.zeros_like(coordinates_d)
    norm = float(np.linalg.norm(shaped))
    return shaped * np.float32(np.linalg.norm(coordinates_d) / norm) if norm else shaped


def kept(coordinates_d: Floats, keep: str, count: Optional[int], fraction: Optional[float]) -> Floats:
    """Zeros in place of the coordinates that are not kept.

    top     `count` with the largest |c| stay
    best    a `fraction` with the largest |c|, at least one
    lowest  a `fraction` with the smallest |c|, at least one
    """
    if keep == "all":
        return coordinates_d
    order = np.argsort(np.abs(coordinates_d), kind="stable")
    number = min(count or 1, len(order)) if keep == "top" else max(1, round((fraction or 1.0) * len(order)))
    stay = order[:number] if keep == "lowest" else order[-number:]
    found = np.zeros_like(coordinates_d)
    found[stay] = coordinates_d[stay]
    return found


def correlation(one: Floats, other: Floats) -> float:
    """The cosine between two vectors; 0 where one of them is 0."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.dot(one, other)) / norms if norms else 0.0
