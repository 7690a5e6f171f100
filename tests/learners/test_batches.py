"""Batches: every epoch has every row once, whatever the sizes; the same rows on every host."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners import batches
from learners.batches import Dataset, Split

seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 60)


def split_of(inputs, labels=None):
    labels = np.zeros(len(inputs), np.int32) if labels is None else np.asarray(labels, np.int32)
    return Split(np.asarray(inputs), labels)


@given(seeds, sizes, sizes, st.integers(1, 4))
@settings(deadline=None)
def test_each_epoch_has_every_row_exactly_once_and_every_batch_is_full(seed, n, batch_size, epochs):
    count = -(-epochs * n // batch_size)
    drawn = [batches.rows(seed, "top", batch, batch_size, n) for batch in range(count)]
    assert all(rows.shape == (batch_size,) and rows.dtype == np.int32 for rows in drawn)
    stream = np.concatenate(drawn)
    for epoch in range(epochs):
        assert sorted(stream[epoch * n : (epoch + 1) * n]) == list(range(n))


@pytest.mark.parametrize("n, batch_size", [(1763, 32), (10, 64), (1763, 1), (1, 128), (1, 1), (64, 64)])
def test_awkward_sizes(n, batch_size):
    count = 2 * n // batch_size + 1
    stream = np.concatenate([batches.rows(3, "a", batch, batch_size, n) for batch in range(count)])
    counts = np.bincount(stream[: len(stream) // n * n], minlength=n)
    assert (counts == len(stream) // n).all()


@given(seeds, sizes, sizes, st.integers(0, 50), st.integers(0, 50))
@settings(deadline=None)
def test_any_batch_is_had_by_its_number_alone(seed, n, batch_size, batch, earlier):
    wanted = batches.rows(seed, "top", batch, batch_size, n).tolist()
    batches._epoch.cache_clear()
    batches.rows(seed, "top", earlier, batch_size, n)
    assert batches.rows(seed, "top", batch, batch_size, n).tolist() == wanted


def test_epochs_learners_and_seeds_have_orders_of_their_own():
    streams = [(1, "a", 0), (1, "a", 1), (1, "b", 0), (2, "a", 0)]
    orders = {tuple(batches.rows(seed, name, epoch, 200, 200)) for seed, name, epoch in streams}
    assert len(orders) == 4


def test_a_batch_is_the_callers_own():
    first = batches.rows(1, "a", 0, 10, 10)
    wanted = first.tolist()
    first[:] = 0
    assert batches.rows(1, "a", 0, 10, 10).tolist() == wanted


def test_rows_are_equal_in_every_process():
    # Written down: a change of the rule, or a numpy that draws otherwise, changes every run of every user.
    assert batches.rows(7, "top", 3, 8, 100).tolist() == [10, 19, 67, 40, 83, 65, 30, 76]
    command = "from learners import batches; print(batches.rows(7, 'top', 3, 8, 100).tolist())"
    environment = {**os.environ, "PYTHONHASHSEED": "12"}
    printed = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, check=True, text=True
    )
    assert printed.stdout.strip() == str(batches.rows(7, "top", 3, 8, 100).tolist())


@pytest.mark.parametrize("batch, batch_size, n", [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_impossible_batches_are_refused(batch, batch_size, n):
    with pytest.raises(ValueError, match="expected a batch >= 0"):
        batches.rows(1, "a", batch, batch_size, n)


def test_permutations_are_unbiased():
    # Each of the 6 orders of three rows, 6,000 draws: a count is within 5 standard deviations (28.9) of 1,000.
    drawn = [tuple(batches.permutation(key, 3)) for key in range(6000)]
    counts = [drawn.count(order) for order in set(drawn)]
    assert len(counts) == 6 and max(abs(count - 1000) for count in counts) < 145


@given(seeds, st.integers(1, 200), st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=8))
@settings(deadline=None)
def test_shards_are_disjoint_cover_and_are_of_one_size(seed, n, names):
    if len(names) > n:
        with pytest.raises(ValueError, match="at least one row for each"):
            batches.shards(n, names, seed)
        return
    parts = batches.shards(n, names, seed)
    assert set(parts) == names
    assert sorted(np.concatenate(list(parts.values()))) == list(range(n))
    assert max(map(len, parts.values())) - min(map(len, parts.values())) <= 1


def test_shards_follow_the_seed_and_not_the_order_of_names():
    one, other = batches.shards(100, ["a", "b", "c"], 5), batches.shards(100, ["c", "a", "b"], 5)
    assert all((one[name] == other[name]).all() for name in "abc")
    assert (one["a"] != batches.shards(100, ["a", "b", "c"], 6)["a"]).any()
    with pytest.raises(ValueError, match="distinct"):
        batches.shards(100, ["a", "a"], 5)


def test_features_are_scaled_rows_in_the_order_asked():
    split = split_of(np.arange(256, dtype=np.uint8).reshape(128, 2))
    got = batches.features(split, [127, 0, 127], 1 / 255, 0.0)
    assert got.dtype == np.float32 and got.shape == (3, 2)
    np.testing.assert_allclose(got, [[254 / 255, 1], [0, 1 / 255], [254 / 255, 1]], rtol=1e-6)
    shifted = batches.features(split_of(np.float32([[1.5], [2.0]])), np.int32([1]), 2.0, -1.0)
    assert shifted.tolist() == [[3.0]]


@pytest.mark.parametrize("rows", [[-1], [3], [0, 99], [0.0], [[0]], []])
def test_rows_that_do_not_exist_are_refused(rows):
    split = split_of(np.zeros((3, 2), np.uint8))
    with pytest.raises(ValueError, match="rows: found"):
        batches.features(split, rows, 1.0, 0.0)
    with pytest.raises(ValueError, match="rows: found"):
        batches.take(split, rows)


def test_taken_rows_are_a_split():
    split = split_of(np.arange(6, dtype=np.uint8).reshape(3, 2), [5, 6, 7])
    taken = batches.take(split, np.int32([2, 0]))
    assert taken.inputs.tolist() == [[4, 5], [0, 1]] and taken.labels.tolist() == [7, 5] and len(taken) == 2


def test_a_fingerprint_tells_bytes_shapes_types_and_labels_apart():
    base = np.arange(12, dtype=np.uint8).reshape(3, 4)
    changed = base.copy()
    changed[2, 3] += 1
    different = [
        split_of(base),
        split_of(changed),
        split_of(base.astype(np.float32)),
        split_of(base.reshape(3, 4)[::-1].copy()),
        split_of(base, [0, 0, 1]),
        split_of(base.reshape(6, 2)),
    ]
    assert len({split.fingerprint for split in different}) == len(different)
    assert split_of(base.copy()).fingerprint == split_of(base).fingerprint == "8657b5d96455bd6659b23296fbcfbdb7"


def test_a_pickled_data_set_is_the_same_without_a_copy():
    split = split_of(np.arange(12, dtype=np.uint8).reshape(3, 4))
    dataset = Dataset("x", "here", split, split, split, classes=1, shape=(2, 2), scale=1 / 255, offset=0.0)
    buffers = []
    again = pickle.loads(pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append), buffers=buffers)
    assert again.train.fingerprint == split.fingerprint and again.width == 4
    assert np.shares_memory(again.train.inputs, split.inputs)
