"""Files of data sets, read into arrays. Nothing is ever unpickled, and every fault of a file has words of its own.

Formats: idx (MNIST and its kin, http://yann.lecun.com/exdb/mnist), CIFAR-10's binary version
(https://www.cs.toronto.edu/~kriz/cifar.html), and numpy's npz with Keras's keys.
"""

import gzip
import math
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Rows in each of CIFAR-10's six files; a row is a byte of label and 3 x 32 x 32 bytes of image, channels first.
CIFAR_ROWS = 10_000
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
KEYS = ("x_train", "y_train", "x_test", "y_test")
KINDS = {1: "labels (1 dimension)", 3: "images (3 dimensions)"}


class DataError(ValueError):
    """Data that can't be used: where, what was found, what was expected, what to do."""


class Absent(DataError):
    """A place does not hold the data, or not all of it; another place may."""


def fault(where: object, found: str, expected: str, remedy: str) -> DataError:
    """The error of all data, in the one form that all share."""
    return DataError(f"{where}: found {found}; expected {expected}; {remedy}")


class Arrays(NamedTuple):
    """A data set as its files give it."""

    #: x_train, y_train, x_test, y_test: x [n, ...] of any number type, y [n] or [n, 1].
    arrays: Sequence[NDArray[Any]]
    #: What each of the four is called in messages.
    names: Sequence[str]
    #: The file, folder or function that gave them.
    source: str


def in_folder(name: str, place: Path) -> Arrays:
    """The set called `name` from `place`: an npz file, or a folder with NAME.npz, the idx files or CIFAR-10's.

    Raises Absent where `place` lacks a file, DataError where a file is faulty.
    """
    # os.path says no where a folder above may not be entered; pathlib raises there.
    if not os.path.exists(place):
        raise Absent(f"{place}: does not exist")
    if not os.path.isdir(place):
        return read_npz(place)
    if (place / f"{name}.npz").is_file():
        return read_npz(place / f"{name}.npz")
    try:
        return _cifar_folder(place) if name == "cifar10" else _idx_folder(place)
    except Absent as error:
        raise Absent(f"{error}, and {name}.npz") from error


def read_idx(path: Path, dimensions: int | None = None) -> NDArray[np.uint8]:
    """The array of an idx file of unsigned bytes, read-only; gzipped or not, whatever its name says.

    `dimensions` 1 (labels) or 3 (images) refuses the other. Raises DataError for whatever is wrong with the file.
    """
    raw = _unzipped(path)
    if len(raw) < 4:
        raise fault(path, f"{len(raw)} bytes", "an idx header", "the file is cut: fetch it again")
    zero, kind, rank = int.from_bytes(raw[:2], "big"), raw[2], raw[3]
    if zero and raw[2:4] == b"\0\0" and raw[1] == 8:
        raise fault(
            path, f"magic {raw[:4].hex()} (little-endian)", "big-endian numbers", "write its header as idx has it"
        )
    if zero or kind != 8 or rank not in KINDS:
        wanted = "magic 00000801 (labels) or 00000803 (images), both unsigned bytes"
        raise fault(path, f"magic {raw[:4].hex()}", wanted, "give an idx file of images or labels")
    if rank != (dimensions or rank):
        raise fault(path, KINDS[rank], KINDS[dimensions or rank], "see whether images and labels are exchanged")
    start = 4 + 4 * rank
    if len(raw) < start:
        raise fault(path, f"{len(raw)} bytes", f"a header of {start}", "the file is cut in its header: fetch it again")
    return _body(path, raw, rank, start)


def _body(path: Path, raw: bytes, rank: int, start: int) -> NDArray[np.uint8]:
    big, little = (tuple(map(int, np.frombuffer(raw, order, rank, 4))) for order in (">u4", "<u4"))
    found, expected = len(raw) - start, math.prod(big)
    sizes = " x ".join(map(str, big))
    if found != expected and found == math.prod(little):
        raise fault(path, f"sizes {sizes} (little-endian)", "big-endian sizes", "write its header as idx has it")
    if found != expected:
        cut = f"{expected - found:,} are missing" if found < expected else f"{found - expected:,} are too many"
        wanted = f"{expected:,} ({sizes}, as its header says)"
        raise fault(path, f"{found:,} bytes after the header", wanted, f"{cut}: fetch the file again")
    if not expected:
        raise fault(path, f"sizes {sizes}", "at least one row", "fetch the file again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(big)


def _unzipped(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise fault(path, error.strerror or str(error), "a readable file", "check its place and permissions") from error
    if not raw:
        raise fault(path, "an empty file", "a file of data", "fetch it again")
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except EOFError as error:
        found = f"{len(raw):,} gzipped bytes that end too early"
        raise fault(path, found, "a whole gzip file", "the file is cut: fetch it again") from error
    except (OSError, zlib.error) as error:
        raise fault(path, f"broken gzip ({error})", "a whole gzip file", "fetch it again") from error


def _idx_folder(folder: Path) -> Arrays:
    paths = [folder / name if (folder / name).is_file() else folder / f"{name}.gz" for name in IDX_FILES]
    missing = [path.stem for path in paths if not path.is_file()]
    if missing:
        raise Absent(f"{folder}: lacks {', '.join(missing)} (plain or .gz)")
    arrays = [read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1, 3, 1), strict=True)]
    return Arrays(arrays, [str(path) for path in paths], str(folder))


def read_npz(path: Path) -> Arrays:
    """The four arrays of an npz file with Keras's keys: x_train, y_train, x_test, y_test."""
    remedy = f"write it with numpy.savez(path, {', '.join(f'{key}={key}' for key in KEYS)}), arrays of numbers"
    if not os.path.isfile(path):
        raise Absent(f"{path}: does not exist")
    try:
        with np.load(path, allow_pickle=False) as archive:
            lacking = [key for key in KEYS if key not in archive]
            if lacking:
                found = f"keys {', '.join(archive) or 'none'}"
                raise fault(path, found, f"also {', '.join(lacking)}", remedy)
            arrays = [archive[key] for key in KEYS]
    except DataError:
        raise
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        # TypeError, before Python 3.11 AttributeError: a file of one array (npy) is no context manager.
        raise fault(path, f"no readable npz ({error})", "an npz file of plain arrays", remedy) from error
    return Arrays(arrays, [f"{path}: {key}" for key in KEYS], str(path))


def _cifar_folder(folder: Path) -> Arrays:
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    images = np.empty((len(CIFAR_FILES) * CIFAR_ROWS, 32, 32, 3), np.uint8)
    labels = np.empty(len(images), np.uint8)
    for number, (where, raw) in enumerate(_cifar_files(folder)):
        wanted = CIFAR_ROWS * 3073
        if len(raw) != wanted:
            raise fault(where, f"{len(raw):,} bytes", f"{wanted:,} ({CIFAR_ROWS:,} rows of 3,073)", "fetch it again")
        rows = np.frombuffer(raw, np.uint8).reshape(CIFAR_ROWS, 3073)
        part = slice(number * CIFAR_ROWS, (number + 1) * CIFAR_ROWS)
        labels[part] = rows[:, 0]
        # Channels last, as Keras gives the set.
        images[part] = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    train, test = slice(0, 5 * CIFAR_ROWS), slice(5 * CIFAR_ROWS, None)
    names = [f"{folder}: {what}" for what in ("images", "labels", "test images", "test labels")]
    return Arrays((images[train], labels[train], images[test], labels[test]), names, str(folder))


def _cifar_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    archive = folder / "cifar-10-binary.tar.gz"
    missing = [name for name in CIFAR_FILES if not (folder / name).is_file()]
    if not missing:
        yield from ((folder / name, _unzipped(folder / name)) for name in CIFAR_FILES)
    elif archive.is_file():
        yield from _cifar_members(archive)
    else:
        pickled = any((folder / name).exists() for name in ("data_batch_1", "cifar-10-batches-py"))
        python = "; the Python version there is pickled, which is never read" if pickled else ""
        raise Absent(f"{folder}: lacks {', '.join(missing)} and {archive.name}{python}")


def _cifar_members(archive: Path) -> Iterator[tuple[Path, bytes]]:
    # Read in place: nothing is unpacked to disk, where a half-unpacked folder could pass for a whole one.
    try:
        with tarfile.open(archive, "r:gz") as tar:
            found = {Path(member.name).name: member for member in tar if member.isfile()}
            for name in CIFAR_FILES:
                stream = tar.extractfile(found[name])
                assert stream is not None
                yield archive / name, stream.read()
    except KeyError as error:
        raise fault(archive, f"no {error}", ", ".join(CIFAR_FILES), "fetch the binary version again") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise fault(archive, f"no whole archive ({error})", "a tar.gz", "fetch it again") from error
