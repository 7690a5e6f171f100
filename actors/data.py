"""The data of a run: found on disk, in a dependency, by a function of the user's or by a download.

`load` is called once per run by the driver, which puts the result into Ray's object store: one copy per host,
read-only, shared by its actors. Inputs stay as found (uint8 or float32); scaling happens batch by batch.
"""

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors import own
from actors.formats import Absent, Arrays, DataError, fault, in_folder, read_npz
from actors.split import split
from learners.batches import Dataset, permutation
from learners.options import Data
from learners.seeds import derive

__all__ = ["DataError", "describe", "load"]

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
#: Seconds until a server must have accepted a connection, and between two pieces of its answer.
TIMEOUTS = (5.0, 10.0)


@dataclass(frozen=True)
class Known:
    """Where a named set is had when the disk lacks it."""

    url: str
    #: Files to fetch from there, with their published checksums.
    files: dict[str, str]
    #: What a user without a network can do.
    remedy: str


KNOWN = {
    "mnist": Known(
        KERAS,
        {"mnist.npz": "sha256:731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"},
        "put mnist.npz or the four idx files into a folder named in data.path",
    ),
    "fashion_mnist": Known(
        KERAS,
        {
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
        "`apt install dataset-fashion-mnist` on Debian, or put the four idx files into a folder named in data.path",
    ),
    "cifar10": Known(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
        "put cifar-10-binary.tar.gz into a folder named in data.path",
    ),
}


def load(data: Data, folder: Path | None = None) -> Dataset:
    """The data set that `data` asks for. `folder` is the run file's: paths and modules are sought from there.

    - `digits`: 8 x 8 images that come with scikit-learn; every fifth row of each label is a test row.
    - `mnist`, `fashion_mnist`, `cifar10`: from `data.path` and nowhere else where it is given (NAME.npz; the idx
      files, plain or gzipped; CIFAR-10's binary version, packed or not). Else the first of: Debian's
      dataset-fashion-mnist; Keras's cache ($KERAS_HOME or ~/.keras; its CIFAR-10 is pickled, so it is not read); this
      project's cache (machworks in the user's cache folder); a download into that, checked by its published checksum.
    - `FILE.npz` with x_train, y_train, x_test, y_test.
    - `module:function` of the user's, which returns ((x_train, y_train), (x_test, y_test)).

    Inputs of type uint8 are scaled by 1/255 (digits: 1/16); floats are taken as they are, as float32. Labels are whole
    numbers 0 .. C-1. Validation rows are drawn from the training rows by the data's name alone, as are the digits'
    test rows: were they drawn by the run's seed, runs with unlike seeds would be measured on unlike rows, and what one
    is validated on another would have learned. Raises DataError: file, what was found, what was expected, what to do.
    """
    found = _find(data, Path(folder or ".").absolute())
    greatest = 16 if data.name == "digits" else 255
    return split(found, data, greatest, 10 if data.name in ("digits", *KNOWN) else None)


def describe(dataset: Dataset) -> str:
    """One line for the start of a run: name, rows of each part, features, classes, bytes, where it was found."""
    parts = {"training": dataset.train, "validation": dataset.validation, "test": dataset.test}
    rows = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    shape = " x ".join(map(str, dataset.shape))
    size = sum(part.nbytes for part in parts.values()) / 1e6
    return (
        f"{dataset.name}: {rows} rows; {dataset.width:,} features ({shape}, {dataset.train.inputs.dtype}), "
        f"{dataset.classes} classes; {size:.1f} MB from {dataset.source}"
    )


def _find(data: Data, folder: Path) -> Arrays:
    if data.name in KNOWN:
        return _named(data.name, folder / Path(data.path).expanduser() if data.path is not None else None)
    npz = data.name.endswith(".npz")
    if not (npz or data.name == "digits" or re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", data.name)):
        choices = ["digits", *KNOWN]
        near = difflib.get_close_matches(data.name, choices, 1)
        remedy = f"did you mean {near[0]!r}?" if near else "name one of these"
        raise fault("data.name", repr(data.name), f"{', '.join(choices)}, FILE.npz or module:function", remedy)
    if data.path is not None:
        wanted = f"data.path only with {', '.join(KNOWN)}"
        raise fault("data.path", f"{data.path!r} with data.name {data.name!r}", wanted, "remove it")
    if data.name == "digits":
        return _digits()
    return read_npz(folder / Path(data.name).expanduser()) if npz else _function(data.name, folder)


def _digits_rows() -> NDArray[np.float64]:
    """64 grey values and the label of each digit: scikit-learn's file, without the 0.7 s of its import."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin if spec and spec.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.column_stack([images, labels])


def _digits() -> Arrays:
    rows = _digits_rows()
    images, labels = rows[:, :-1].astype(np.uint8).reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    order = permutation(derive(0, "test", "digits"), len(labels))
    # Ordered by label, then every fifth: each label gives its fifth, so the split is stratified.
    order = order[np.argsort(labels[order], kind="stable")]
    test = np.zeros(len(labels), bool)
    test[order[::5]] = True
    names = ("digits: images", "digits: labels", "digits: test images", "digits: test labels")
    return Arrays((images[~test], labels[~test], images[test], labels[test]), names, "scikit-learn")


def _named(name: str, place: Path | None) -> Arrays:
    known = KNOWN[name]
    if place is not None:
        try:
            return in_folder(name, place)
        except Absent as error:
            raise Absent(f"data.path: {error}; expected {name} there; {known.remedy}") from error
    tried = []
    for place in _places(name):
        try:
            return in_folder(name, place)
        except Absent as error:
            tried.append(str(error))
    try:
        return in_folder(name, _download(known, _cache() / name))
    except DataError:
        raise
    except (OSError, ValueError) as error:
        # pooch: OSError for network and disk, ValueError for a checksum.
        looked = "".join(f"\n  {line}" for line in (*tried, f"{known.url}: {error}"))
        raise Absent(f"data.name: {name} was not found; {known.remedy}. Looked at, in this order:{looked}") from error


def _places(name: str) -> list[Path]:
    keras = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"
    # A file for mnist: idx files that lie there openly could be of either MNIST.
    places = {"mnist": [keras / "mnist.npz"], "fashion_mnist": [DEBIAN, keras / "fashion-mnist"], "cifar10": []}
    return [*places[name], _cache() / name]


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("machworks"))


def _download(known: Known, folder: Path) -> Path:
    import pooch

    downloader = pooch.HTTPDownloader(timeout=TIMEOUTS, chunk_size=2**20)
    for file, checksum in known.files.items():
        pooch.retrieve(known.url + file, checksum, fname=file, path=folder, downloader=downloader)
    return folder


def _function(name: str, folder: Path) -> Arrays:
    where, expected = f"data.name: {name!r}", "((x_train, y_train), (x_test, y_test)) of arrays"
    result = own.called(where, name, folder, takes="without arguments", expected=expected)
    try:
        (x_train, y_train), (x_test, y_test) = result
        arrays = [np.asarray(array) for array in (x_train, y_train, x_test, y_test)]
    except (TypeError, ValueError) as error:
        raise fault(where, f"a {type(result).__name__} ({error})", expected, "return that") from error
    return Arrays(arrays, [f"{name}: {part}" for part in ("x_train", "y_train", "x_test", "y_test")], name)
