"""The random bases the slow and obvious way, in NumPy: what the kernels are held against.

Philox on whole arrays, E written out in full, sums in the order that the kernels promise, one float32 at a time.
"""

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np

LOW = 0xFFFFFFFF


def philox(counter, key, rounds=7):
    """Four words of each counter, uint64 arrays below 2^32. Salmon et al. 2011."""
    counter, key = [np.asarray(word, np.uint64) for word in counter], [int(word) for word in key]
    shift, low = np.uint64(32), np.uint64(LOW)
    for _ in range(rounds):
        p0, p1 = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        x0, x1 = (counter[n] ^ np.uint64(k) for n, k in zip((1, 3), key, strict=True))
        counter = [(p1 >> shift) ^ x0, p1 & low, (p0 >> shift) ^ x1, p0 & low]
        key = [(key[0] + 0x9E3779B9) & LOW, (key[1] + 0xBB67AE85) & LOW]
    return counter


def words(key, domain, rows, columns):
    """[rows, columns, 4] of a key's stream, uint32, from its definition."""
    seed, worker, sequence, compartment = key
    row, column = np.arange(rows, dtype=np.uint64)[:, None], np.arange(columns, dtype=np.uint64)[None]
    c1 = column + np.uint64(compartment * 2**16)
    c3 = domain * 2**28 + sequence // 2**32 * 2**16 + worker
    counter = np.broadcast_arrays(row, c1, np.uint64(sequence % 2**32), np.uint64(c3))
    return np.stack(philox(counter, (seed % 2**32, seed // 2**32)), axis=-1).astype(np.uint32)


def matrix(basis, key, size):
    """E, float32[D, d], without normalisation."""
    if basis.antithetic:
        half = matrix(basis._replace(dimensions=basis.dimensions // 2, antithetic=False), key, size)
        return np.stack([half, -half], axis=2).reshape(size, -1)
    make = {"rademacher": rademacher, "hadamard": hadamard}.get(basis.distribution)
    return make(basis, key, size) if make else dense(basis, key, size)


def rademacher(basis, key, size):
    tiles, blocks = -(-size // 64), -(-basis.dimensions // 32)
    drawn = words(key, 0, tiles * 16, blocks)
    found = np.empty((tiles, 4, 16, blocks, 8, 4), np.float32)  # tile, b, lane, block, nibble, word
    for b in range(4):
        for nibble in range(8):
            bit = drawn >> np.uint32(4 * nibble + b) & np.uint32(1)
            found[:, b, :, :, nibble] = (1 - 2 * bit.astype(np.float32)).reshape(tiles, 16, blocks, 4)
    return found.reshape(tiles * 64, blocks * 32)[:size, : basis.dimensions]


def dense(basis, key, size):
    drawn = words(key, 1, size, -(-basis.dimensions // 4)).reshape(size, -1)[:, : basis.dimensions]
    if basis.distribution == "uniform":
        return (drawn.view(np.int32) * (math.sqrt(3) / 2**31)).astype(np.float32)
    distance = (drawn & np.uint32(0x7FFFFFFF) | np.uint32(1)).astype(np.float64) / 2**32
    inverse = np.vectorize(NormalDist().inv_cdf)(distance)
    normal = np.where(drawn >> np.uint32(31), inverse, -inverse)
    if basis.distribution == "normal":
        return normal.astype(np.float32)
    return ((np.exp(normal) - math.exp(0.5)) / math.sqrt(math.e**2 - math.e)).astype(np.float32)


def hadamard(basis, key, size):
    length = 1
    while length < size:
        length *= 2
    full = np.ones((1, 1), np.float32)
    while len(full) < length:
        full = np.block([[full, full], [full, -full]])
    # a group of 1,024 signs: eight blocks, words 1 and 0 of each side by side, then 3 and 2
    drawn = words(key, 2, -(-length // 1024) * 8, 1)[:, 0].reshape(-1, 8, 4)
    lanes = np.stack([drawn[:, :, [1, 0]].reshape(-1, 16), drawn[:, :, [3, 2]].reshape(-1, 16)], axis=1)
    row = np.arange(length)
    bits = lanes[row // 1024, row // 512 % 2, row % 16] >> (row // 16 % 32).astype(np.uint32) & np.uint32(1)
    return ((1 - 2 * bits.astype(np.float32))[:, None] * full[:, chosen(key, length, basis.dimensions)])[:size]


def chosen(key, length, count):
    """The rows of the transform, from the definition of `turned`."""
    drawn = words(key, 3, 4, 1)[:, 0]
    # as the kernel reads them: words 1 and 0 of blocks 0, 1, 2, 3
    flat = [int(word) for word in drawn[:, [1, 0]].reshape(-1)]
    half = max(1, -(-(length.bit_length() - 1) // 2))
    rows = list(range(count))
    for turn in range(4):
        factor, addend = flat[2 * turn] | 1, flat[2 * turn + 1]
        rows = [(row * factor + addend) % length for row in rows]
        rows = [row ^ (row >> half) for row in rows]
    return rows


def project(basis, matrix_Dd, gradient_D, parts=16):
    """E^T g in the promised order, float32 (not for Hadamard)."""
    size = len(gradient_D)
    products = matrix_Dd * gradient_D[:, None]
    if basis.distribution == "rademacher":
        whole, padded = size // 64, np.zeros((-(-size // 64) * 64, matrix_Dd.shape[1]), np.float32)
        padded[:size] = products
        x = padded.reshape(-1, 4, 16, matrix_Dd.shape[1]).transpose(1, 0, 2, 3)
        rows = ((x[0] + x[1]) + (x[2] + x[3])).reshape(-1, matrix_Dd.shape[1])
        bounds = [16 * (whole * part // parts) for part in range(parts)] + [len(rows)]
    else:
        rows, bounds = products, [size * part // parts for part in range(parts + 1)]
    total = np.zeros(matrix_Dd.shape[1], np.float32)
    for start, stop in pairwise(bounds):
        part = np.zeros_like(total)
        for row in rows[start:stop]:
            part = part + row
        total = total + part
    return total


def expand(basis, matrix_Dd, coordinates_d):
    """E c in the promised order, float32 (not for Hadamard)."""
    products = matrix_Dd * coordinates_d
    if basis.distribution == "rademacher":
        padded = np.zeros((len(products), -(-len(coordinates_d) // 4) * 4), np.float32)
        padded[:, : len(coordinates_d)] = products
        x = padded.reshape(len(products), -1, 4)
        products = (x[..., 0] + x[..., 1]) + (x[..., 2] + x[..., 3])
    total = np.zeros(len(products), np.float32)
    for column in products.T:
        total = total + column
    return total
