"""Hadamard bases: E = S H P, random signs, the Walsh-Hadamard matrix of N = 2^k >= D, a random choice of d columns.

N is the next power of two; a gradient is padded with zeros, and rows beyond D are left out of an expansion. Entries are
+1 and -1, and over all N rows the columns are orthogonal: E^T E = N I. The cost is two transforms, whatever d.
Order of sums: butterflies a + b, a - b over pairs that lie a step apart. A pass over the array does several steps in
registers, upward: steps 1 to 8 in vectors and 16 to 128 between them first, then up to five steps a pass. Expand does
the passes the other way round. Each butterfly of a pass stands alone, so threads may share them out in any way.

The rows are `turned` of 0 .. d - 1, a one-to-one map of 0 .. N - 1: four times multiply by an odd number, add, and
fold the upper half onto the lower, with eight words of Philox. So none comes twice, and choosing costs d steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from learners.bases.philox import blocks, counting, place, write_words
from learners.bases.vectors import FLOATS, I64, WORDS, Code, emitted

VECTOR, BLOCK, SIGNS, PARTS = 16, 256, 1024, 16
"""Floats in a vector; in what the innermost pass does at once; signs of eight blocks of Philox; shares of a pass."""


def butterflies(code: Code, vectors: Sequence[Any], steps: Sequence[int]) -> list[Any]:
    """Sum and difference of the vectors that lie a step apart in the list, for each step in turn."""
    vectors = list(vectors)
    for step in steps:
        for n in (n for n in range(len(vectors)) if not n & step):
            a, b = vectors[n], vectors[n + step]
            vectors[n], vectors[n + step] = code.fadd(a, b), code.fsub(a, b)
    return vectors


def lane_butterflies(code: Code, vector: Any, steps: Sequence[int]) -> Any:
    """The same between lanes of one vector."""
    for step in steps:
        partner = code.lanes(vector, vector, [lane ^ step for lane in range(VECTOR)])
        signs = WORDS([1 << 31 if lane & step else 0 for lane in range(VECTOR)])
        vector = code.fadd(partner, code.builder.bitcast(code.xor(code.builder.bitcast(vector, WORDS), signs), FLOATS))
    return vector


def _inner(forward: bool) -> Any:
    def inner(code: Code, data: Any, start: Any, stop: Any, at: Any) -> None:
        """Signs, then steps 1 to 128, of the groups of 1,024 from `start` to before `stop`; backward the signs last."""
        places, steps = place(code, at), (1, 2, 4, 8)
        with code.loop(start, stop) as group:
            pairs = blocks(code, counting(code, code.mul(group, 8)), I64(0), places)
            for quarter in range(SIGNS // BLOCK):
                bits, shift = code.builder.bitcast(pairs[quarter // 2], WORDS), 16 * (quarter % 2)
                first = code.add(code.mul(group, SIGNS), BLOCK * quarter)
                items = [code.load(data, code.add(first, VECTOR * n), FLOATS) for n in range(16)]
                if forward:
                    items = [_signed(code, item, bits, shift + n) for n, item in enumerate(items)]
                    items = butterflies(code, [lane_butterflies(code, item, steps) for item in items], steps)
                else:
                    items = [lane_butterflies(code, item, steps) for item in butterflies(code, items, steps)]
                    items = [_signed(code, item, bits, shift + n) for n, item in enumerate(items)]
                for n, item in enumerate(items):
                    code.store(item, data, code.add(first, VECTOR * n))

    return emitted(inner)


def _signed(code: Code, item: Any, bits: Any, bit: int) -> Any:
    sign = code.and_(code.shl(bits, 31 - bit), 1 << 31)
    return code.builder.bitcast(code.xor(code.builder.bitcast(item, WORDS), sign), FLOATS)


def _outer(count: int) -> Any:
    steps = [1 << n for n in range(count.bit_length() - 1)]

    def outer(code: Code, data: Any, apart: Any, start: Any, stop: Any) -> None:
        """Steps of `apart`, 2 `apart` ... on `count` vectors at once, for such sets number `start` to before `stop`."""
        across = code.builder.sdiv(apart, I64(VECTOR))
        with code.loop(start, stop) as number:
            group, offset = code.builder.sdiv(number, across), code.builder.srem(number, across)
            first = code.add(code.mul(group, code.mul(apart, count)), code.mul(offset, VECTOR))
            places = [code.add(first, code.mul(apart, n)) for n in range(count)]
            items = butterflies(code, [code.load(data, at, FLOATS) for at in places], steps)
            for item, at in zip(items, places):
                code.store(item, data, at)

    return emitted(outer)


_forward, _backward = _inner(True), _inner(False)
_outer_4, _outer_8, _outer_16, _outer_32 = map(_outer, (4, 8, 16, 32))


@numba.njit(parallel=True, nogil=True, cache=True)
def _first_pass(data, at, forward):  # type: ignore[no-untyped-def]
    groups = len(data) // SIGNS
    parts = min(groups, PARTS)
    for part in numba.prange(parts):
        work = (data, groups * part // parts, groups * (part + 1) // parts, at)
        if forward:
            _forward(work)
        else:
            _backward(work)


@numba.njit(parallel=True, nogil=True, cache=True)
def _later_pass(data, apart, bits):  # type: ignore[no-untyped-def]
    sets = len(data) // VECTOR >> bits
    parts = min(sets, PARTS)
    for part in numba.prange(parts):
        work = (data, apart, sets * part // parts, sets * (part + 1) // parts)
        if bits == 2:
            _outer_4(work)
        elif bits == 3:
            _outer_8(work)
        elif bits == 4:
            _outer_16(work)
        else:
            _outer_32(work)


@numba.njit(nogil=True, cache=True)
def _steps(data):  # type: ignore[no-untyped-def]
    """The whole transform of an array that is too short for the passes."""
    step = 1
    while step < len(data):
        for n in range(len(data)):
            if not n & step:
                a, b = data[n], data[n + step]
                data[n], data[n + step] = a + b, a - b
        step *= 2


@numba.njit(nogil=True, cache=True)
def _sign_few(data, at):  # type: ignore[no-untyped-def]
    """The signs of the first of the groups of 1,024."""
    drawn = np.empty(32, np.uint32)
    write_words((drawn, 0, at))
    for n in range(len(data)):
        word = drawn[n // 512 * 16 + n % 16]
        if word >> np.uint32(n // 16 % 32) & np.uint32(1):
            data[n] = -data[n]


def passes(length: int) -> list[tuple[int, int]]:
    """(step, bits) of the passes after the first, as few and as even as five bits a pass allow."""
    bits, found, apart = length.bit_length() - 1 - 8, [], BLOCK
    for left in range(-(-bits // 5), 0, -1):
        some = -(-bits // left)
        found.append((apart, some))
        apart, bits = apart << some, bits - some
    return found


def transform(data: np.ndarray, at: np.ndarray, forward: bool) -> None:
    """In place: H S data (forward), or S H data."""
    if len(data) < SIGNS:
        if forward:
            _sign_few(data, at)
        _steps(data)
        if not forward:
            _sign_few(data, at)
        return
    if forward:
        _first_pass(data, at, True)
    for apart, bits in passes(len(data))[:: 1 if forward else -1]:
        _later_pass(data, apart, bits)
    if not forward:
        _first_pass(data, at, False)


@numba.njit(nogil=True, cache=True)
def turned(count, length, at):  # type: ignore[no-untyped-def]
    """`count` different rows of `length`, a power of two, uint32[count]."""
    drawn, rows = np.empty(32, np.uint32), np.arange(count).astype(np.uint32)
    write_words((drawn, 0, at))
    mask, half = np.uint32(length - 1), np.uint32(1)
    while length > 1 << 2 * half:
        half += np.uint32(1)
    for turn in range(4):
        factor, addend = np.uint32(drawn[2 * turn] | np.uint32(1)), drawn[2 * turn + 1]
        for n in range(count):
            row = np.uint32(np.uint32(np.uint32(rows[n] * factor) + addend) & mask)
            rows[n] = np.uint32(row ^ np.uint32(row >> half))
    return rows


@numba.njit(nogil=True, cache=True)
def _pick(data, rows):  # type: ignore[no-untyped-def]
    picked = np.empty(len(rows), np.float32)
    for n in range(len(rows)):
        picked[n] = data[rows[n]]
    return picked


@numba.njit(nogil=True, cache=True)
def _put(data, rows, coordinates):  # type: ignore[no-untyped-def]
    for n in range(len(rows)):
        data[rows[n]] += coordinates[n]


def length(size: int) -> int:
    """The power of two, at least `size`, that a transform works on."""
    return 1 << max(size - 1, 0).bit_length()


def project(gradient: np.ndarray, dimensions: int, signs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """E^T g, float32[dimensions]; `signs` and `rows` are the streams of the two."""
    data = np.zeros(length(len(gradient)), np.float32)
    data[: len(gradient)] = gradient
    transform(data, signs, True)
    return np.asarray(_pick(data, turned(dimensions, len(data), rows)))


def expand(coordinates: np.ndarray, size: int, signs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """E c, float32[size]."""
    data = np.zeros(length(size), np.float32)
    _put(data, turned(len(coordinates), len(data), rows), coordinates)
    transform(data, signs, False)
    return data[:size]
