"""Data is found where the docstring of `load` says, in that order, or the error says where it was sought."""

import functools
import gzip
import hashlib
import http.server
import pickle
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

from actors import data, formats
from actors.data import DataError, describe, load
from learners.options import Data


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def put_idx(folder, pixel=7, rows=20):
    """The four idx files, gzipped: images of 2 x 3 whose every pixel is `pixel`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in formats.IDX_FILES:
        array = np.full((rows, 2, 3), pixel, np.uint8) if "images" in name else np.arange(rows, dtype=np.uint8) % 10
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return folder


def put_npz(path, pixel=7, rows=20):
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = np.full((rows, 2, 3), pixel, np.uint8), np.arange(rows) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def pixel(dataset):
    return int(dataset.train.inputs[0, 0])


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without any data set, whose network refuses every connection."""
    monkeypatch.setattr(data, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(data, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    serve_from(monkeypatch, "http://127.0.0.1:9/")
    return tmp_path


def serve_from(monkeypatch, url, **files):
    """Named sets are downloaded from `url`; `files` replaces the checksums of fashion_mnist's."""
    monkeypatch.setenv("NO_PROXY", "*")
    for name, known in data.KNOWN.items():
        changed = files if name == "fashion_mnist" and files else known.files
        monkeypatch.setitem(data.KNOWN, name, data.Known(url, changed, known.remedy))


def test_digits_are_three_disjoint_sets_that_no_seed_changes():
    dataset = load(Data(name="digits", validation=0.15))
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (1221, 216, 360)
    assert dataset.shape == (8, 8) and dataset.classes == 10 and dataset.scale == 1 / 16
    assert dataset.train.inputs.dtype == np.uint8 and dataset.train.inputs.max() == 16
    counts = np.bincount(dataset.test.labels)
    assert counts.min() >= 34 and counts.max() <= 37
    rows = [{row.tobytes() for row in part.inputs} for part in (dataset.train, dataset.validation, dataset.test)]
    assert len(rows[0] | rows[1] | rows[2]) == 1797 == sum(map(len, rows))
    assert load(Data(name="digits", validation=0.15)).train.fingerprint == dataset.train.fingerprint


def test_a_line_describes_the_data():
    line = describe(load(Data(name="digits", validation=137)))
    wanted = "digits: 1,300 training, 137 validation, 360 test rows; 64 features (8 x 8, uint8), 10 classes; 0.1 MB "
    assert line == wanted + "from scikit-learn"


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_a_given_folder_is_the_only_place(bare, name):
    put_idx(bare / "debian")
    put_npz(bare / "keras/datasets/mnist.npz")
    put_idx(bare / "mine", pixel=9)
    assert pixel(load(Data(name=name, path="mine"), bare)) == 9
    assert pixel(load(Data(name=name, path=str(bare / "mine")))) == 9
    put_npz(bare / f"npz/{name}.npz", pixel=11)
    assert pixel(load(Data(name=name, path="npz"), bare)) == 11
    assert pixel(load(Data(name=name, path=f"npz/{name}.npz"), bare)) == 11
    (bare / "mine/t10k-labels-idx1-ubyte.gz").unlink()
    for path, message in (("mine", "lacks t10k-labels-idx1-ubyte"), ("none", "does not exist")):
        with pytest.raises(DataError, match=f"data.path: {bare}/{path}: {message}.*; expected {name} there"):
            load(Data(name=name, path=path), bare)


def test_counts_that_differ_name_both_files(bare):
    put_idx(bare / "mine")
    path = bare / "mine/train-labels-idx1-ubyte.gz"
    path.write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(DataError, match=f"{path}: found 19 labels; expected 20, one for each row of .*train-images"):
        load(Data(name="mnist", path="mine"), bare)


def test_places_are_tried_in_the_documented_order(bare):
    found = []
    for number, place in enumerate(("cache/fashion_mnist", "keras/datasets/fashion-mnist", "debian")):
        put_idx(bare / place, pixel=number)
        found.append(pixel(load(Data(name="fashion_mnist"))))
    assert found == [0, 1, 2]
    put_npz(bare / "cache/mnist/mnist.npz", pixel=3)
    assert pixel(load(Data(name="mnist"))) == 3
    put_npz(bare / "keras/datasets/mnist.npz", pixel=4)
    assert pixel(load(Data(name="mnist"))) == 4


def test_an_incomplete_place_is_passed_over_and_a_faulty_one_is_not(bare):
    put_idx(bare / "debian", pixel=1)
    put_idx(bare / "keras/datasets/fashion-mnist", pixel=2)
    (bare / "debian/train-labels-idx1-ubyte.gz").unlink()
    assert pixel(load(Data(name="fashion_mnist"))) == 2
    (bare / "keras/datasets/fashion-mnist/train-labels-idx1-ubyte.gz").write_bytes(b"")
    with pytest.raises(DataError, match="keras/datasets/fashion-mnist/train-labels-idx1-ubyte.gz: found an empty file"):
        load(Data(name="fashion_mnist"))


@pytest.mark.parametrize("name", list(data.KNOWN))
def test_without_network_every_place_and_the_remedy_are_named(bare, name):
    with pytest.raises(DataError, match=f"data.name: {name} was not found") as error:
        load(Data(name=name))
    text = str(error.value)
    places = [str(place) for place in data._places(name)] + ["http://127.0.0.1:9/"]
    for line, place in zip(text.splitlines()[1:], places, strict=True):
        assert line.strip().startswith(place)
    assert data.KNOWN[name].remedy in text
    assert "dataset-fashion-mnist" in text or name != "fashion_mnist"


@pytest.fixture
def server(tmp_path):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()
        thread.join()


def test_a_download_is_checked_and_kept(bare, server, monkeypatch):
    served = put_idx(bare / "served", pixel=5)
    sums = {path.name: "md5:" + hashlib.md5(path.read_bytes()).hexdigest() for path in served.iterdir()}
    serve_from(monkeypatch, server, **{**sums, "t10k-labels-idx1-ubyte.gz": "md5:" + "0" * 32})
    with pytest.raises(DataError, match="(?s)fashion_mnist was not found.*hash"):
        load(Data(name="fashion_mnist"))
    assert not (bare / "cache/fashion_mnist/t10k-labels-idx1-ubyte.gz").exists()
    serve_from(monkeypatch, server, **sums)
    dataset = load(Data(name="fashion_mnist"))
    assert pixel(dataset) == 5 and dataset.source == str(bare / "cache/fashion_mnist")
    serve_from(monkeypatch, "http://127.0.0.1:9/")
    assert load(Data(name="fashion_mnist")).train.fingerprint == dataset.train.fingerprint


def test_an_npz_is_found_beside_the_run_file(tmp_path):
    put_npz(tmp_path / "sets/own.npz", rows=30)
    dataset = load(Data(name="sets/own.npz", validation=4), tmp_path)
    assert dataset.scale == 1 / 255 and dataset.shape == (2, 3) and len(dataset.train) == 26
    with pytest.raises(DataError, match="own.npz: does not exist"):
        load(Data(name="own.npz"), tmp_path)


MODULE = """
import numpy as np
x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
def good(): return (x, y), (x, y)
def flat(): return x, y, x, y
def ragged(): return ([[1], [1, 2]], y), (x, y)
def broken(): return 1 / 0
def leaves(): raise SystemExit(0)
def infinite(): return (x / np.where(x == 3, 0, 1), y), (x, y)
value = 5
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    (tmp_path / "machworks_user_sets.py").write_text(MODULE)
    (tmp_path / "machworks_user_fault.py").write_text("import machworks_not_installed")
    yield tmp_path
    sys.modules.pop("machworks_user_sets", None)


def test_a_function_of_the_users_is_called(user, monkeypatch):
    before = list(sys.path)
    dataset = load(Data(name="machworks_user_sets:good", validation=5), user)
    assert dataset.scale == 1.0 and dataset.train.inputs.dtype == np.float32 and len(dataset.validation) == 5
    assert dataset.source == "machworks_user_sets:good" and sys.path == before
    sys.modules.pop("machworks_user_sets")
    monkeypatch.chdir(user)
    assert load(Data(name="machworks_user_sets:good", validation=5), user / "elsewhere").classes == 2


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    "name, message",
    [
        ("sets:flat", "found a tuple .* expected ..x_train, y_train., .x_test, y_test.. of arrays"),
        ("sets:ragged", "found a tuple .*inhomogeneous"),
        ("sets:broken", "found ZeroDivisionError: division by zero"),
        ("sets:leaves", "found SystemExit: 0"),
        ("sets:value", "found no function 'value'"),
        ("sets:missing", "found no function 'missing'"),
        ("sets:infinite", r"x_train: found inf at \(1, 1\)"),
        ("absent:good", "found No module named 'machworks_user_absent'; expected a module in "),
        ("fault:good", "found No module named 'machworks_not_installed'"),
    ],
)
def test_faults_of_the_users_function_are_named(user, name, message):
    with pytest.raises(DataError, match=f"machworks_user_{name}.*{message}"):
        load(Data(name=f"machworks_user_{name}"), user)


@pytest.mark.parametrize("name", ["digits", "own.npz", "module:function"])
def test_a_path_that_would_be_ignored_is_refused(name):
    with pytest.raises(DataError, match=f"data.path: found 'x' with data.name '{name}'; expected data.path only with"):
        load(Data(name=name, path="x"))


@pytest.mark.parametrize("name, near", [("fashion-mnist", "fashion_mnist"), ("mnits", "mnist"), ("digit", "digits")])
def test_a_misspelt_name_gets_a_suggestion(name, near):
    with pytest.raises(DataError, match=f"data.name: found '{name}'; expected digits, .*; did you mean '{near}'?"):
        load(Data(name=name, path="x"))


def test_an_error_of_data_is_a_value_error_that_travels():
    error = pickle.loads(pickle.dumps(formats.fault("a", "b", "c", "d")))
    assert isinstance(error, DataError) and isinstance(error, ValueError)
    assert str(error) == "a: found b; expected c; d"


def test_importing_the_module_loads_nothing_heavy():
    heavy = "{'tensorflow', 'ray', 'sklearn', 'pooch', 'requests', 'matplotlib', 'scipy'}"
    command = f"import sys, actors.data; print({heavy} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True, text=True)
    assert printed.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def fashion():
    return load(Data(name="fashion_mnist", path=str(data.DEBIAN), validation=5000))


@pytest.mark.needs("fashion")
def test_debians_fashion_mnist(fashion):
    assert [len(part) for part in (fashion.train, fashion.validation, fashion.test)] == [55000, 5000, 10000]
    assert fashion.shape == (28, 28) and fashion.classes == 10 and fashion.scale == 1 / 255
    labels = np.concatenate([fashion.train.labels, fashion.validation.labels])
    assert np.bincount(labels).tolist() == [6000] * 10 and np.bincount(fashion.test.labels).tolist() == [1000] * 10
    assert fashion.train.inputs.dtype == np.uint8 and fashion.train.inputs.nbytes == 55000 * 784
    # The mean of the training pixels of this set, published with it: 0.2860.
    total = fashion.train.inputs.sum(dtype=np.int64) + fashion.validation.inputs.sum(dtype=np.int64)
    assert abs(total / (60000 * 784 * 255) - 0.2860) < 1e-4


def test_digits_are_scikit_learns_whether_its_file_is_found_or_not(monkeypatch):
    quick = data._digits_rows()
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    assert np.array_equal(quick, data._digits_rows())
