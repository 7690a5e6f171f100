"""A user's Keras model behind the calls of our own networks, and its non-trainable state."""

import keras
import numpy as np
import pytest

from actors.keras_model import KerasModel, build
from learners.layout import network
from learners.models import Model, initial


def dense(example, classes):
    layers = [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input(example), *layers])


def normalised(example, classes):
    layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input(example), *layers, keras.layers.Dense(classes, activation="softmax")])


def unbuilt(example, classes):
    return keras.Sequential([keras.layers.Flatten()])


def wide(example, classes):
    return dense(example, classes + 1)


@pytest.fixture
def place(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    return "mine:"


def data(rows=9):
    chance = np.random.default_rng(0)
    return chance.random((rows, 12), dtype=np.float32), chance.integers(0, 3, rows).astype(np.int32)


def test_a_keras_model_gives_what_our_own_network_gives(place):
    ours, theirs = Model(network("dense", (3, 4), 3)), KerasModel(build(place + "dense", (3, 4), 3), (3, 4))
    theta, (x, y) = initial(ours.network, 1), data()
    for one, other in zip(ours.loss_and_gradient(theta, x, y), theirs.loss_and_gradient(theta, x, y), strict=True):
        assert np.allclose(one, other, atol=1e-5)
    assert ours.evaluate(theta, x, y) == pytest.approx(theirs.evaluate(theta, x, y, rows=4), rel=1e-5)
    assert [(t.layer > 0, t.kind, t.shape) for t in theirs.tensors] == [
        (True, t.kind, t.shape) for t in ours.network.tensors
    ]
    assert theirs.initial.shape == theta.shape and theirs.save() == {}


def test_non_trainable_state_is_the_workers_own(place):
    one, two = (KerasModel(build(place + "normalised", (3, 4), 3), (3, 4)) for _ in range(2))
    theta, (x, y) = one.initial, data()
    before = one.evaluate(theta, x, y)
    one.loss_and_gradient(theta, x, y)
    state = {key: value.copy() for key, value in one.save().items()}
    means = [value for value in state.values() if value.shape == (12,)]
    assert any(np.allclose(value, 0.5 * x.mean(0), atol=1e-5) for value in means)  # momentum 1/2, from 0
    after = one.evaluate(theta, x, y)
    assert after != before and one.evaluate(theta, x, y) == after  # evaluation leaves it alone
    assert two.evaluate(theta, x, y) == before  # the other worker's has not moved
    two.restore(state)
    assert two.evaluate(theta, x, y) == after
    assert len(theta) == 24 + 12 * 3 + 3  # only what is trained travels


def test_every_dropout_mask_is_new(place):
    model = KerasModel(build(place + "normalised", (3, 4), 3), (3, 4))
    theta, (x, y) = model.initial, data()
    assert len({model.loss_and_gradient(theta, x, y)[0] for _ in range(4)}) == 4


def test_probabilities_are_taken_as_such(place):
    model = KerasModel(build(place + "normalised", (3, 4), 3), (3, 4))
    x, y = data()
    assert model.evaluate(np.zeros_like(model.initial), x, y)[0] == pytest.approx(np.log(3), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "has no attribute 'nothing'"),
        ("unbuilt", "a built Keras model was wanted"),
        ("wide", r"maps to \(None, 4\); \(None, 3\) was wanted"),
    ],
)
def test_what_is_no_model_is_refused(place, name, said):
    with pytest.raises(ValueError, match=said):
        build(place + name, (3, 4), 3)


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="network: nowhere_at_all:model: No module named"):
        build("nowhere_at_all:model", (3, 4), 3)
