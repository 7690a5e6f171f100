"""Embeddings and gradients in fewer bytes: numbers of another type, and one scale for all of an array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from learners.options import Precision

LARGEST = 127
"""Of int8: the range is symmetric, so that a sign costs nothing."""


def encoded(values: NDArray[np.float32], precision: Precision) -> tuple[NDArray[np.generic], float]:
    """The numbers to send, and the scale that makes them what they stand for.

    float16: the scale is a power of two near the greatest value, so each comes back within 2^-11 of itself or 2^-25
    of the greatest. int8: within 1/254 of the greatest. What is not finite is sent as it is, to be refused there.
    """
    greatest = float(np.abs(values).max(initial=0.0))
    if precision == "float32" or not 0.0 < greatest < np.inf:
        return values, 1.0
    if precision == "float16":
        scale = float(2.0 ** np.clip(np.ceil(np.log2(greatest)), -100, 127))
        return (values * np.float32(1.0 / scale)).astype(np.float16), scale
    scale = greatest / LARGEST
    return np.rint(values / np.float32(scale)).astype(np.int8), scale


def decoded(numbers: NDArray[np.generic], scale: float) -> NDArray[np.float32]:
    """What was meant. Numbers of type float32 are returned as they are."""
    if numbers.dtype == np.float32:
        return numbers  # type: ignore[return-value]
    values: NDArray[np.float32] = numbers.astype(np.float32)
    values *= np.float32(scale)
    return values
