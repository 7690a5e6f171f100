"""Arrays as a file or a user gave them, checked and split into training, validation and test rows. Pure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.formats import Arrays, fault
from learners.batches import Dataset, Split, permutation
from learners.options import Data
from learners.seeds import derive


def split(found: Arrays, data: Data, greatest: int, classes: int | None) -> Dataset:
    """The data set in `found`, its validation rows taken from the training rows as `data` says.

    Inputs of type uint8 are scaled by 1 / `greatest`. `classes` is None where the labels tell how many there are.
    Raises DataError for whatever does not fit together.
    """
    names = found.names
    inputs = [_inputs(names[part], found.arrays[part]) for part in (0, 2)]
    shape, test_shape = (found.arrays[part].shape[1:] for part in (0, 2))
    for what, got, wanted in (("features", test_shape, shape), ("type", inputs[1].dtype, inputs[0].dtype)):
        if got != wanted:
            raise fault(names[2], f"{what} {got}", f"{wanted} as in {names[0]}", "give both alike")
    labels = [_labels(names[part], found.arrays[part], names[part - 1], len(found.arrays[part - 1])) for part in (1, 3)]
    rest, apart = _apart(data.validation, len(inputs[0]), Path(data.name).name)
    return Dataset(
        name=data.name,
        source=found.source,
        classes=_classes((names[1], names[3]), labels, classes),
        train=_fixed(inputs[0][rest], labels[0][rest]),
        validation=_fixed(inputs[0][apart], labels[0][apart]),
        test=_fixed(inputs[1], labels[1]),
        shape=shape,
        scale=1.0 if inputs[0].dtype == np.float32 else 1 / greatest,
        offset=0.0,
    )


def _fixed(inputs: NDArray[Any], labels: NDArray[np.int32]) -> Split:
    # Read-only here too, as the object store's arrays are: what would fail on a cluster fails everywhere.
    inputs.setflags(write=False)
    labels.setflags(write=False)
    return Split(inputs, labels)


def _inputs(where: str, x: NDArray[Any]) -> NDArray[Any]:
    """[n, ...] as contiguous [n, F] of uint8 or float32, copied only where it must be."""
    if x.ndim < 2 or not x.size:
        raise fault(where, f"shape {x.shape}", "[rows, features...] with at least one of each", "reshape it")
    if x.dtype.kind != "f" and x.dtype != np.uint8:
        raise fault(where, f"type {x.dtype}", "uint8 (scaled by 1/255) or floats (taken as they are)", "convert it")
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            found = f"{x[tuple(bad[0])]} at {tuple(map(int, bad[0]))} and {len(bad) - 1} more"
            raise fault(where, found, "finite numbers (as float32)", "remove or replace those rows")
    return np.ascontiguousarray(x).reshape(len(x), -1)


def _labels(where: str, y: NDArray[Any], images: str, rows: int) -> NDArray[np.int32]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        remedy = "use argmax(axis=1) where they are one-hot" if y.ndim == 2 else "reshape them"
        raise fault(where, f"shape {y.shape}", "[rows] or [rows, 1]", remedy)
    if len(y) != rows:
        raise fault(where, f"{len(y):,} labels", f"{rows:,}, one for each row of {images}", "see which of them is cut")
    whole = y.dtype.kind in "iu" or (y.dtype.kind == "f" and bool((y == np.floor(y)).all()))
    if not whole or y.min() < 0 or y.max() >= 2**31:
        found = f"{y.dtype} of {y.min()} .. {y.max()}" if y.dtype.kind in "iuf" else f"type {y.dtype}"
        raise fault(where, found, "whole numbers 0 .. classes - 1", "number the classes from 0")
    # A view, so that what is made read-only is not the user's own array.
    return np.ascontiguousarray(y, np.int32).view()


def _classes(names: Sequence[str], labels: list[NDArray[np.int32]], known: int | None) -> int:
    """C; of a named set the labels lie below it, of a user's every number up to the greatest occurs."""
    greatest = max(int(part.max()) for part in labels)
    if known is not None:
        for where, part in zip(names, labels, strict=True):
            if part.max() >= known:
                raise fault(where, f"label {part.max()}", f"0 .. {known - 1}", "fetch the file again")
        return known
    present = np.union1d(*labels)
    if greatest < 1 or len(present) != greatest + 1:
        found = f"{len(present)} classes numbered {present[0]} .. {greatest}"
        raise fault(names[0], found, "at least two, all of 0 .. classes - 1", "number the classes from 0 without gaps")
    return greatest + 1


def _apart(validation: int | float, rows: int, key: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Row numbers for training and for validation, both ascending."""
    count = validation if isinstance(validation, int) else round(validation * rows)
    if not 1 <= count < rows:
        found = f"{validation} of {rows:,} training rows, which sets {count:,} apart"
        raise fault("data.validation", found, f"1 .. {rows - 1:,} rows", "change it, or give more training rows")
    order = permutation(derive(0, "validation", key), rows)
    return np.sort(order[count:]), np.sort(order[:count])
