"""Rademacher bases, E of +1 and -1: project and expand by look-up in tables of sixteen sums ("four Russians").

A block of Philox, 128 bits, holds 4 rows x 32 columns: word w, nibble n, bit b is column 4 n + w, row b (1 is minus).
Four signs times four numbers have sixteen sums, so a nibble is an index: one permute of a vector that holds the table
looks up sixteen lanes, and 64 entries cost a shift, a permute and an addition.
    project  lane = column, a nibble = 4 rows, the table is of 4 gradients
    expand   lane = row, a nibble = 4 columns, the table is of 4 coordinates; the bits are transposed 4 x 4 in between
The four rows of a block lie 16 apart, so that 16 blocks, a tile, are 64 rows in their order: row 64 t + 16 b + l is
bit b of block row 16 t + l.
Order of sums, part of the contract: four at a time as (x0 + x1) + (x2 + x3), and these one after the other. Project
goes through the rows of each of `PARTS` parts and adds the parts in order; expand goes through the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from learners.bases.philox import LOW, blocks, counting, place, words
from learners.bases.vectors import F32, FLOATS, I64, IOTA, WORDS, Code, emitted

PARTS = 16
"""Parts of the rows that project sums apart: fixed, so that the bits do not depend on the number of threads."""
TILE, COLUMNS, CHUNK = 64, 32, 256
"""Rows of a tile; columns of a block; columns that project does at a time: 8 blocks in 16 registers."""


def signed_sum(code: Code, four: Sequence[Any], bits: Any) -> Any:
    """(±x0 ± x1) + (±x2 ± x3) in each lane; bit k of the lane's word set means minus x_k."""
    signed = []
    for k, x in enumerate(four):
        sign = code.and_(code.shl(bits, 31 - k), 1 << 31)
        signed.append(code.builder.bitcast(code.xor(code.builder.bitcast(x, sign.type), sign), FLOATS))
    return code.fadd(code.fadd(signed[0], signed[1]), code.fadd(signed[2], signed[3]))


class Sums:
    """The sixteen signed sums of four numbers, to be looked up."""

    def __init__(self, code: Code, four: Sequence[Any], table: Any = None) -> None:
        self.code, self.four = code, [code.splat(x, FLOATS) for x in four]
        self.table = signed_sum(code, self.four, IOTA) if table is None else table

    def __getitem__(self, bits: Any) -> Any:
        """The sum that the lowest four bits of each lane choose."""
        if self.code.avx512:
            return self.code.call("llvm.x86.avx512.permvar.sf.512", FLOATS, self.table, bits)
        return signed_sum(self.code, self.four, bits)


def transposed(code: Code, four: Sequence[Any]) -> list[Any]:
    """Bit b of each nibble of vector w becomes bit w of the nibble of vector b."""
    four = list(four)
    for mask, step in ((0x55555555, 1), (0x33333333, 2)):
        for n in (n for n in range(4) if not n & step):
            a, b, other = four[n], four[n + step], mask ^ LOW
            four[n] = code.or_(code.and_(a, mask), code.and_(code.shl(b, step), other))
            four[n + step] = code.or_(code.and_(code.lshr(a, step), mask), code.and_(b, other))
    return four


@emitted
def _project_tiles(code: Code, rows: Any, skip: Any, start: Any, stop: Any, chunk: Any, at: Any, sums: Any) -> None:
    """To sums[16, 16], E^T g over tiles `start` to before `stop`, for one chunk of columns.

    rows[0] is row `skip` of the gradient.
    """
    places = place(code, at)
    columns = counting(code, code.mul(chunk, CHUNK // COLUMNS))
    totals = [code.variable(code.load(sums, I64(16 * n), FLOATS)) for n in range(16)]

    def use(row: Any, *pairs: Any) -> None:
        first = code.sub(code.add(code.mul(code.lshr(row, 4), TILE), code.and_(row, 15)), skip)
        table = Sums(code, [code.load(rows, code.add(first, 16 * b), F32) for b in range(4)])
        for half, pair in enumerate(pairs):
            bits = code.builder.bitcast(pair, WORDS)
            for n in range(8):
                code.add_to(totals[8 * half + n], table[code.lshr(bits, 4 * n)])

    code.pipeline(code.mul(start, 16), code.mul(stop, 16), lambda row: blocks(code, row, columns, places), use)
    for n, total in enumerate(totals):
        code.store(code.builder.load(total), sums, I64(16 * n))


@emitted
def _write_tables(code: Code, coordinates: Any, count: Any, tables: Any) -> None:
    """tables[count, 16]: the sums of each four coordinates."""
    with code.loop(I64(0), count) as group:
        four = [code.load(coordinates, code.add(code.mul(group, 4), w), F32) for w in range(4)]
        code.store(Sums(code, four).table, tables, code.mul(group, 16))


@emitted
def _expand_tiles(
    code: Code, coordinates: Any, tables: Any, first: Any, last: Any, at: Any, start: Any, stop: Any, out: Any
) -> None:
    """To out, E c over blocks of columns from `first` to before `last`, for tiles from `start` to before `stop`."""
    places = place(code, at)
    with code.loop(start, stop) as tile:
        row, to = code.mul(tile, 16), [code.add(code.mul(tile, TILE), 16 * b) for b in range(4)]
        even, odd = (counting(code, code.add(row, n), 2) for n in (0, 1))
        totals = [code.variable(code.load(out, to[b], FLOATS)) for b in range(4)]

        def make(column: Any) -> list[Any]:
            return words(code, *(blocks(code, rows, column, places) for rows in (even, odd)))

        def use(column: Any, *drawn: Any) -> None:
            nibbles = transposed(code, drawn)
            for n in range(8):
                group = code.add(code.mul(column, 8), n)
                four = [code.load(coordinates, code.add(code.mul(group, 4), w), F32) for w in range(4)]
                table = Sums(code, four, code.load(tables, code.mul(group, 16), FLOATS))
                for b in range(4):
                    code.add_to(totals[b], table[code.lshr(nibbles[b], 4 * n)])

        code.pipeline(first, last, make, use)
        for b in range(4):
            code.store(code.builder.load(totals[b]), out, to[b])


@numba.njit(parallel=True, nogil=True, cache=True)
def project(gradient, dimensions, at):  # type: ignore[no-untyped-def]
    """E^T g, float32[dimensions]."""
    whole, chunks = len(gradient) // TILE, (dimensions + CHUNK - 1) // CHUNK
    tail = np.zeros(TILE, np.float32)
    tail[: len(gradient) - whole * TILE] = gradient[whole * TILE :]
    sums = np.zeros((PARTS, chunks, 2, 8, 8, 2), np.float32)
    for part in numba.prange(PARTS):
        start, stop = whole * part // PARTS, whole * (part + 1) // PARTS
        for chunk in range(chunks):
            if start < stop:
                _project_tiles((gradient, 0, start, stop, chunk, at, sums[part, chunk]))
            if part == PARTS - 1 and len(gradient) > whole * TILE:
                _project_tiles((tail, whole * TILE, whole, whole + 1, chunk, at, sums[part, chunk]))
    coordinates = np.empty(dimensions, np.float32)
    for column in range(dimensions):
        chunk, block, n, w = column // CHUNK, column // COLUMNS % 8, column // 4 % 8, column % 4
        total = np.float32(0)
        for part in range(PARTS):
            total += sums[part, chunk, w // 2, n, block, 1 - w % 2]
        coordinates[column] = total
    return coordinates


TILES_AT_ONCE, COLUMNS_AT_ONCE = 32, 16
"""What expand does at a time: 2,048 sums stay in the first-level cache, and so do the tables of 512 coordinates."""


@numba.njit(parallel=True, nogil=True, cache=True)
def expand(coordinates, size, ats):  # type: ignore[no-untyped-def]
    """The sum over keys of E c, float32[size]; coordinates [keys, dimensions], ats [keys, 5]."""
    keys, blocks = len(coordinates), (coordinates.shape[1] + COLUMNS - 1) // COLUMNS
    padded, tables = np.zeros((keys, blocks * COLUMNS), np.float32), np.empty((keys, blocks * 8, 16), np.float32)
    for key in range(keys):
        padded[key, : coordinates.shape[1]] = coordinates[key]
        _write_tables((padded[key], blocks * 8, tables[key]))
    tiles = (size + TILE - 1) // TILE
    out = np.empty(tiles * TILE, np.float32)
    for some in numba.prange((tiles + TILES_AT_ONCE - 1) // TILES_AT_ONCE):
        start, stop = some * TILES_AT_ONCE, min(tiles, (some + 1) * TILES_AT_ONCE)
        out[start * TILE : stop * TILE] = 0
        for key in range(keys):
            for first in range(0, blocks, COLUMNS_AT_ONCE):
                last = min(blocks, first + COLUMNS_AT_ONCE)
                _expand_tiles((padded[key], tables[key], first, last, ats[key], start, stop, out))
    return out[:size]
