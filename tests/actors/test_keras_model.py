"""A user's Keras model behind the calls of our own networks, and its non-trainable state."""

import keras
import numpy as np
import pytest

from actors.keras_model import KerasModel, build
from learners.layout import network
from learners.models import Model, initial

layers = keras.layers


def dense(example, classes, **options):
    hidden = layers.Dense(128, activation="relu", **options)
    return keras.Sequential([keras.Input(example), layers.Flatten(), hidden, layers.Dense(classes)])


def normalised(example, classes):
    before = [layers.Flatten(), layers.BatchNormalization(momentum=0.5), layers.Dropout(0.5)]
    return keras.Sequential([keras.Input(example), *before, layers.Dense(classes, activation="softmax")])


def penalised(example, classes):
    return dense(example, classes, kernel_regularizer=keras.regularizers.L2(0.01))


def image(example, classes):
    return keras.Sequential([keras.Input((*example, 1)), layers.Conv2D(2, 2), layers.Flatten(), layers.Dense(classes)])


def nested(example, classes):
    return keras.Sequential([keras.Input(example), dense(example, 7), layers.Dense(classes), layers.Softmax()])


def unbuilt(example, classes):
    return keras.Sequential([layers.Flatten()])


def wide(example, classes):
    return dense(example, classes + 1)


def elsewhere(example, classes):
    return dense((5, 5), classes)


def both(example, classes):
    inputs = [keras.Input(example), keras.Input(example)]
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(layers.Add()(inputs))))


class Fussy(keras.Model):
    def build(self, shape):
        self.kernel, self.dropout = self.add_weight(shape=(4, 3)), layers.Dropout(0.5)

    def call(self, x):
        if x.shape[-1] != 4 or len(x.shape) != 2:
            raise TypeError("four numbers a row")
        return self.dropout(x) @ self.kernel


def fussy(example, classes):
    model = Fussy()
    model(np.zeros((1, 4), np.float32))
    return model


def two(example, classes):
    x = keras.Input(example)
    return keras.Model(x, [layers.Dense(classes)(layers.Flatten()(x))] * 2)


def frozen(example, classes):
    model = dense(example, classes)
    model.trainable = False
    return model


def half(example, classes):
    return dense(example, classes, dtype="float16")


def broken(example, classes):
    raise RuntimeError("no such file")


def number(example, classes):
    return 5


@pytest.fixture
def place(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    return "mine:"


def made(place, seed=0):
    return KerasModel(build(place, (3, 4), 3, seed=seed), (3, 4), 3)


def data(rows=9):
    chance = np.random.default_rng(0)
    return chance.random((rows, 12), dtype=np.float32), chance.integers(0, 3, rows).astype(np.int32)


def test_a_keras_model_gives_what_our_own_network_gives(place):
    ours, theirs = Model(network("dense", (3, 4), 3)), made(place + "dense")
    theta, (x, y) = initial(ours.network, 1), data()
    for one, other in zip(ours.loss_and_gradient(theta, x, y), theirs.loss_and_gradient(theta, x, y), strict=True):
        assert np.allclose(one, other, atol=1e-5)
    assert ours.evaluate(theta, x, y) == pytest.approx(theirs.evaluate(theta, x, y, rows=4), rel=1e-5)
    assert theirs.network.tensors == ours.network.tensors
    assert theirs.initial.shape == theta.shape and theirs.save() == {}


def test_tensors_are_named_by_their_place_in_the_model_and_nested_layers_count(place):
    def found():
        return [(t.name, t.layer) for t in made(place + "nested").network.tensors]

    parts = [f"dense_{i}/{part}" for i in range(3) for part in ("kernel", "bias")]
    assert found() == found() == list(zip(parts, (0, 0, 1, 1, 2, 2), strict=True))


@pytest.mark.parametrize("name", ["dense", "normalised"])
def test_the_start_is_the_seeds(place, name):
    one, again, other = (made(place + name, seed) for seed in (2**40 + 1, 2**40 + 1, 5))
    assert np.array_equal(one.initial, again.initial) and not np.array_equal(one.initial, other.initial)
    assert all(np.array_equal(value, again.save()[key]) for key, value in one.save().items())
    x, y = data()
    assert one.loss_and_gradient(one.initial, x, y)[0] == again.loss_and_gradient(one.initial, x, y)[0]  # its masks too


def test_non_trainable_state_is_the_workers_own(place):
    one, two = made(place + "normalised"), made(place + "normalised")
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
    model = made(place + "normalised")
    theta, (x, y) = model.initial, data()
    assert len({model.loss_and_gradient(theta, x, y)[0] for _ in range(4)}) == 4


@pytest.mark.parametrize("name", ["normalised", "nested"])
def test_probabilities_are_taken_as_such(place, name):
    model, (x, y) = made(place + name), data()
    assert model.evaluate(np.zeros_like(model.initial), x, y)[0] == pytest.approx(np.log(3), rel=1e-5)
    found = np.exp(model.logits(model.initial, x).numpy())
    assert np.allclose(found.sum(1), 1, atol=1e-5)
    assert model.evaluate(model.initial, x, y)[0] == pytest.approx(-np.log(found[np.arange(9), y]).mean(), rel=1e-5)


def test_penalties_are_part_of_the_training_loss_and_of_its_gradient(place):
    plain, model, (x, y) = made(place + "dense"), made(place + "penalised"), data()
    theta = plain.initial
    kernel = plain.network.tensors[0].place
    loss, _, gradient = plain.loss_and_gradient(theta, x, y)
    more, _, steeper = model.loss_and_gradient(theta, x, y)
    assert more - loss == pytest.approx(0.01 * float(np.sum(theta[kernel] ** 2)), rel=1e-3)
    difference = np.zeros_like(theta)
    difference[kernel] = 0.02 * theta[kernel]
    assert np.allclose(steeper - gradient, difference, atol=1e-6)
    assert model.evaluate(theta, x, y) == plain.evaluate(theta, x, y)


def test_the_model_itself_is_given_with_the_weights_and_the_state(place):
    model, (x, y) = made(place + "normalised"), data()
    theta = model.initial + np.float32(0.1)
    model.loss_and_gradient(theta, x, y)
    found = model.at(theta)(x.reshape(9, 3, 4)).numpy()
    assert np.allclose(np.log(found), model.logits(theta, x), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", r"mine:nothing: found no function 'nothing' in it; expected a function that takes \(3, 4\) and 3"),
        ("number", "found a int; expected a built Keras model; return one that begins with keras.Input"),
        ("unbuilt", "found a Sequential that is not built; expected a built Keras model"),
        ("wide", r"found a model that maps to \(None, 4\); expected \(None, 3\)"),
        ("two", r"found a model that maps to a list; expected \(None, 3\)"),
        ("elsewhere", r"found a model that takes \(None, 5, 5\); expected a model that takes \(None, 3, 4\)"),
        ("image", r"found a model that takes \(None, 3, 4, 1\); expected"),
        ("both", r"found a model that takes .*; expected"),
        ("fussy", r"found .*four numbers a row.*; expected a model that takes \(None, 3, 4\)"),
        ("frozen", "found a model without trainable weights"),
        ("half", "of type float16.* expected weights of type float32"),
        ("broken", "found RuntimeError: no such file; expected a built Keras model"),
    ],
)
def test_what_is_no_model_is_refused(place, name, said):
    with pytest.raises(ValueError, match=said):
        build(place + name, (3, 4), 3)


def test_a_model_that_is_a_class_may_hold_weights_itself(place):
    model = KerasModel(build(place + "fussy", (4,), 3), (4,), 3)
    assert [(t.layer, t.kind, t.shape) for t in model.network.tensors] == [(0, "kernel", (4, 3))]
    x, y = np.eye(4, dtype=np.float32), np.zeros(4, np.int32)
    assert len({model.loss_and_gradient(model.initial, x, y)[0] for _ in range(4)}) > 1  # its dropout is trained with
    assert len({model.evaluate(model.initial, x, y)[0] for _ in range(4)}) == 1


def test_a_module_is_found_beside_the_run_file_or_its_absence_is_said(tmp_path):
    with pytest.raises(
        ValueError, match=f"nowhere_at_all:model: found No module named .* expected a module in {tmp_path}"
    ):
        build("nowhere_at_all:model", (3, 4), 3, tmp_path)
    lines = "import keras\ndef model(example, classes):\n    L = keras.layers\n"
    (tmp_path / "beside_a_run.py").write_text(
        f"{lines}    return keras.Sequential([keras.Input(example), L.Flatten(), L.Dense(classes)])\n"
    )
    assert build("beside_a_run:model", (3, 4), 3, tmp_path).count_params() == 39
