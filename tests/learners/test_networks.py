"""Dense layers: how they begin, what they compute, what dropout drops."""

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from learners import networks

seeds = st.integers(0, 2**64 - 1)
WRITTEN = [-0.5023735761642456, 0.5068453550338745]
widths = st.lists(st.integers(1, 8), min_size=2, max_size=4)


@given(seeds, widths)
@settings(deadline=None)
def test_layers_have_the_widths_asked_for_and_equal_bits_for_equal_seeds(seed, widths):
    layers, again = networks.initial(seed, widths), networks.initial(seed, widths)
    pairs = list(pairwise(widths))
    assert [kernel.shape for kernel in layers[::2]] == pairs
    assert [bias.shape for bias in layers[1::2]] == [(out,) for _, out in pairs]
    assert all(w.dtype == np.float32 for w in layers) and not any(bias.any() for bias in layers[1::2])
    assert [w.tobytes() for w in layers] == [w.tobytes() for w in again]


def test_no_widths_no_layers():
    assert networks.initial(1, ()) == []


def test_seeds_and_layers_are_unlike():
    kernels = [w for seed in (1, 2) for w in networks.initial(seed, (20, 20, 20))[::2]]
    correlations = np.corrcoef([kernel.ravel() for kernel in kernels])
    assert np.abs(correlations - np.eye(4)).max() < 0.25  # 5 standard deviations of 400 draws


@pytest.mark.parametrize("fan_in", [10, 300])
def test_kernels_are_normal_with_twice_the_inverse_fan_in_as_variance(fan_in):
    kernel = networks.initial(5, (fan_in, 60_000 // fan_in))[0].astype(np.float64)
    z = kernel.ravel() / np.sqrt(2 / fan_in)
    # 60,000 draws: standard error of the mean 0.004, of the variance 0.006, of the fourth moment 0.04
    assert abs(z.mean()) < 0.02 and abs(z.var() - 1) < 0.03 and abs((z**4).mean() - 3) < 0.2


def test_signals_keep_their_strength_through_many_relus():
    """What He et al. chose the variance for; fault 17 is its other half."""
    layers = networks.initial(0, (256,) * 11)
    x = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    ratio = np.square(networks.dense(layers, x)).mean() / np.square(x).mean()
    assert 0.5 < ratio < 2


def test_weights_are_equal_in_every_process():
    # Written down: a numpy that draws otherwise changes every run of every user.
    assert networks.initial(7, (2, 1))[0].ravel().tolist() == WRITTEN
    command = "from learners import networks; print(networks.initial(7, (2, 1))[0].ravel().tolist())"
    environment = {**os.environ, "PYTHONHASHSEED": "12", "TF_CPP_MIN_LOG_LEVEL": "3"}
    printed = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, check=True, text=True
    )
    assert printed.stdout.strip() == str(WRITTEN)


def test_layers_compute_what_they_say():
    layers = [np.float32([[1, -1], [2, 0]]), np.float32([0.5, 0.5]), np.float32([[1], [1]]), np.float32([-1])]
    x = np.float32([[1, 1], [-1, 0], [0, -3]])
    np.testing.assert_allclose(networks.dense(layers, x), [[2.5], [0.5], [0.0]])  # hidden: 3.5 0, 0 1.5, 0 0.5
    np.testing.assert_allclose(networks.linear(layers[2:], np.float32([[0, 0.5]])), [[-0.5]])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_argument_is_the_share_that_is_dropped(rate):
    """Fault 18: in TensorFlow 1 it was the share that is kept."""
    x = tf.ones([200, 500])
    dropped = networks.dropout(x, rate, tf.constant([3, 4])).numpy()
    # 100,000 entries: the share's standard error is below 0.0016
    assert abs((dropped == 0).mean() - rate) < 0.008
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-6)
    assert abs(dropped.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / x.shape.num_elements())


def test_equal_seeds_drop_the_same_and_others_something_else():
    x = tf.ones([40, 50])
    first, again, other = (networks.dropout(x, 0.5, tf.constant(seed)).numpy() for seed in ([1, 2], [1, 2], [1, 3]))
    assert (first == again).all()
    assert 0.4 < (first == other).mean() < 0.6


def test_a_rate_of_zero_drops_nothing():
    x = tf.ones([3, 2])
    assert networks.dropout(x, 0.0, tf.constant([1, 2])) is x


def test_no_gradient_reaches_what_was_dropped():
    x = tf.Variable(tf.fill([10, 10], 3.0))
    with tf.GradientTape() as tape:
        kept = networks.dropout(x, 0.3, tf.constant([1, 2]))
    np.testing.assert_allclose(tape.gradient(kept, x), kept.numpy() / 3.0)
