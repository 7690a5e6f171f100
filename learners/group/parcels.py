"""Updates on the wire and in the log: small typed arrays behind a short header. Pure, exact in both directions.

    update   sender, incarnation, sequence, seen, running, size | payload                         20 bytes + payload
    parcel   version, flags, group, node, incarnation, counts | clock rows | updates | crc32      30 bytes + content

Little-endian. A payload is what `coordinates.encode` makes. Where an update has patches (float mode), the highest bit
of its size is set, and its payload is: number of patches, each patch (start, stop, values), then coordinates if any.
A parcel is taken as a whole or refused as a whole, with words; so is an update that its group would not send.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from learners.rbd import coordinates
from learners.rbd.clocks import Clock, Name, Taken
from learners.rbd.replica import Patch, Update

VERSION = 1
_HEAD = struct.Struct("<2sBB8siHII")
_ROW = struct.Struct("<HHIB")
_UPDATE = struct.Struct("<HHIIII")
_SUM = struct.Struct("<I")
_PATCH = struct.Struct("<II")
_MARK = b"mw"
_WITH_CLOCK = 1
_HIGHEST_BIT = 1 << 31
_NONE = _HIGHEST_BIT
"""Set in the start of a patch that has no values."""

HEADER = _UPDATE.size
"""Bytes that an update has beside its payload."""
ENVELOPE = _HEAD.size + _SUM.size
"""Bytes that a parcel has beside clock and updates."""
Whose = tuple[int, int]
"""(sender, incarnation)"""


class Sent(NamedTuple):
    """One update as it travels: everybody passes it on as it is."""

    name: Name
    seen: int  #: updates that its sender had applied when it made this one, its own among them
    running: int  #: what all updates of this incarnation, this one included, add to a digest; mod 2^32
    payload: bytes
    patched: bool = False  #: whether patches are in the payload

    @property
    def nbytes(self) -> int:
        """With its header."""
        return HEADER + len(self.payload)


@dataclass(frozen=True)
class Holds:
    """What a node has of all updates, and what it knows of others."""

    clock: Clock
    closed: Mapping[Whose, Taken] = field(
        default_factory=dict
    )  #: incarnations that have ended: all that will ever count
    logged: Clock = field(default_factory=Clock)  #: what the log has, as far as is known here


@dataclass(frozen=True)
class Parcel:
    """What one node hands to a neighbour in one call."""

    node: int  #: number of a worker, or -1 - number of a relay
    incarnation: int
    updates: tuple[Sent, ...] = ()
    holds: Holds | None = None  #: not in every parcel

    @property
    def payload(self) -> int:
        """Bytes of coordinates, which is what methods are compared by; all others are headers."""
        return sum(len(sent.payload) for sent in self.updates)


# ---------------------------------------------------------------- one update


def packed(update: Update, precision: str, seen: int, running: int) -> Sent:
    """An update as its sender lets it go."""
    payload = coordinates.encode(update.parts, precision) if update.parts else b""
    if update.patches:
        payload = struct.pack("<H", len(update.patches)) + b"".join(map(_patch, update.patches)) + payload
    return Sent(update.name, seen, running & 0xFFFFFFFF, payload, bool(update.patches))


def unpacked(sent: Sent, dimensions: Sequence[int], precision: str, size: int) -> Update:
    """What `packed` was given.

    Args:
        size: D.

    Raises:
        ValueError: with the sender's name: not what a member of a group of these d and this precision makes.
    """
    try:
        patches, payload = _patches(sent.payload, size) if sent.patched else ((), sent.payload)
        parts = () if sent.patched and not payload else coordinates.decode(payload, dimensions, precision)
    except ValueError as error:
        raise ValueError(f"{sent.name}: {error}") from None
    return Update(sent.name, tuple(parts), patches)


def _patch(patch: Patch) -> bytes:
    if patch.values is None:
        return _PATCH.pack(patch.start | _NONE, patch.stop)
    return _PATCH.pack(patch.start, patch.stop) + patch.values.astype("<f4").tobytes()


def _patches(payload: bytes, size: int) -> tuple[tuple[Patch, ...], bytes]:
    found, at = [], 2
    for _ in range(int.from_bytes(payload[:2], "little")):
        if len(payload) < at + _PATCH.size:
            raise ValueError("patches: cut short; another version of machworks at the sender?")
        start, stop = _PATCH.unpack_from(payload, at)
        at += _PATCH.size
        empty, start = bool(start & _NONE), start & ~_NONE
        end = at + (0 if empty else 4 * (stop - start))
        if not start < stop <= size or len(payload) < end:
            raise ValueError(f"patches: one for weights {start} to {stop} of {size} in {len(payload)} bytes")
        if empty:
            found.append(Patch(start, stop, None))
            continue
        values = np.frombuffer(payload[at:end], "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"patches: NaN or infinity for weights {start} to {stop}; finite numbers were wanted")
        found.append(Patch(start, stop, values))
        at = end
    return tuple(found), payload[at:]


# ---------------------------------------------------------------- several in a row, as in parcels and in the log


def joined(updates: Iterable[Sent]) -> bytes:
    """Updates one after the other."""
    return b"".join(
        _UPDATE.pack(*one.name, one.seen, one.running, len(one.payload) | (_HIGHEST_BIT if one.patched else 0))
        + one.payload
        for one in updates
    )


def split(content: bytes) -> Iterator[Sent]:
    """What `joined` was given; ValueError where the last one is cut."""
    at = 0
    while at < len(content):
        if len(content) < at + HEADER:
            raise ValueError(f"updates: {len(content) - at} bytes behind the last one; {HEADER} or none were wanted")
        sender, incarnation, sequence, seen, running, size = _UPDATE.unpack_from(content, at)
        start, patched = at + HEADER, bool(size & _HIGHEST_BIT)
        at = start + (size & ~_HIGHEST_BIT)
        if len(content) < at:
            raise ValueError(f"updates: {len(content) - start} bytes of one of {at - start}")
        yield Sent(Name(sender, incarnation, sequence), seen, running, content[start:at], patched)


def rows(holds: Holds) -> list[tuple[int, int, int, int]]:
    """Sender, incarnation, sequence, kind: 0 all below it are there, 1 it alone is; 2, 3 closed; 4, 5 logged."""
    clocks = (holds.clock, Clock(dict(holds.closed)), holds.logged)
    return [(*row[:3], row[3] + 2 * which) for which, clock in enumerate(clocks) for row in clock.save().tolist()]


def from_rows(table: Iterable[tuple[int, int, int, int]]) -> Holds:
    """What `rows` was given; ValueError for a table that it never makes."""
    clocks: tuple[dict[Whose, Taken], ...] = ({}, {}, {})
    for sender, incarnation, sequence, kind in table:
        whose, alone = (sender, incarnation), bool(kind & 1)
        if kind > 5 or (whose in clocks[kind >> 1]) != alone:
            raise ValueError(f"clock: a row ({sender}, {incarnation}, {sequence}, {kind}) out of place")
        there = clocks[kind >> 1]
        there[whose] = Taken(there[whose].below, there[whose].early | {sequence}) if alone else Taken(sequence)
    return Holds(Clock(clocks[0]), clocks[1], Clock(clocks[2]))


# ---------------------------------------------------------------- parcels


def encode(parcel: Parcel, group: bytes) -> bytes:
    """A parcel of a group, known by its digest of 8 bytes (`learners.group.alike`)."""
    table = [] if parcel.holds is None else rows(parcel.holds)
    flags = 0 if parcel.holds is None else _WITH_CLOCK
    counts = (len(table), len(parcel.updates))
    head = _HEAD.pack(_MARK, VERSION, flags, group, parcel.node, parcel.incarnation, *counts)
    content = head + b"".join(_ROW.pack(*row) for row in table) + joined(parcel.updates)
    return content + _SUM.pack(zlib.crc32(content))


def decode(content: bytes, group: bytes) -> Parcel:
    """What `encode` was given.

    Raises:
        ValueError: it is cut or damaged, no parcel, of another version, or of another group.
    """
    if len(content) < ENVELOPE or not content.startswith(_MARK):
        raise ValueError(f"parcel: {len(content)} bytes that are no parcel of machworks")
    _, version, flags, came, node, incarnation, row_count, count = _HEAD.unpack_from(content)
    if version != VERSION:
        raise ValueError(f"parcel: format {version} came, {VERSION} was wanted: install one version on all hosts")
    if zlib.crc32(content[: -_SUM.size]) != _SUM.unpack(content[-_SUM.size :])[0]:
        raise ValueError(f"parcel: {len(content)} bytes that are cut or damaged: their checksum is another")
    if came != group:
        raise ValueError(f"parcel: of group {came.hex()}, not {group.hex()}: another seed, network, basis or version")
    body = memoryview(content)[_HEAD.size : -_SUM.size]
    cut = row_count * _ROW.size
    if len(body) < cut:
        raise ValueError(f"parcel: {len(body)} bytes for a clock of {row_count} rows")
    table, updates = list(_ROW.iter_unpack(body[:cut])), tuple(split(bytes(body[cut:])))
    if len(updates) != count:
        raise ValueError(f"parcel: {len(updates)} updates where {count} were announced")
    return Parcel(node, incarnation, updates, from_rows(table) if flags & _WITH_CLOCK else None)
