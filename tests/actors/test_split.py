"""Arrays become three disjoint sets of rows, or an error that names what does not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.formats import Arrays, DataError
from actors.split import split
from learners.options import Data

NAMES = ("x_train", "y_train", "x_test", "y_test")


def made(rows=20, tests=6, dtype=np.uint8, **changes):
    """Row r has the features (r, r) and the label r % 3."""
    parts = {}
    for part, count in (("train", rows), ("test", tests)):
        parts[f"x_{part}"] = np.repeat(np.arange(count), 2).reshape(count, 1, 2).astype(dtype)
        parts[f"y_{part}"] = np.arange(count) % 3
    return Arrays([{**parts, **changes}[name] for name in NAMES], NAMES, "a test")


@given(st.integers(3, 200), st.one_of(st.integers(1, 220), st.floats(0, 1, exclude_min=True, exclude_max=True)))
@settings(deadline=None)
def test_validation_rows_are_taken_out_of_the_training_rows(rows, validation):
    count = validation if isinstance(validation, int) else round(validation * rows)
    data = Data(name="some.npz", validation=validation)
    if not 1 <= count < rows:
        with pytest.raises(
            DataError, match=rf"data.validation: found .* of {rows} .*sets {count} apart; expected 1 .. {rows - 1}"
        ):
            split(made(rows), data, 255, None)
        return
    dataset = split(made(rows), data, 255, None)
    assert len(dataset.validation) == count and len(dataset.train) == rows - count and len(dataset.test) == 6
    kept = np.concatenate([dataset.train.inputs, dataset.validation.inputs])[:, 0]
    assert sorted(kept) == list(range(rows))
    for part in (dataset.train, dataset.validation, dataset.test):
        assert (part.labels == part.inputs[:, 0] % 3).all()


def test_validation_rows_depend_on_the_datas_name_alone():
    def apart(name):
        return split(made(200), Data(name=name, validation=50), 255, None).validation.inputs[:, 0].tolist()

    assert apart("here/a.npz") == apart("/there/a.npz") != apart("b.npz")
    assert apart("a.npz") != list(range(50))


def test_bytes_stay_bytes_and_are_scaled():
    dataset = split(made(), Data(), 16, None)
    assert dataset.train.inputs.dtype == np.uint8 and (dataset.scale, dataset.offset) == (1 / 16, 0.0)
    assert dataset.shape == (1, 2) and dataset.width == 2 and dataset.classes == 3
    assert dataset.train.labels.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_are_taken_as_they_are(dtype):
    dataset = split(made(dtype=dtype), Data(), 255, None)
    assert dataset.train.inputs.dtype == np.float32 and (dataset.scale, dataset.offset) == (1.0, 0.0)
    assert sorted(np.concatenate([dataset.train.inputs, dataset.validation.inputs])[:, 1]) == list(range(20))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, ">i2", np.uint64])
def test_labels_of_any_whole_numbers_flat_or_as_a_column(dtype):
    y = (np.arange(20) % 3).astype(dtype)
    for labels in (y, y[:, None]):
        dataset = split(made(y_train=labels), Data(), 255, None)
        assert (dataset.train.labels == dataset.train.inputs[:, 0] % 3).all()


def test_what_is_given_out_is_read_only_and_the_users_arrays_are_not():
    found = made(y_test=(np.arange(6) % 3).astype(np.int32))
    dataset = split(found, Data(), 255, None)
    for part in (dataset.train, dataset.validation, dataset.test):
        for array in (part.inputs, part.labels):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    assert all(array.flags.writeable for array in found.arrays)
    assert np.shares_memory(dataset.test.inputs, found.arrays[2])


def test_a_label_of_the_test_rows_alone_counts():
    assert split(made(y_test=np.array([0, 1, 2, 3, 3, 3])), Data(), 255, None).classes == 4


X, Y = np.ones((20, 1, 2), np.float32), np.arange(20) % 3
BAD = np.where(np.arange(40).reshape(20, 1, 2) == 35, np.nan, 1.0)
FAULTS = {
    "one dimension": ({"x_train": np.zeros(20)}, r"x_train: found shape \(20,\); expected \[rows, features...\]"),
    "no rows": ({"x_train": X[:0], "y_train": Y[:0]}, r"x_train: found shape \(0, 1, 2\)"),
    "whole inputs": ({"x_train": X.astype(int)}, "x_train: found type int64; expected uint8"),
    "objects": ({"x_test": X.astype(object)}, "x_test: found type object"),
    "not a number": ({"x_train": BAD}, r"x_train: found nan at \(17, 0, 1\) and 0 more; expected finite"),
    "too large for float32": ({"x_train": np.full((20, 2), 1e300)}, r"x_train: found inf at \(0, 0\) and 39 more"),
    "other features": (
        {"x_test": np.zeros((6, 3), np.uint8)},
        r"x_test: found features \(3,\); expected \(1, 2\) as in",
    ),
    "another type": ({"x_train": X}, "x_test: found type uint8; expected float32 as in x_train"),
    "counts that differ": ({"y_train": Y[:-1]}, "y_train: found 19 labels; expected 20, one for each row of x_train"),
    "test counts that differ": ({"y_test": Y}, "y_test: found 20 labels; expected 6, one for each row of x_test"),
    "one-hot": ({"y_train": np.eye(3)[Y]}, r"y_train: found shape \(20, 3\); expected \[rows\] or .*argmax"),
    "a negative label": (
        {"y_train": Y - 1},
        "y_train: found int64 of -1 .. 1; expected whole numbers 0 .. classes - 1",
    ),
    "a half label": ({"y_train": Y / 2}, "y_train: found float64 of 0.0 .. 1.0; expected whole numbers"),
    "no number": ({"y_train": np.where(Y == 1, np.nan, Y)}, "y_train: found float64 of nan .. nan; expected whole"),
    "a huge label": ({"y_train": Y + 2**40}, "y_train: found int64 of 1099511627776 .. "),
    "words": ({"y_train": Y.astype(str)}, "y_train: found type <U"),
    "numbered from 1": ({"y_train": Y + 1, "y_test": Y[:6] + 1}, "y_train: found 3 classes numbered 1 .. 3; expected"),
    "a gap": ({"y_train": Y * 2, "y_test": Y[:6] * 2}, "y_train: found 3 classes numbered 0 .. 4; expected"),
    "one class": ({"y_train": Y * 0, "y_test": Y[:6] * 0}, "found 1 classes numbered 0 .. 0; expected at least two"),
}


@pytest.mark.parametrize("changes, message", FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_of_arrays_is_named(changes, message):
    with pytest.raises(DataError, match=message):
        split(made(**changes), Data(), 255, None)


def test_a_label_that_a_named_set_does_not_have_is_refused():
    assert split(made(), Data(), 255, 10).classes == 10
    with pytest.raises(DataError, match=r"y_test: found label 12; expected 0 .. 9"):
        split(made(y_test=np.full(6, 12)), Data(), 255, 10)
