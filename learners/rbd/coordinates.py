"""Coordinates on the wire: whole numbers q of a few bits and one shared power of two, c ~ q 2^x.

Nearest rounding, ties to even. The exponent is the least at which nothing overflows:
    int16, int8, int4   x = ceil(log2(max|c| / limit)), limit = 32767, 127, 7
    sign                q = +-1 (+1 for 0), x = round(log2(mean|c|))
    float32             no exponent; the coordinates as they are
In addition the sum of all |q| stays below 2^24: along directions of +-1 every partial sum is then a whole number that
a float32 holds exactly. It costs int16 a bit or two beyond some 500 directions and nothing else anything.

A payload is one signed byte x per compartment, then the q of all compartments, packed: int4 two to a byte (the first in
the low half), sign eight to a byte (1 is +, the first in the lowest bit), little-endian. x = -128 says that all are 0.

Letters: d coordinates of a compartment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BITS = {"float32": 32, "int16": 16, "int8": 8, "int4": 4, "sign": 1}
"""Bits of one coordinate, by precision."""
LIMITS = {"int16": 32767, "int8": 127, "int4": 7, "sign": 1}
"""Largest |q|; the most negative number of a type is not used."""
EXACT = 2**24
"""Float32 holds all whole numbers up to this one."""
NOTHING = -128
"""The exponent of a compartment in which all coordinates are 0."""
LOWEST, HIGHEST = -127, 127


class Quantised(NamedTuple):
    """The coordinates of one compartment."""

    values: NDArray[Any]  #: q, int16 [d]; or float32 [d], the coordinates themselves
    exponent: int  #: x; 0 for float32

    @property
    def coordinates(self) -> NDArray[np.float32]:
        """The numbers q 2^x, float32 [d]; exact."""
        if self.exponent == NOTHING:
            return np.zeros(len(self.values), np.float32)
        return np.ldexp(self.values.astype(np.float32), self.exponent)


def quantise(
    coordinates_d: NDArray[np.floating[Any]], precision: str, floor: int = LOWEST, *, summed: bool = True
) -> Quantised:
    """The nearest q and x.

    Args:
        precision: one of `BITS`.
        floor: least x; what is too small for it is rounded to 0. Signs whose x would be lower are all 0, or they would
            become larger than the coordinates.
        summed: whether the sum of |q| must stay below 2^24; not where each coordinate is a weight of its own.

    Raises:
        ValueError: NaN or infinity among the coordinates, or one of 2^127 or more.
    """
    if not np.isfinite(coordinates_d).all():
        raise ValueError(_not_finite(coordinates_d))
    if precision == "float32":
        return Quantised(coordinates_d.astype(np.float32), 0)
    exact = np.asarray(coordinates_d, np.float64)
    if precision == "sign":
        return _signs(exact, floor)
    exponent = max(floor, _exponent(exact, LIMITS[precision]))
    values = np.rint(np.ldexp(exact, -exponent))
    while summed and np.abs(values).sum() >= EXACT:
        exponent += 1
        values = np.rint(np.ldexp(exact, -exponent))
    return Quantised(values.astype(np.int16), exponent if values.any() else NOTHING)


def _exponent(exact_d: NDArray[np.float64], limit: int) -> int:
    """Least x with max|c| <= limit 2^x."""
    largest = float(np.abs(exact_d).max())
    if largest == 0.0:
        return LOWEST
    fraction, exponent = math.frexp(largest / limit)  # largest / limit = fraction 2^exponent, 1/2 <= fraction < 1
    return _in_range(exponent - (fraction == 0.5))


def _signs(exact_d: NDArray[np.float64], floor: int) -> Quantised:
    mean = float(np.abs(exact_d).mean())
    exponent = round(math.log2(mean)) if mean > 0.0 else LOWEST - 1
    values = np.where(exact_d < 0.0, -1, 1).astype(np.int16)
    if exponent < floor:
        return Quantised(np.zeros_like(values), NOTHING)
    return Quantised(values, _in_range(exponent))


def _in_range(exponent: int) -> int:
    if exponent > HIGHEST:
        raise ValueError(f"coordinates: an exponent of {exponent} was found; at most {HIGHEST} was wanted: diverged?")
    return max(LOWEST, exponent)


def _not_finite(values: NDArray[Any]) -> str:
    found = "NaN" if np.isnan(values).any() else "infinity"
    bad = np.flatnonzero(~np.isfinite(values))
    return (
        f"coordinates: {found} among them ({len(bad)} of {len(values)}, first at {bad[0]}); finite numbers were wanted"
    )


# ---------------------------------------------------------------- bytes


def payload_bytes(dimensions: Sequence[int], precision: str) -> int:
    """Bytes of a payload for compartments of these d."""
    return len(dimensions) + (sum(dimensions) * BITS[precision] + 7) // 8


def encode(parts: Sequence[Quantised], precision: str) -> bytes:
    """The payload of one update, `payload_bytes` long."""
    exponents = np.array([part.exponent for part in parts], np.int8).tobytes()
    values = np.concatenate([part.values for part in parts])
    if precision == "float32":
        return exponents + values.astype("<f4").tobytes()
    if precision == "sign":
        return exponents + np.packbits(values > 0, bitorder="little").tobytes()
    if precision == "int4":
        halves = np.zeros(len(values) + len(values) % 2, np.uint8)
        halves[: len(values)] = values.astype(np.int8).view(np.uint8) & 15
        return exponents + (halves[::2] | halves[1::2] << 4).tobytes()
    return exponents + values.astype("<i2" if precision == "int16" else "i1").tobytes()


def decode(payload: bytes, dimensions: Sequence[int], precision: str) -> list[Quantised]:
    """What `encode` was given.

    Raises:
        ValueError: another length than these d have, NaN or infinity, or bits that `encode` never sets.
    """
    wanted = payload_bytes(dimensions, precision)
    if len(payload) != wanted:
        raise ValueError(
            f"coordinates: {len(payload)} bytes came; {wanted} were wanted for {sum(dimensions)} x {precision}: "
            "other dimensions, compartments or precision at the sender?"
        )
    exponents = np.frombuffer(payload, np.int8, len(dimensions)).tolist()
    values = _unpacked(payload[len(dimensions) :], sum(dimensions), precision)
    parts = np.split(values, np.cumsum(dimensions)[:-1])
    return [_checked(Quantised(values, exponent), precision) for values, exponent in zip(parts, exponents)]


def _unpacked(body: bytes, count: int, precision: str) -> NDArray[Any]:
    if precision == "float32":
        return np.frombuffer(body, "<f4").astype(np.float32)
    if precision == "sign":
        bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
        return _without_padding(bits, count).astype(np.int16) * 2 - 1
    if precision == "int4":
        pairs = np.frombuffer(body, np.uint8)
        halves = _without_padding(np.stack([pairs & 15, pairs >> 4], 1).ravel(), count).astype(np.int16)
        return np.where(halves > 7, halves - 16, halves).astype(np.int16)
    return np.frombuffer(body, "<i2" if precision == "int16" else "i1").astype(np.int16)


def _without_padding(values: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    if values[count:].any():
        raise ValueError("coordinates: bits are set behind the last one; zeros were wanted")
    return values[:count]


def _checked(part: Quantised, precision: str) -> Quantised:
    if precision == "float32":
        if not np.isfinite(part.values).all():
            raise ValueError(_not_finite(part.values))
        if part.exponent:
            raise ValueError(f"coordinates: exponent {part.exponent} beside float32; 0 was wanted")
    elif part.exponent == NOTHING:
        return Quantised(np.zeros_like(part.values), NOTHING)
    elif np.abs(part.values, dtype=np.int64).max() > LIMITS[precision]:
        raise ValueError(f"coordinates: larger than a sender of {precision} makes them")
    return part
