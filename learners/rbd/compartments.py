"""Compartments: which weights share a set of directions, and how many directions each of them has.

Pure arithmetic. Letters: D weights, d directions, M compartments, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from learners.layout import Tensor

Ranges = tuple[tuple[int, int], ...]


class Compartment(NamedTuple):
    """Weights that are moved along directions of their own."""

    ranges: Ranges  #: (start, stop) of the pieces of the flat weights, ascending and disjoint
    dimensions: int  #: d of this compartment, 1 .. its size

    @property
    def size(self) -> int:
        """Weights in it."""
        return sum(stop - start for start, stop in self.ranges)

    def gather(self, vector_D: NDArray[np.float32]) -> NDArray[np.float32]:
        """Its part of a flat vector, its pieces one after the other."""
        pieces = [vector_D[start:stop] for start, stop in self.ranges]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def scatter(self, part: NDArray[np.generic], onto_D: NDArray[np.generic]) -> None:
        """The inverse of `gather`: write a part into a flat vector."""
        at = 0
        for start, stop in self.ranges:
            onto_D[start:stop] = part[at : at + stop - start]
            at += stop - start


# ---------------------------------------------------------------- which weights


def whole(size: int) -> list[Ranges]:
    """One compartment of all D weights."""
    return [((0, size),)]


def sized(size: int, each: int) -> list[Ranges]:
    """Compartments of `each` weights across the borders of layers; the last one has what is left."""
    return [((start, min(start + each, size)),) for start in range(0, size, each)]


def by_layer(tensors: Sequence[Tensor], layers: int = 1) -> list[Ranges]:
    """One compartment for every `layers` layers that follow one another."""
    return _grouped(tensors, [tensor.layer // layers for tensor in tensors])


def by_type(tensors: Sequence[Tensor]) -> list[Ranges]:
    """Two compartments: the kernels of all layers, and the rest (biases, gains)."""
    return _grouped(tensors, [0 if tensor.kind == "kernel" else 1 for tensor in tensors])


def _grouped(tensors: Sequence[Tensor], groups: Sequence[int]) -> list[Ranges]:
    found: dict[int, list[tuple[int, int]]] = {}
    for tensor, group in sorted(zip(tensors, groups), key=lambda pair: pair[0].start):
        pieces = found.setdefault(group, [])
        if pieces and pieces[-1][1] == tensor.start:
            pieces[-1] = (pieces[-1][0], tensor.stop)
        else:
            pieces.append((tensor.start, tensor.stop))
    return [tuple(found[group]) for group in sorted(found)]


# ---------------------------------------------------------------- how many directions


def compartments(ranges: Sequence[Ranges], dimensions: int, share: str) -> list[Compartment]:
    """Give directions to compartments, never more to one than it has weights.

    share:
        size    `dimensions` in all, split in proportion to the weights
        equal   `dimensions` in all, split evenly
        each    `dimensions` for every compartment
    """
    sizes = [sum(stop - start for start, stop in pieces) for pieces in ranges]
    if share == "each":
        counts = [dimensions] * len(sizes)
    else:
        counts = split(dimensions, sizes if share == "size" else [1] * len(sizes))
    return [Compartment(pieces, min(d, size)) for pieces, d, size in zip(ranges, counts, sizes)]


def dynamic(tensors: Sequence[Tensor], compression: float, exponent: float = 1.0) -> list[Compartment]:
    """One compartment per layer, its d from a compression factor: D_l = compression x d_l^exponent, rounded.

    With exponent 1 every layer is compressed alike; with 1.2 larger layers are compressed more. At least one direction
    and at most D_l. The reference names the two exponents and not its formula; this is ours.
    """
    ranges = by_layer(tensors)
    sizes = [sum(stop - start for start, stop in pieces) for pieces in ranges]
    wanted = [round((size / compression) ** (1.0 / exponent)) for size in sizes]
    return [Compartment(pieces, min(max(1, d), size)) for pieces, d, size in zip(ranges, wanted, sizes)]


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that sum to `total`, at least 1 each, as near to the proportions of `weights` as these allow.

    Largest remainders first, earlier ones first among equals. ValueError for a total below the number of parts.
    """
    if total < len(weights):
        raise ValueError(f"{total} directions for {len(weights)} parts: at least one each; give more, or make fewer")
    spare, sum_of_weights = total - len(weights), sum(weights)
    counts = [1 + spare * weight // sum_of_weights for weight in weights]
    remainders = [spare * weight % sum_of_weights for weight in weights]
    for index in sorted(range(len(weights)), key=lambda index: -remainders[index])[: total - sum(counts)]:
        counts[index] += 1
    return counts


def of_worker(dimensions: int, worker: int, workers: int) -> int:
    """The directions of one of several workers that share `dimensions` among them."""
    return split(dimensions, [1] * workers)[worker]
