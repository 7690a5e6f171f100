"""Rows of data in memory, and which of them make up a learner's batch of any number.

Shapes: n rows, B rows of a batch, F features of a row. Everything random here comes from Philox's raw words, whose
stream numpy keeps from version to version (that of `Generator.permutation` it does not), put in order by a stable sort.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learners.seeds import derive

Rows = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their labels, in the form in which they were found: scaling happens batch by batch."""

    #: [n, F], uint8 or float32, n >= 1, contiguous.
    inputs: NDArray[Any]
    #: [n], int32, each 0 .. classes - 1.
    labels: NDArray[np.int32]

    def __post_init__(self) -> None:
        assert self.inputs.dtype in (np.uint8, np.float32) and self.labels.dtype == np.int32
        assert self.inputs.ndim == 2 and self.labels.shape == self.inputs.shape[:1] and len(self.labels) > 0
        assert self.inputs.flags.c_contiguous and self.labels.flags.c_contiguous

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and labels."""
        return self.inputs.nbytes + self.labels.nbytes

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that are equal exactly where inputs and labels are (bytes, shapes, types).

        A batch that travels by reference is row numbers together with this. Computed once (0.1 s for 55 MB), and
        pickled with the split when it has been.
        """
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.inputs, self.labels):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three disjoint sets of rows and what a learner must know about them."""

    #: What the run file calls it.
    name: str
    #: Where it was found: a folder, a file, a library.
    source: str
    train: Split
    validation: Split
    test: Split
    #: Labels are 0 .. classes - 1.
    classes: int
    #: Of one example before it was laid flat, such as (28, 28); channels last.
    shape: tuple[int, ...]
    #: What a learner sees is inputs * scale + offset.
    scale: float
    offset: float

    @property
    def width(self) -> int:
        """F, the features of a row."""
        return math.prod(self.shape)


def take(split: Split, rows: Rows | Sequence[int]) -> Split:
    """The rows of `split` that are named, in that order, as a split of their own (a copy)."""
    rows = _checked(rows, len(split))
    return Split(split.inputs[rows], split.labels[rows])


def features(split: Split, rows: Rows | Sequence[int], scale: float, offset: float) -> NDArray[np.float32]:
    """inputs[rows] * scale + offset as float32 [B, F]; ValueError for a row that `split` does not have."""
    scaled: NDArray[np.float32] = split.inputs[_checked(rows, len(split))].astype(np.float32)
    scaled *= np.float32(scale)
    scaled += np.float32(offset)
    return scaled


def _checked(rows: Rows | Sequence[int], n: int) -> NDArray[Any]:
    # numpy counts negative rows from the end, which would turn a faulty message into a plausible batch.
    array = np.asarray(rows)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise ValueError(f"rows: found {array.dtype} {array.shape}; expected a list of one or more row numbers")
    if array.min() < 0 or array.max() >= n:
        raise ValueError(f"rows: found {array.min()} .. {array.max()}; expected 0 .. {n - 1}: another data set?")
    return array


def permutation(key: int, n: int) -> Rows:
    """0 .. n - 1 in an order that is drawn by `key` (64 bits), int32 [n]."""
    words = np.random.Philox(key=key).random_raw(n)
    return np.argsort(words, kind="stable").astype(np.int32)


#: A learner reads one epoch, or the seam of two; the few arrays kept (4 n bytes each) serve it from batch to batch.
_epoch = lru_cache(maxsize=4)(permutation)


def rows(seed: int, learner: str, batch: int, batch_size: int, n: int) -> Rows:
    """Row numbers, int32 [batch_size], of batch `batch` (from 0) of the endless stream that `learner` trains on.

    The stream is one permutation of the n rows per epoch, drawn for (seed, learner, epoch), written one after the
    other and cut into batches. So every batch is full, each epoch has every row exactly once, nothing is left over
    where batch_size does not divide n, and a batch may be larger than the data. Any batch is had by its number alone:
    resuming needs no state.
    """
    if batch < 0 or batch_size < 1 or n < 1:
        raise ValueError(f"batch {batch} of {batch_size} from {n} rows: expected a batch >= 0, and at least 1 of both")
    start, stop = batch * batch_size, (batch + 1) * batch_size
    parts = []
    for epoch in range(start // n, (stop - 1) // n + 1):
        order = _epoch(derive(seed, "rows", learner, epoch), n)
        parts.append(order[max(start - epoch * n, 0) : stop - epoch * n])
    return np.concatenate(parts)


def shards(n: int, names: Iterable[str], seed: int) -> dict[str, Rows]:
    """Each learner's own rows (int32, ascending): disjoint, together all n, their sizes 1 apart at most.

    Which rows go to whom depends on the seed and the set of names, not on the order of the names.
    """
    names = sorted(names)
    if not names or len(set(names)) < len(names) or len(names) > n:
        raise ValueError(f"{n} rows for {names}: expected distinct names, and at least one row for each")
    parts = np.array_split(permutation(derive(seed, "shards"), n), len(names))
    return {name: np.sort(part) for name, part in zip(names, parts)}
