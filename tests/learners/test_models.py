"""Networks of flat weights: counts, gradients against differences, padding, and learning along random directions."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from msgspec.structs import replace

from learners.layout import network
from learners.models import Model, initial, logits
from learners.rbd.defaults import filled
from learners.rbd.descent import Problem, descend
from learners.rbd.options import Basis, Exchange, Fpd, Group, Local, Nes, Offspring, Rbd, Sgd, Step
from learners.rbd.workers import Method, start


@pytest.mark.parametrize(
    ("kind", "example", "size"),
    [
        ("dense", (28, 28), 101_770),
        ("dense", (32, 32, 3), 394_634),
        ("base_conv", (28, 28), 93_322),
        ("base_conv", (28, 28, 1), 93_322),
        ("base_conv", (32, 32, 3), 122_570),
    ],
)
def test_weights_are_counted_and_are_the_references(kind, example, size):
    """Fault 6: the counts stood in a table."""
    made = network(kind, example, 10)
    assert made.size == size == sum(int(np.prod(t.shape)) for t in made.tensors)
    assert [(t.start, t.stop) for t in made.tensors][1:] == [
        (before.stop, after.stop) for before, after in pairwise(made.tensors)
    ]


@pytest.mark.parametrize("example", [(17, 18), (18, 17, 3)])
def test_images_that_are_too_small_are_refused(example):
    network("base_conv", (18, 18), 10)
    with pytest.raises(ValueError, match=r"18 x 18 or more; found \(1"):
        network("base_conv", example, 10)


def test_what_is_no_network_is_refused():
    with pytest.raises(ValueError, match="'vgg' is not one of dense, base_conv"):
        network("vgg", (28, 28), 10)
    with pytest.raises(ValueError, match="takes images"):
        network("base_conv", (784,), 10)


def data(example, rows=7, seed=0):
    chance = np.random.default_rng(seed)
    x = chance.random((rows, int(np.prod(example))), dtype=np.float32)
    return x, chance.integers(0, 3, rows).astype(np.int32)


each_network = pytest.mark.parametrize(("kind", "example"), [("dense", (3, 4)), ("base_conv", (19, 18, 2))])


@each_network
def test_the_gradient_is_that_of_the_loss(kind, example):
    made = network(kind, example, 3)
    model, theta, (x, y) = Model(made), initial(made, 1), data(example)
    loss, accuracy, gradient = model.loss_and_gradient(theta, x, y)
    assert gradient.dtype == np.float32 and gradient.shape == (made.size,)
    for tensor in made.tensors:  # along the gradient of each tensor, the loss changes by its norm
        way = np.zeros(made.size, np.float32)
        way[tensor.place] = gradient[tensor.place]
        norm = float(np.linalg.norm(way))
        step = np.float32(1e-2 / norm)
        up, down = (model.evaluate(theta + sign * step * way, x, y)[0] for sign in (1, -1))
        assert (up - down) / (2 * float(step)) == pytest.approx(norm**2, rel=2e-2)
    assert model.evaluate(theta, x, y) == pytest.approx((loss, accuracy), rel=1e-5)


@each_network
def test_rows_are_evaluated_in_chunks_and_padding_counts_for_nothing(kind, example):
    made = network(kind, example, 3)
    theta, (x, y) = initial(made, 1), data(example, 11)
    whole, pieces = (Model(made, rows).evaluate(theta, x, y) for rows in (11, 4))
    assert whole == pytest.approx(pieces, rel=1e-5)


def test_the_convolutions_are_those_of_keras():
    import keras

    made = network("base_conv", (28, 28, 1), 10)
    theta, (x, _) = initial(made, 2), data((28, 28, 1))
    layers = [keras.Input((28, 28, 1))]
    for filters, pooled in ((32, True), (64, True), (64, False)):
        layers.append(keras.layers.Conv2D(filters, 3, activation="relu"))
        layers += [keras.layers.MaxPooling2D(2)] if pooled else []
    layers += [keras.layers.Flatten(), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    theirs = keras.Sequential(layers)
    theirs.set_weights([theta[t.place].reshape(t.shape) for t in made.tensors])
    ours = logits(made, tf.constant(theta), tf.constant(x)).numpy()
    assert np.allclose(ours, theirs(x.reshape(-1, 28, 28, 1)).numpy(), atol=1e-5)


def test_first_weights():
    made = network("base_conv", (28, 28), 10)
    theta = initial(made, 5)
    assert (theta == initial(made, 5)).all() and (theta != initial(made, 6)).any()
    for tensor in made.tensors:
        values = theta[tensor.place]
        if tensor.kind == "rest":
            assert not values.any()
        elif values.size > 1000:
            assert values.var() == pytest.approx(2 / np.prod(tensor.shape[:-1]), rel=0.1)


# ---------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(inputs))
    x, y = (inputs[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    return Model(network("dense", (8, 8), 10)), x, y


PLAIN = Exchange(residual="none")


@pytest.mark.parametrize(
    ("learner", "accuracy"),
    [
        (Rbd(basis=Basis(dimensions=100), exchange=PLAIN), 0.9),
        (Rbd(basis=Basis(dimensions=100), exchange=Exchange(residual="leaky")), 0.85),
        (Rbd(basis=Basis(dimensions=100), exchange=Exchange(every=5)), 0.85),
        (Rbd(basis=Basis(dimensions=128, distribution="hadamard"), exchange=Exchange(every=5)), 0.85),
        (Fpd(basis=Basis(dimensions=100)), 0.5),
        (Sgd(exchange=Group(mode="sync")), 0.85),
        (Local(exchange=Exchange(every=5)), 0.8),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, float) else "",
)
def test_every_method_learns_the_digits_at_its_default_rates(digits, learner, accuracy):
    model, x, y = digits
    learned(model, x, y, replace(learner, steps=300), accuracy)


def test_nes_learns_something(digits):
    model, x, y = digits
    learner = Nes(
        steps=30, batch_size=64, basis=Basis(dimensions=40, antithetic=True), offspring=Offspring(0.02, "shared")
    )
    learned(model, x, y, replace(learner, update=Step(rate=0.02)), 0.2)


def learned(model, x, y, learner, accuracy):
    """The accuracy on held-out rows after all steps, from a tenth."""
    made = model.network
    method = Method(filled(learner, made.size), made.tensors)

    def rows(n):
        chosen = np.random.default_rng(n).choice(1400, learner.batch_size, replace=False)
        return x[chosen], y[chosen]

    problem = Problem(
        lambda theta, n: model.loss_and_gradient(theta, *rows(n))[::2],
        lambda theta, n: model.evaluate(theta, *rows(n))[0],
    )
    worker, taken = start(method, initial(made, 3), 1), 0
    first = model.evaluate(worker.shared.theta, x[1400:], y[1400:])
    while worker.step < learner.steps:
        count = method.batches(worker.shared.directions)
        worker = descend(method, worker, problem, range(taken, taken + count)).worker
        taken += count
    last = model.evaluate(worker.shared.theta, x[1400:], y[1400:])
    assert last[0] < first[0] and last[1] > accuracy, (first, last)
