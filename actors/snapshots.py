"""Snapshots beside a group's log: with one, a shorter tail of the log is enough.

log/snapshot-<end>.safetensors   the replica of the first <end> bytes of the log, which is synced before
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from actors import checkpoint
from actors.log import FORMAT, SNAPSHOTS
from learners.group import parcels
from learners.group.alike import group_digest
from learners.group.parcels import Holds
from learners.group.sums import Sums
from learners.rbd.clocks import Clock
from learners.rbd.replica import Replica


@dataclass(frozen=True)
class Snapshot:
    """A replica, and where the log goes on."""

    replica: Replica
    holds: Holds
    sums: Sums
    end: int  #: bytes of the log that are in it


def write(folder: Path, traits: Mapping[str, str], taken: Snapshot, keep: int = 2) -> Path:
    """Write a snapshot beside the log; older ones but the newest `keep` are removed."""
    return put(folder, taken.end, packed(traits, taken), keep)


def packed(traits: Mapping[str, str], taken: Snapshot) -> bytes:
    """A snapshot as a file, for who keeps the log. Its replica may be ahead of `end`, by what the log has behind it."""
    state = {f"replica/{name}": array for name, array in taken.replica.save().items()}
    state |= {"holds": np.array(parcels.rows(taken.holds), np.int64).reshape(-1, 4), "sums": taken.sums.save()}
    about = {"format": FORMAT, "group": group_digest(traits).hex(), "end": taken.end, "digest": taken.replica.digest}
    return checkpoint.pack(state, about)


def put(folder: Path, end: int, content: bytes, keep: int = 2) -> Path:
    """Write what `packed` has made beside the log; older ones but the newest `keep` are removed."""
    path = folder / f"snapshot-{end:015d}.safetensors"
    checkpoint.write_whole(path, content)
    for old in sorted(folder.glob(SNAPSHOTS))[:-keep]:
        old.unlink()
    return path


def newest(
    folder: Path, traits: Mapping[str, str], start: Replica, upto: Clock | None = None
) -> tuple[Snapshot, list[str]]:
    """The newest good snapshot of this group, and what is wrong with each newer one; the start if there is none.

    Args:
        start: the replica that has taken in nothing.
        upto: it must hold nothing beyond this clock.
    """
    ignored: list[str] = []
    for path in sorted(folder.glob(SNAPSHOTS), reverse=True):
        try:
            found = unpacked(path.read_bytes(), traits, start)
        except Exception as error:  # whatever a damaged file makes of the libraries that read it
            ignored.append(f"{path.name} is ignored: {type(error).__name__}: {error}")
            continue
        if upto is None or next(found.holds.clock.beyond(upto), None) is None:
            return found, ignored
    return Snapshot(start, Holds(Clock()), Sums(), 0), ignored


def unpacked(content: bytes, traits: Mapping[str, str], start: Replica) -> Snapshot:
    """What `packed` has made a file of; whatever a damaged one makes of the libraries that read it is raised."""
    state, about = checkpoint.unpack(content)
    if about["format"] != FORMAT or about["group"] != group_digest(traits).hex():
        raise ValueError(f"of format {about['format']} and group {about['group']}, not of this one")
    named = {name.removeprefix("replica/"): array for name, array in state.items() if name.startswith("replica/")}
    replica = start.restore(named)
    if replica.digest != about["digest"]:
        raise ValueError("its digest is not that of its weights")
    holds = parcels.from_rows(map(tuple, state["holds"].tolist()))
    return Snapshot(replica, holds, Sums.restored(state["sums"]), about["end"])
