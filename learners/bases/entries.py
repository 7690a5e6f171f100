"""Bases whose entries are numbers of 32 bits: uniform, normal, lognormal, each of mean 0 and variance 1.

A block of Philox holds one row x 4 columns, a word an entry. Nothing is stored: project has lane = column, expand
lane = row. Sums are in order of rows within each of `PARTS` parts (project), of columns (expand), one after the other.

The normal is the quantile function of the word, a polynomial of fourth degree in each octave of the distance from the
nearer end: within 4e-5 of the true quantile everywhere, out to 6.2 deviations, symmetric to the bit. (A fair test of
the distribution would need some 10^9 numbers to tell.) The lognormal is exp of it, standardised: excess kurtosis 111.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from learners.bases.philox import blocks, counting, place, words
from learners.bases.signs import PARTS
from learners.bases.vectors import F32, FLOATS, I32, I64, WORDS, Code, emitted

UNIFORM, NORMAL, LOGNORMAL = range(3)
DEGREE, OCTAVES = 4, 32
TILE, CHUNK = 16, 32
"""Rows that expand, columns that project has in its lanes."""


def quantiles() -> np.ndarray:
    """Coefficients of -Phi^-1(m 2^-32) in t - 1.5, m = t 2^e, float32[DEGREE + 1, OCTAVES], highest power first.

    By Newton's divided differences at Chebyshev's nodes, which is plain arithmetic and so the same everywhere; a test
    holds the digest. Octave e stands at (e - 1) mod 32, the lower bits of a float's exponent.
    """
    nodes = [0.5 * math.cos((2 * n + 1) * math.pi / (2 * DEGREE + 2)) for n in range(DEGREE + 1)]
    table = np.zeros((DEGREE + 1, OCTAVES), np.float32)
    for octave in range(31):  # m = 2^31, the middle, stays 0
        values = [-NormalDist().inv_cdf((1.5 + node) * 2.0 ** (octave - 32)) for node in nodes]
        for order in range(1, DEGREE + 1):
            for n in range(DEGREE, order - 1, -1):
                values[n] = (values[n] - values[n - 1]) / (nodes[n] - nodes[n - order])
        powers = [values[DEGREE]]
        for n in range(DEGREE - 1, -1, -1):  # times (x - node), plus the next value
            powers = [a - nodes[n] * b for a, b in zip([*powers, 0.0], [0.0, *powers])]
            powers[-1] += values[n]
        table[:, (octave - 1) % OCTAVES] = powers
    return table


QUANTILES = quantiles()


def _look_up(code: Code, table: Any, row: int, index: Any) -> Any:
    """Item index mod 32 of a row of the table, in each lane."""
    if code.avx512:
        lower, upper = (code.load(table, I64(OCTAVES * row + n), FLOATS) for n in (0, 16))
        return code.call("llvm.x86.avx512.vpermi2var.ps.512", FLOATS, lower, index, upper)
    found = ir.Constant(FLOATS, ir.Undefined)
    index = code.add(code.and_(index, OCTAVES - 1), OCTAVES * row)
    for lane in range(16):
        at = code.builder.zext(code.builder.extract_element(index, I32(lane)), I64)
        found = code.builder.insert_element(found, code.load(table, at, F32), I32(lane))
    return found


def _polynomial(code: Code, x: Any, coefficients: list[Any]) -> Any:
    """Horner's rule, the highest power first."""
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = code.fadd(code.fmul(total, x), coefficient)
    return total


def _uniform(code: Code, bits: Any, table: Any) -> Any:
    """-sqrt 3 .. sqrt 3."""
    return code.fmul(code.builder.sitofp(bits, FLOATS), math.sqrt(3) / 2**31)


def _normal(code: Code, bits: Any, table: Any) -> Any:
    """Bit 31 is the sign, the rest the distance from the end of the distribution, odd so as not to be 0."""
    distance = code.or_(code.and_(bits, 0x7FFFFFFF), 1)
    float_bits = code.builder.bitcast(code.builder.sitofp(distance, FLOATS), WORDS)
    mantissa = code.or_(code.and_(float_bits, 0x7FFFFF), 0x3F800000)
    octave, t = code.lshr(float_bits, 23), code.fsub(code.builder.bitcast(mantissa, FLOATS), 1.5)
    size = _polynomial(code, t, [_look_up(code, table, row, octave) for row in range(DEGREE + 1)])
    sign = code.and_(bits, 1 << 31)
    return code.builder.bitcast(code.xor(code.builder.bitcast(size, WORDS), sign), FLOATS)


def _lognormal(code: Code, bits: Any, table: Any) -> Any:
    """(exp z - e^0.5) / sqrt(e^2 - e); exp z = 2^n 2^f, n whole, |f| <= 0.5, by Taylor's series."""
    y = code.fmul(_normal(code, bits, table), 1 / math.log(2))
    n = code.sub(code.builder.fptosi(code.fadd(y, 16.5), WORDS), 16)
    f = code.fsub(y, code.builder.sitofp(n, FLOATS))
    series = _polynomial(code, f, [code.splat(math.log(2) ** k / math.factorial(k), FLOATS) for k in range(6, -1, -1)])
    power = code.builder.bitcast(code.add(code.builder.bitcast(series, WORDS), code.shl(n, 23)), FLOATS)
    return code.fmul(code.fsub(power, math.sqrt(math.e)), 1 / math.sqrt(math.e**2 - math.e))


def _projecting(entry: Any) -> Any:
    def project_rows(
        code: Code, gradient: Any, squared: Any, table: Any, start: Any, stop: Any, chunk: Any, at: Any, sums: Any
    ) -> None:
        """sums[32] += E^T g (E squared by entry, if so told) over rows, for one chunk of columns."""
        places, columns = place(code, at), counting(code, code.mul(chunk, 8))
        totals = [code.variable(code.load(sums, I64(16 * n), FLOATS)) for n in range(2)]
        square = code.builder.trunc(squared, ir.IntType(1))

        def use(row: Any, *pairs: Any) -> None:
            factor = code.load(gradient, row, F32)
            for total, pair in zip(totals, pairs):
                value = entry(code, code.builder.bitcast(pair, WORDS), table)
                value = code.builder.select(square, code.fmul(value, value), value)
                code.add_to(total, code.fmul(value, factor))

        code.pipeline(start, stop, lambda row: blocks(code, row, columns, places), use)
        for n, total in enumerate(totals):
            code.store(code.builder.load(total), sums, I64(16 * n))

    return emitted(project_rows)


def _expanding(entry: Any) -> Any:
    def expand_tiles(
        code: Code, coordinates: Any, table: Any, first: Any, last: Any, at: Any, start: Any, stop: Any, out: Any
    ) -> None:
        """To out, E c over blocks of columns from `first` to before `last`, for tiles from `start` to before `stop`."""
        places = place(code, at)
        with code.loop(start, stop) as tile:
            row = code.mul(tile, TILE)
            even, odd = (counting(code, code.add(row, n), 2) for n in (0, 1))
            total = code.variable(code.load(out, row, FLOATS))

            def make(column: Any) -> list[Any]:
                return words(code, *(blocks(code, rows, column, places) for rows in (even, odd)))

            def use(column: Any, *drawn: Any) -> None:
                for w, bits in enumerate(drawn):
                    factor = code.load(coordinates, code.add(code.mul(column, 4), w), F32)
                    code.add_to(total, code.fmul(entry(code, bits, table), factor))

            code.pipeline(first, last, make, use)
            code.store(code.builder.load(total), out, row)

    return emitted(expand_tiles)


_project_uniform, _project_normal, _project_lognormal = map(_projecting, (_uniform, _normal, _lognormal))
_expand_uniform, _expand_normal, _expand_lognormal = map(_expanding, (_uniform, _normal, _lognormal))


@numba.njit(parallel=True, nogil=True, cache=True)
def project(kind, gradient, dimensions, at, squared, table):  # type: ignore[no-untyped-def]
    """E^T g, float32[dimensions]; with E's entries squared if `squared` is 1."""
    rows, chunks = len(gradient), (dimensions + CHUNK - 1) // CHUNK
    sums = np.zeros((PARTS, chunks, 2, 8, 2), np.float32)
    for part in numba.prange(PARTS):
        start, stop = rows * part // PARTS, rows * (part + 1) // PARTS
        if start < stop:
            for chunk in range(chunks):
                work = (gradient, squared, table, start, stop, chunk, at, sums[part, chunk])
                if kind == UNIFORM:
                    _project_uniform(work)
                elif kind == NORMAL:
                    _project_normal(work)
                else:
                    _project_lognormal(work)
    coordinates = np.empty(dimensions, np.float32)
    for column in range(dimensions):
        chunk, block, w = column // CHUNK, column // 4 % 8, column % 4
        total = np.float32(0)
        for part in range(PARTS):
            total += sums[part, chunk, w // 2, block, 1 - w % 2]
        coordinates[column] = total
    return coordinates


TILES_AT_ONCE = 128


@numba.njit(parallel=True, nogil=True, cache=True)
def expand(kind, coordinates, size, ats, table):  # type: ignore[no-untyped-def]
    """The sum over keys of E c, float32[size]; coordinates [keys, dimensions], ats [keys, 5]."""
    keys, blocks = len(coordinates), (coordinates.shape[1] + 3) // 4
    padded = np.zeros((keys, blocks * 4), np.float32)
    padded[:, : coordinates.shape[1]] = coordinates
    tiles = (size + TILE - 1) // TILE
    out = np.empty(tiles * TILE, np.float32)
    for some in numba.prange((tiles + TILES_AT_ONCE - 1) // TILES_AT_ONCE):
        start, stop = some * TILES_AT_ONCE, min(tiles, (some + 1) * TILES_AT_ONCE)
        out[start * TILE : stop * TILE] = 0
        for key in range(keys):
            work = (padded[key], table, 0, blocks, ats[key], start, stop, out)
            if kind == UNIFORM:
                _expand_uniform(work)
            elif kind == NORMAL:
                _expand_normal(work)
            else:
                _expand_lognormal(work)
    return out[:size]
