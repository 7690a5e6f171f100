"""Every fault of a data file has an error of its own that names the file, what was found and what was expected."""

import gzip
import io
import struct
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from actors import formats
from actors.formats import Absent, DataError, in_folder, read_idx, read_npz


def idx(array, order=">"):
    array = np.asarray(array, np.uint8)
    return struct.pack(f">HBB{array.ndim}I".replace(">", order), 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.uint8([2, 0, 1])


def written(folder, raw, name="train-images-idx3-ubyte"):
    path = folder / name
    path.write_bytes(raw)
    return path


@given(arrays_of.arrays(np.uint8, st.one_of(st.tuples(*[st.integers(1, 4)] * 3), st.tuples(st.integers(1, 9)))))
def test_what_is_written_is_read_gzipped_or_not_whatever_the_name(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("idx")
    for name in ("plain", "named.gz"):
        for raw in (idx(array), gzip.compress(idx(array), 1)):
            got = read_idx(written(folder, raw, name), array.ndim)
            assert got.dtype == np.uint8 and got.shape == array.shape and (got == array).all()


GZ = gzip.compress(idx(IMAGES))
LITTLE_SIZES = idx(IMAGES)[:4] + struct.pack("<3I", *IMAGES.shape) + IMAGES.tobytes()
FAULTS = {
    "cut by one byte": (idx(IMAGES)[:-1], 3, "found 59 bytes after the header; expected 60 .3 x 4 x 5.*1 are missing"),
    "one byte too many": (idx(IMAGES) + b"x", 3, "found 61 bytes after the header; expected 60 .*1 are too many"),
    "cut in the header": (
        idx(IMAGES)[:15],
        3,
        "found 15 bytes; expected a header of 16; the file is cut in its header",
    ),
    "cut in the magic": (idx(IMAGES)[:3], 3, "found 3 bytes; expected an idx header; the file is cut"),
    "empty": (b"", 3, "found an empty file; expected a file of data"),
    "empty when unzipped": (gzip.compress(b""), 3, "found 0 bytes; expected an idx header"),
    "gzip cut by one byte": (GZ[:-1], 3, "found .* gzipped bytes that end too early; expected a whole gzip file"),
    "gzip broken": (GZ[:20] + bytes([GZ[20] ^ 255]) + GZ[21:], 3, "found broken gzip .*; expected a whole gzip file"),
    "little-endian": (struct.pack("<4I", 0x803, *IMAGES.shape), 3, r"found magic 03080000 \(little-endian\)"),
    "little-endian sizes": (LITTLE_SIZES, 3, r"\(little-endian\); expected big-endian sizes"),
    "another magic": (b"\x89PNG" + bytes(40), 3, "found magic 89504e47; expected magic 00000801 .labels. or 00000803"),
    "floats": (b"\0\0\x0d\x01" + bytes(8), 1, "found magic 00000d01; expected .* unsigned bytes"),
    "labels given as images": (idx(LABELS), 3, r"found labels \(1 dimension\); expected images \(3 dimensions\)"),
    "images given as labels": (idx(IMAGES), 1, r"found images \(3 dimensions\); expected labels \(1 dimension\)"),
    "no rows": (idx(np.zeros((0, 4, 5))), 3, "found sizes 0 x 4 x 5; expected at least one row"),
}


@pytest.mark.parametrize("raw, dimensions, message", FAULTS.values(), ids=FAULTS.keys())
def test_each_idx_fault_is_named(tmp_path, raw, dimensions, message):
    path = written(tmp_path, raw)
    with pytest.raises(DataError, match=message) as error:
        read_idx(path, dimensions)
    assert str(error.value).startswith(f"{path}: found ")
    assert not isinstance(error.value, Absent)


def test_no_cut_of_a_file_is_read(tmp_path):
    for raw in (idx(IMAGES), GZ):
        for length in range(len(raw)):
            with pytest.raises(DataError):
                read_idx(written(tmp_path, raw[:length]), 3)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(DataError, match="found No such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(DataError, match="found Is a directory"):
        read_idx(tmp_path)


@pytest.mark.parametrize("name", formats.IDX_FILES)
def test_a_missing_partner_is_named(tmp_path, name):
    for file in formats.IDX_FILES:
        written(tmp_path, idx(LABELS if "labels" in file else IMAGES), file + ".gz")
    assert [len(array) for array in in_folder("mnist", tmp_path).arrays] == [3, 3, 3, 3]
    (tmp_path / f"{name}.gz").unlink()
    with pytest.raises(Absent, match=f"{tmp_path}: lacks {name} .plain or .gz., and mnist.npz"):
        in_folder("mnist", tmp_path)


def npz(path, **changes):
    given = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS, **changes}
    np.savez(path, **{key: value for key, value in given.items() if value is not None})
    return path


def test_an_npz_is_read(tmp_path):
    found = read_npz(npz(tmp_path / "a.npz", extra=LABELS))
    assert [array.tolist() for array in found.arrays] == [IMAGES.tolist(), LABELS.tolist()] * 2
    assert found.source == str(tmp_path / "a.npz")


def test_npz_faults_are_named(tmp_path):
    path = npz(tmp_path / "a.npz", y_test=None, x_test=None)
    with pytest.raises(DataError, match=r"a.npz: found keys x_train, y_train; expected also x_test, y_test; write it"):
        read_npz(path)
    with pytest.raises(Absent, match="b.npz: does not exist"):
        read_npz(tmp_path / "b.npz")
    whole = npz(path).read_bytes()
    for raw in (b"", b"text", whole[:-1], whole[: len(whole) // 2]):
        with pytest.raises(DataError, match=r"a.npz: found no readable npz"):
            read_npz(written(tmp_path, raw, "a.npz"))
    np.save(tmp_path / "one.npy", LABELS)
    with pytest.raises(DataError, match="one.npy: found no readable npz"):
        read_npz(tmp_path / "one.npy")


class Bomb:
    def __reduce__(self):
        return print, ("unpickled",)


def test_nothing_is_unpickled(tmp_path, capsys):
    path = npz(tmp_path / "a.npz", y_train=np.array([Bomb()] * 3, object))
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):
        read_npz(path)
    (tmp_path / "data_batch_1").write_bytes(b"")
    with pytest.raises(Absent, match="pickled, which is never read"):
        in_folder("cifar10", tmp_path)
    assert "unpickled" not in capsys.readouterr().out


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A folder with the six files of 2 rows each: row r of file f has label f and pixels (channel, row, column)."""
    monkeypatch.setattr(formats, "CIFAR_ROWS", 2)
    pixels = np.arange(3072, dtype=np.uint32).astype(np.uint8)
    for number, name in enumerate(formats.CIFAR_FILES):
        rows = [np.concatenate([[number], pixels + row]).astype(np.uint8) for row in range(2)]
        written(tmp_path, np.concatenate(rows).tobytes(), name)
    return tmp_path


def test_cifar_is_read_channels_last(cifar):
    x_train, y_train, x_test, y_test = in_folder("cifar10", cifar).arrays
    assert x_train.shape == (10, 32, 32, 3) and y_train.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert x_test.shape == (2, 32, 32, 3) and y_test.tolist() == [5, 5]
    # Channel c, row i, column j lies at c * 1024 + i * 32 + j of its row in the file.
    assert x_test[1, 3, 7].tolist() == [(channel * 1024 + 3 * 32 + 7 + 1) % 256 for channel in range(3)]
    assert x_test[0, 5, 9, 0] == 5 * 32 + 9


def test_cifar_is_read_packed_and_in_its_folder(cifar, tmp_path_factory):
    other = tmp_path_factory.mktemp("packed")
    with tarfile.open(other / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(cifar, "cifar-10-batches-bin")
    got, wanted = in_folder("cifar10", other), in_folder("cifar10", cifar)
    assert all((one == two).all() for one, two in zip(got.arrays, wanted.arrays, strict=True))
    cifar.rename(other / "cifar-10-batches-bin")
    assert in_folder("cifar10", other).source.endswith("cifar-10-batches-bin")


def test_cifar_faults_are_named(cifar):
    path = cifar / "data_batch_3.bin"
    written(cifar, path.read_bytes()[:-1], path.name)
    with pytest.raises(DataError, match=r"data_batch_3.bin: found 6,145 bytes; expected 6,146 \(2 rows of 3,073\)"):
        in_folder("cifar10", cifar)
    path.unlink()
    with pytest.raises(Absent, match="lacks data_batch_3.bin and cifar-10-binary.tar.gz, and cifar10.npz"):
        in_folder("cifar10", cifar)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(cifar / "data_batch_1.bin", "x/data_batch_1.bin")
    written(cifar, buffer.getvalue(), "cifar-10-binary.tar.gz")
    with pytest.raises(DataError, match="tar.gz: found no 'data_batch_2.bin'"):
        in_folder("cifar10", cifar)
    written(cifar, buffer.getvalue()[:-30], "cifar-10-binary.tar.gz")
    with pytest.raises(DataError, match="tar.gz: found no"):
        in_folder("cifar10", cifar)
