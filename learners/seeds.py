"""The one way to derive seeds: every random stream of a run grows from its one seed and words that say what for.

Equal on every host, process, PYTHONHASHSEED and library version: only blake2b and whole numbers are used.
"""

from __future__ import annotations

import hashlib
import operator
from typing import SupportsIndex


def derive(seed: int, *words: str | SupportsIndex) -> int:
    """A 64-bit seed, 0 .. 2^64 - 1, for the purpose that `words` name, such as `derive(seed, "rows", "top", 3)`.

    Lists of words that differ, in a word, its type, the order or the number, give unrelated seeds: ("ab", "c") is not
    ("a", "bc"), and "1" is not 1. Raises TypeError for anything but text and whole numbers.
    """
    digest = hashlib.blake2b(digest_size=8)
    for word in (seed, *words):
        text = ("s" + word if isinstance(word, str) else f"i{operator.index(word)}").encode()
        # The length goes in front, so that no two lists of words run together into the same bytes.
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little")
