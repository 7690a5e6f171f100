"""What members of a group must have in common to end with the same bits, as short digests that can be compared.

The directions are compared by their bits, not by their options: another generator, another version of a library or a
fault of the compiler shows before anything is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import numpy as np

from learners.group.parcels import VERSION
from learners.rbd.clocks import Name
from learners.rbd.directions import Directions, dimensions
from learners.rbd.replica import Replica
from learners.rbd.workers import Method, Worker

Traits = Mapping[str, str]
"""Digest, by what it is of."""


def traits(method: Method, worker: Worker, seed: int, versions: Mapping[str, str]) -> dict[str, str]:
    """What a group must share. What each may choose for itself (steps, rates) is not among it.

    Args:
        worker: number 0 of the group, who has done nothing yet.
        versions: of the libraries that must agree.
    """
    shared = worker.shared
    rule = shared.grid if isinstance(shared, Replica) else (shared.weight, shared.momentum, shared.nesterov)
    return {
        "seed": str(seed),
        "network": _digest(msgspec.json.encode(method.tensors)),
        "starting weights": _digest(shared.theta.tobytes()),
        "arithmetic": str(rule),
        "coordinates": f"{dimensions(shared.directions)} x {method.precision}",
        "directions": _digest(_bits(shared.directions)),
        "format of parcels": str(VERSION),
        **{f"version of {library}": version for library, version in versions.items()},
    }


def unlike(mine: Traits, theirs: Traits) -> list[str]:
    """What differs, in words; [] for members of one group."""
    words = sorted(mine.keys() | theirs.keys())
    return [
        f"{word}: {theirs.get(word, 'nothing')} came, {mine.get(word, 'nothing')} was wanted"
        for word in words
        if mine.get(word) != theirs.get(word)
    ]


def group_digest(of: Traits) -> bytes:
    """The 8 bytes that every parcel and every log of a group carries."""
    return hashlib.blake2b(msgspec.json.encode(sorted(of.items())), digest_size=8).digest()


def _bits(directions: Directions) -> bytes:
    """Of projections and expansions, as everybody can compute them."""
    size = sum(part.size for part in directions.parts)
    ramp = np.arange(size, dtype=np.float32) % np.float32(251.0) - np.float32(125.0)
    found = []
    # the second one differs with the redrawing, with shared directions, and in every bit of the key
    for name in (Name(0, 0, 0), Name(1, 2, 2**31 - 1)):
        found += [c.tobytes() for c in directions.project(name, ramp)]
        for m, d in enumerate(dimensions(directions)):
            signs = np.where(np.arange(d) % 3, 1.0, -1.0).astype(np.float32)
            found.append(directions.expand(m, [name], signs[None]).tobytes())
    return b"".join(found)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
