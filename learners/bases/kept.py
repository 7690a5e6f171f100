"""A basis that is kept in memory: worth it where D is small and the directions are used many times.

The sums are those of the kernels that make E as they go, in the same order, so keeping a basis changes no bit of a run.
Two exceptions, which differ in rounding: Hadamard's, which the transform sums otherwise, and normalised columns.
One thread does the work.
"""

from __future__ import annotations

import numba
import numpy as np

from learners.bases import Basis, _half, check, expand
from learners.bases.philox import Key
from learners.bases.signs import PARTS, TILE


def draw(basis: Basis, key: Key, size: int) -> np.ndarray:
    """E, float32[D, d], D = `size`."""
    check(basis, size)
    if basis.antithetic:
        half = draw(_half(basis), key, size)
        return np.stack([half, -half], axis=2).reshape(size, -1)
    matrix = np.empty((size, basis.dimensions), np.float32)
    for column, unit in enumerate(np.eye(basis.dimensions, dtype=np.float32)):
        matrix[:, column] = expand(basis, key, unit, size)
    return matrix


def project_kept(basis: Basis, matrix_Dd: np.ndarray, gradient_D: np.ndarray) -> np.ndarray:
    """E^T g of a drawn E, float32[d]."""
    if basis.antithetic:
        half = project_kept(_half(basis), np.ascontiguousarray(matrix_Dd[:, ::2]), gradient_D)
        return np.stack([half, -half], axis=1).reshape(-1)
    sum_up = _project_by_four if basis.distribution == "rademacher" else _project_by_one
    return np.asarray(sum_up(matrix_Dd, gradient_D))


def expand_kept(basis: Basis, matrix_Dd: np.ndarray, coordinates_d: np.ndarray) -> np.ndarray:
    """E c of a drawn E, float32[D]."""
    if basis.antithetic:
        halved = np.ascontiguousarray(matrix_Dd[:, ::2])
        return expand_kept(_half(basis), halved, coordinates_d[::2] - coordinates_d[1::2])
    sum_up = _expand_by_four if basis.distribution == "rademacher" else _expand_by_one
    return np.asarray(sum_up(matrix_Dd, coordinates_d))


@numba.njit(nogil=True, cache=True)
def _project_by_one(matrix, gradient):  # type: ignore[no-untyped-def]
    rows, columns = matrix.shape
    sums = np.zeros((PARTS, columns), np.float32)
    for part in range(PARTS):
        for row in range(rows * part // PARTS, rows * (part + 1) // PARTS):
            for column in range(columns):
                sums[part, column] += matrix[row, column] * gradient[row]
    return _in_order(sums)


@numba.njit(nogil=True, cache=True)
def _project_by_four(matrix, gradient):  # type: ignore[no-untyped-def]
    rows, columns = matrix.shape
    whole, sums = rows // TILE, np.zeros((PARTS, columns), np.float32)
    for part in range(PARTS):
        last = whole * (part + 1) // PARTS + (part == PARTS - 1 and rows > whole * TILE)
        four, x = np.zeros((4, columns), np.float32), np.zeros(4, np.float32)
        for tile in range(whole * part // PARTS, last):
            for lane in range(TILE // 4):
                for b in range(4):
                    row = tile * TILE + 16 * b + lane
                    x[b] = gradient[row] if row < rows else np.float32(0)
                    four[b] = matrix[min(row, rows - 1)]
                for column in range(columns):
                    first = four[0, column] * x[0] + four[1, column] * x[1]
                    sums[part, column] += first + (four[2, column] * x[2] + four[3, column] * x[3])
    return _in_order(sums)


@numba.njit(nogil=True, cache=True)
def _in_order(sums):  # type: ignore[no-untyped-def]
    total = sums[0].copy()
    for part in range(1, PARTS):
        total += sums[part]
    return total


@numba.njit(nogil=True, cache=True)
def _expand_by_one(matrix, coordinates):  # type: ignore[no-untyped-def]
    out = np.zeros(len(matrix), np.float32)
    for row in range(len(matrix)):
        total = np.float32(0)
        for column in range(len(coordinates)):
            total += matrix[row, column] * coordinates[column]
        out[row] = total
    return out


@numba.njit(nogil=True, cache=True)
def _expand_by_four(matrix, coordinates):  # type: ignore[no-untyped-def]
    rows, columns = matrix.shape
    groups = (columns + 3) // 4
    out, padded = np.zeros(rows, np.float32), np.zeros(groups * 4, np.float32)
    padded[:columns] = coordinates
    for row in range(rows):
        x, total = np.zeros(groups * 4, np.float32), np.float32(0)
        x[:columns] = matrix[row]
        x *= padded
        for group in range(groups):
            total += (x[4 * group] + x[4 * group + 1]) + (x[4 * group + 2] + x[4 * group + 3])
        out[row] = total
    return out
