"""Checkpoint sets: one file per learner, and a manifest that makes the set complete.

    checkpoints/000003/top.safetensors ...   checkpoints/000003/manifest.json

A file is written beside its place, synced and renamed; the manifest comes last, with the size and digest of every file.
So a kill at any byte leaves whole sets and one partial set, which is recognised by what it lacks. Nothing is unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from learners.records import file_name

MANIFEST = "manifest.json"
State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class CheckpointSet:
    """A complete set."""

    folder: Path
    number: int
    steps: Mapping[str, int]  #: of each learner when it was saved; they differ, as learners have their own pace


def pack(state: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> bytes:
    """One learner's state as a safetensors file; `about` is anything that JSON holds."""
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in state.items()}, {"about": json.dumps(about)})


def unpack(content: bytes) -> tuple[State, dict[str, Any]]:
    """What `pack` was given."""
    from safetensors.numpy import load

    size = int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["about"])
    return load(content), about


def write(folder: Path, number: int, learner: str, *content: Any) -> None:
    """Put one learner's file, given as bytes or arrays in a row, into set `number`; on disk when this returns."""
    place = _set_folder(folder, number)
    place.mkdir(parents=True, exist_ok=True)
    write_whole(place / _file(learner), *content)


def complete(folder: Path, number: int, steps: Mapping[str, int]) -> CheckpointSet:
    """Make set `number` complete: it holds exactly these learners, saved at these steps."""
    place = _set_folder(folder, number)
    files = {}
    for learner, step in steps.items():
        content = (place / _file(learner)).read_bytes()
        files[learner] = {"step": step, "bytes": len(content), "blake2b": _digest(content)}
    write_whole(place / MANIFEST, json.dumps({"format": 1, "set": number, "learners": files}, indent=2).encode())
    sync_folder(folder)
    return CheckpointSet(place, number, dict(steps))


def newest(folder: Path) -> tuple[Optional[CheckpointSet], list[str]]:
    """The newest complete set, and what is wrong with each newer one, in words."""
    ignored: list[str] = []
    for number in sorted(_numbers(folder), reverse=True):
        place = _set_folder(folder, number)
        fault, steps = _examined(place)
        if not fault:
            return CheckpointSet(place, number, steps), ignored
        ignored.append(f"checkpoint set {number} is ignored: {fault}")
    return None, ignored


def read(found: CheckpointSet, learner: str) -> bytes:
    """One learner's file of a complete set."""
    return (found.folder / _file(learner)).read_bytes()


def carry(folder: Path, number: int, found: CheckpointSet, learner: str) -> None:
    """Put a learner's file of a complete set into set `number` too; on disk when this returns."""
    write(folder, number, learner, read(found, learner))


def discard(folder: Path, number: int) -> None:
    """Remove a set that will not become complete."""
    shutil.rmtree(_set_folder(folder, number), ignore_errors=True)


def last_number(folder: Path) -> int:
    """The highest number that any set has, complete or not; -1 where there is none."""
    return max(_numbers(folder), default=-1)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` complete sets, and partial sets older than those."""
    complete_sets = [
        number for number in sorted(_numbers(folder)) if (_set_folder(folder, number) / MANIFEST).is_file()
    ]
    if len(complete_sets) < keep:
        return
    oldest = complete_sets[-keep]
    for number in _numbers(folder):
        if number < oldest:
            discard(folder, number)


def _examined(place: Path) -> tuple[str, dict[str, int]]:
    """What is wrong with a set ("" if nothing), and the steps of its learners."""
    try:
        manifest = json.loads((place / MANIFEST).read_text())
    except FileNotFoundError:
        return "it has no manifest: the run ended while it was saved", {}
    except ValueError:
        return f"{MANIFEST} is not JSON", {}
    for learner, entry in manifest["learners"].items():
        path = place / _file(learner)
        if not path.is_file():
            return f"{path.name} is missing", {}
        content = path.read_bytes()
        if len(content) != entry["bytes"] or _digest(content) != entry["blake2b"]:
            return f"{path.name} is not what the manifest says ({len(content)} bytes, {entry['bytes']} expected)", {}
    return "", {learner: entry["step"] for learner, entry in manifest["learners"].items()}


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit()]


def _file(learner: str) -> str:
    return f"{file_name(learner)}.safetensors"


def _set_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def write_whole(path: Path, *content: Any) -> None:
    """Write a file, from bytes or arrays in a row, whole or not at all; on disk when this returns."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
