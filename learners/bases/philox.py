"""Philox4x32 with 7 rounds: the random words of all bases.

A counter-based generator: block number n of a stream is a function of n and the key, so that any thread can make any
part of a matrix without the rest. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; seven rounds are the fewest of Philox4x32 that pass BigCrush (their table 2), ten are common elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from learners.bases.vectors import I64, PAIRS, WORDS, Code, emitted

ROUNDS = 7
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
LOW = 0xFFFFFFFF


class Key(NamedTuple):
    """Names a random matrix. Keys that differ have streams that share no block: see `stream`.

    Raises nothing by itself; `stream` refuses what is out of range.
    """

    #: of the run, 64 bits
    seed: int
    #: whose directions they are, 16 bits
    worker: int = 0
    #: which draw of this worker, 44 bits: five centuries at a thousand a second
    sequence: int = 0
    #: which part of the weights, 16 bits
    compartment: int = 0


WIDTHS = Key(64, 16, 44, 16)


class Domain:
    """What a stream is used for, 4 bits: uses that one key serves at once share no block either."""

    RADEMACHER, WORDS, SIGNS, ROWS = range(4)


def stream(key: Key, domain: int) -> np.ndarray:
    """Where the blocks of a key lie, uint64[5]: c1 without its lower 16 bits, c2, c3, and Philox's key k0, k1.

    Block (row, column) of the stream has the counter (row, c1 + column, c2, c3), row below 2^32 and column below 2^16:
        k1 k0 = seed    c1 = compartment column    c2 = sequence's lower 32 bits    c3 = domain, upper 12 bits, worker
    Every field has bits of its own, so this is one-to-one: two keys, uses or positions never have key and counter in
    common. For a given k, Philox is a bijection of counters; for others it is the same as another generator, which is
    what the paper tests with keys and counters that differ in single bits, as ours do.
    """
    for name, value, width in zip(Key._fields, key, WIDTHS):
        if not 0 <= value < 1 << width:
            raise ValueError(f"key.{name}: {value} is not a whole number of {width} bits; wanted 0 .. 2^{width} - 1")
    seed, worker, sequence, compartment = map(int, key)
    words = (compartment << 16, sequence & LOW, domain << 28 | sequence >> 32 << 16 | worker, seed & LOW, seed >> 32)
    return np.array(words, np.uint64)


def place(code: Code, at: Any) -> list[Any]:
    """The five numbers of `stream` from the array `at`, as i64."""
    return [code.load(at, I64(n), I64) for n in range(5)]


def blocks(code: Code, row: Any, column: Any, at: list[Any], rounds: int = ROUNDS) -> tuple[Any, Any]:
    """The blocks (row, column) as pairs of words: word 1 | word 0 << 32, and word 3 | word 2 << 32.

    `row` and `column` are i64, each a scalar or a vector of 8. What a round does with scalars alone stays scalar, and
    what does not change in a loop leaves it: that spares up to two of the seven rounds.
    """
    c1, c2, c3, *key = at
    counter = [row, code.or_(c1, column), c2, c3]
    for number in range(rounds):
        p0, p1 = (code.mul(code.and_(counter[n], LOW), m) for n, m in zip((0, 2), MULTIPLIERS))
        keys = [code.and_(code.add(word, number * w), LOW) for word, w in zip(key, WEYL)]
        x0, x1 = (code.xor(counter[n], word) for n, word in zip((1, 3), keys))
        if number < rounds - 1:
            # The upper halves of the second and fourth word hold what is left over; nothing reads them.
            counter = [code.xor(code.lshr(p1, 32), x0), p1, code.xor(code.lshr(p0, 32), x1), p0]
    return code.xor(p1, code.shl(x0, 32)), code.xor(p0, code.shl(x1, 32))


def words(code: Code, even: tuple[Any, Any], odd: tuple[Any, Any]) -> list[Any]:
    """Words 0 to 3 of 16 blocks, as four vectors: those of `even` in the even lanes, of `odd` in the odd ones."""
    first, second = ([code.builder.bitcast(pair, WORDS) for pair in half] for half in zip(even, odd))
    lower, upper = ([n + lane for lane in range(0, 16, 2) for n in (k, 16 + k)] for k in (0, 1))
    return [code.lanes(a, b, chosen) for a, b in (first, second) for chosen in (upper, lower)]


def counting(code: Code, start: Any, step: int = 1) -> Any:
    """start, start + step, ... as 8 lanes of i64."""
    return code.add(code.splat(start, PAIRS), PAIRS([n * step for n in range(8)]))


@emitted
def write_words(code: Code, out: Any, row: Any, at: Any) -> None:
    """For Numba: words of the blocks (row, 0) .. (row + 7, 0) into out uint32[32]: all pairs (1, 0), then (3, 2)."""
    for n, pair in enumerate(blocks(code, counting(code, row), I64(0), place(code, at))):
        code.store(code.builder.bitcast(pair, WORDS), out, I64(16 * n))
