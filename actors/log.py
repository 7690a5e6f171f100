"""The log of a group: every update that counts, in the order in which it came. It is the run.

    log/updates.log    records: length, crc32, kind | content          9 bytes + content

The first record names the format and what the group has in common, the starting weights among it. Records are only
added. What a kill or a lost page has damaged ends the reading, and is said with its place; a writer that goes on puts
it aside first. Written when `append` returns, so a killed process loses nothing; on the disk within `sync_seconds`.
"""

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from actors import checkpoint
from learners.group import parcels
from learners.group.alike import unlike
from learners.group.parcels import Holds
from learners.group.replay import Ended, Entry, Mark
from learners.group.sums import Sums
from learners.rbd.clocks import Clock

FORMAT = 1
NAME = "updates.log"
SNAPSHOTS = "snapshot-*.safetensors"
SYNC_SECONDS = 1.0
"""How long a record may be in the operating system's memory alone; half of what is promised."""
_HEAD = struct.Struct("<IIB")
_HEADER, _UPDATES, _ENDED, _MARK = range(4)
_LARGEST = 1 << 30
"""Bytes of a record: a length beyond it is damage, and not to be waited for."""


class Damaged(ValueError):
    """The log can't be read beyond a place."""

    def __init__(self, path: Path, end: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {end}: {reason}; everything before it is good")
        self.path, self.end, self.reason = path, end, reason

    def __reduce__(self) -> Any:
        return Damaged, (self.path, self.end, self.reason)


class Header(msgspec.Struct, frozen=True):
    """The first record."""

    format: int
    traits: dict[str, str]  #: what members have in common (`learners.group.alike`)


# ---------------------------------------------------------------- reading


def header(path: Path) -> Header:
    """Of a log. Damaged where it has none, ValueError where it is of another format."""
    with path.open("rb") as file:
        kind, content, _ = _record(file.read(_HEAD.size), file.read, path, 0)
    if kind != _HEADER:
        raise Damaged(path, 0, "it does not begin with a header")
    found = msgspec.json.decode(content, type=Header)
    if found.format != FORMAT:
        raise ValueError(f"{path}: format {found.format}; {FORMAT} was wanted: use the version that wrote it")
    return found


def read(path: Path, start: int = 0) -> Iterator[tuple[int, Entry]]:
    """Entries from byte `start` on, where a record begins, each with the byte behind it.

    Raises:
        Damaged: after the last good one, where anything is behind that.
    """
    with path.open("rb") as file:
        file.seek(start)
        yield from _entries(file, path, start)


def entries(path: Path, start: int = 0) -> Iterable[Entry]:
    """As `read`, without places."""
    return (entry for _, entry in read(path, start))


def parsed(content: bytes, start: int) -> Iterable[Entry]:
    """As `entries`, of the bytes of a log from `start` on that came from another host."""
    return (entry for _, entry in _entries(BytesIO(content), Path(NAME), start))


def _entries(file: BinaryIO, path: Path, start: int) -> Iterator[tuple[int, Entry]]:
    while head := file.read(_HEAD.size):
        kind, content, end = _record(head, file.read, path, start)
        start = end
        if kind != _HEADER:
            yield end, _entry(kind, content, path, end)


def _record(head: bytes, read: Callable[[int], bytes], path: Path, start: int) -> tuple[int, bytes, int]:
    if len(head) < _HEAD.size:
        raise Damaged(path, start, f"{len(head)} bytes of a record")
    size, checksum, kind = _HEAD.unpack(head)
    if size > _LARGEST:
        raise Damaged(path, start, f"a record of {size} bytes, more than any has")
    content = read(size)
    if len(content) < size:
        raise Damaged(path, start, f"{len(content)} of a record's {size} bytes")
    if _checksum(size, kind, content) != checksum:
        raise Damaged(path, start, "a record whose checksum is another")
    return kind, content, start + _HEAD.size + size


def _checksum(size: int, kind: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(struct.pack("<IB", size, kind)))


def _entry(kind: int, content: bytes, path: Path, end: int) -> Entry:
    if kind == _UPDATES:
        return tuple(parcels.split(content))
    if kind == _ENDED:
        ((whose, taken),) = parcels.from_rows(_table(content)).closed.items()
        return Ended(whose, taken)
    if kind == _MARK:
        node, digest = struct.unpack_from("<iQ", content)
        return Mark(node, parcels.from_rows(_table(content[12:])).clock, digest)
    raise ValueError(f"{path}: a record of kind {kind} before byte {end}; use the version that wrote it")


def _content(entry: Entry) -> tuple[int, bytes]:
    if isinstance(entry, Ended):
        return _ENDED, _rows(Holds(Clock(), {entry.whose: entry.taken}))
    if isinstance(entry, Mark):
        return _MARK, struct.pack("<iQ", entry.node, entry.digest) + _rows(Holds(entry.clock))
    return _UPDATES, parcels.joined(entry)


def _rows(holds: Holds) -> bytes:
    return np.array(parcels.rows(holds), "<i8").tobytes()


def _table(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    return struct.iter_unpack("<4q", content)


# ---------------------------------------------------------------- writing


class Log:
    """Adds to a log; makes it where there is none.

    Args:
        folder: of the log.
        traits: of the group; a log of another one is refused.
        clock: seconds.

    Raises:
        ValueError: the log there is of another group or format.
    """

    def __init__(
        self,
        folder: Path,
        traits: Mapping[str, str],
        *,
        sync_seconds: float = SYNC_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._sync_seconds, self._clock = folder / NAME, sync_seconds, clock
        self.holds, self.sums = Holds(Clock()), Sums()  #: of what is in it
        self.fault = ""  #: what was damaged and put aside
        self._end = 0
        if self._path.exists():
            self._recover(dict(traits))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        self._unsynced: float | None = None  # since when something is not on the disk
        if not self._end:
            self._write(_HEADER, msgspec.json.encode(Header(FORMAT, dict(traits))))
            self.sync()
            checkpoint.sync_folder(folder)

    @property
    def end(self) -> int:
        """Bytes that count."""
        return self._end

    def append(self, *entries: Entry) -> None:
        """Write all of these; they survive this process when it returns.

        Raises:
            OSError: the disk is full or read-only: nothing of them counts, and they may be appended again.
        """
        self._put(b"".join(_framed(*_content(entry)) for entry in entries))
        for entry in entries:
            self._note(entry)
        self.sync_if_due()

    def sync_if_due(self) -> None:
        """Put on the disk what has been waiting for `sync_seconds`; to be called every second or so."""
        if self._unsynced is not None and self._clock() - self._unsynced >= self._sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Put everything on the disk."""
        os.fsync(self._file)
        self._unsynced = None

    def close(self) -> None:
        """The same, and no more is written."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _recover(self, traits: dict[str, str]) -> None:
        try:
            if differ := unlike(header(self._path).traits, traits):
                raise ValueError(f"{self._path}: of another group: {'; '.join(differ)}")
            for end, entry in read(self._path):
                self._note(entry)
                self._end = end
            self._end = self._end or self._path.stat().st_size
        except Damaged as damage:
            self._end = damage.end
            self._put_aside(damage)

    def _put_aside(self, damage: Damaged) -> None:
        """What can't be read is not written over: it may be all that somebody has."""
        folder, mark = self._path.parent, f"damaged-{damage.end}-{time.time_ns()}"
        with self._path.open("r+b") as file:
            file.seek(damage.end)
            checkpoint.write_whole(folder / mark, file.read())
            file.truncate(damage.end)
        for path in folder.glob(SNAPSHOTS):
            if int(path.stem.split("-")[1]) > damage.end:  # the log that it goes with will never be
                path.rename(folder / f"{mark}-{path.name}")
        self.fault = f"{damage}; the rest is now in {mark}"

    def _note(self, entry: Entry) -> None:
        if isinstance(entry, Ended):
            self.holds = Holds(self.holds.clock, {**self.holds.closed, entry.whose: entry.taken})
        elif isinstance(entry, tuple):
            self.holds = Holds(self.holds.clock.add(sent.name for sent in entry), self.holds.closed)
            self.sums = self.sums.add(entry)

    def _write(self, kind: int, content: bytes) -> None:
        self._put(_framed(kind, content))

    def _put(self, content: bytes) -> None:
        end = self._end  # what a failed write has left lies behind it, and is written over
        while content:
            count = os.pwrite(self._file, content, end)
            content, end = content[count:], end + count
        self._end = end
        if self._unsynced is None:
            self._unsynced = self._clock()


def _framed(kind: int, content: bytes) -> bytes:
    return _HEAD.pack(len(content), _checksum(len(content), kind, content), kind) + content
