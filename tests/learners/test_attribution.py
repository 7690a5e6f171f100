"""Integrated gradients by their axioms, the pruning score by what removing weights really costs."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from learners import attribution

F, H, C = 10, 6, 3


def draw(*shape, seed=0, scale=1.0):
    return tf.constant(scale * np.random.default_rng(seed).normal(size=shape))


def network(activation, seed=1):
    first, second = draw(F, H, seed=seed, scale=0.6), draw(H, C, seed=seed + 1, scale=0.6)
    return lambda z: activation(z @ first + 0.3) @ second


def labels_of(rows, seed=4):
    return tf.constant(np.random.default_rng(seed).integers(C, size=rows), tf.int32)


def gap(logits, z, labels, shares):
    """How far each row's shares are from adding up to F(z) - F(0)."""
    change = tf.gather(logits(z) - logits(tf.zeros_like(z)), labels, axis=1, batch_dims=1)
    return tf.abs(tf.reduce_sum(shares, 1) - change).numpy()


# ---------------------------------------------------------------- integrated gradients


def test_shares_add_up_to_the_change_of_the_logit_with_the_error_of_the_midpoint_rule():
    """Completeness, per row; the error falls with the square of the spacing where the network is smooth."""
    logits, z, labels = network(tf.tanh), draw(5, F), labels_of(5)
    points = np.array([8, 16, 32, 64])
    errors = [gap(logits, z, labels, attribution.integrated_gradients(logits, z, labels, n)).mean() for n in points]
    order = -np.polyfit(np.log(points), np.log(errors), 1)[0]
    assert 1.9 < order < 2.1
    assert errors[-1] < 1e-3


def test_shares_add_up_with_relus_too():
    logits, z, labels = network(tf.nn.relu), draw(50, F), labels_of(50)
    few, many = (
        gap(logits, z, labels, attribution.integrated_gradients(logits, z, labels, n)).mean() for n in (16, 1024)
    )
    assert many < few / 16 and many < 1e-2


def test_what_the_original_computed_does_not_add_up():
    """Fault 5: (10/11) x batch-mean gradient x input of all logits together. Ours must be nowhere near it."""
    logits, z, labels = network(tf.tanh), draw(20, F), labels_of(20)
    with tf.GradientTape() as tape:
        tape.watch(z)
        summed = logits(z)
    theirs = 10 / 11 * tf.reduce_mean(tape.gradient(summed, z), 0) * z
    ours = attribution.integrated_gradients(logits, z, labels)
    assert gap(logits, z, labels, ours).mean() < 0.01 < 0.3 < gap(logits, z, labels, theirs).mean()


def test_of_a_linear_network_each_share_is_input_times_weight_to_the_rows_label():
    weights, z, labels = draw(F, C), draw(4, F, seed=2), labels_of(4)
    shares = attribution.integrated_gradients(lambda z: z @ weights + 5.0, z, labels, 1)
    np.testing.assert_allclose(shares, z.numpy() * weights.numpy().T[labels.numpy()], rtol=1e-12)


@given(rows=st.integers(1, 5), row=st.integers(0, 4), points=st.integers(1, 5))
@settings(deadline=None, max_examples=20)
def test_a_rows_shares_are_its_own(rows, row, points):
    logits, z, labels, row = network(tf.nn.relu), draw(rows, F), labels_of(rows), row % rows
    together = attribution.integrated_gradients(logits, z, labels, points)
    alone = attribution.integrated_gradients(logits, z[row : row + 1], labels[row : row + 1], points)
    np.testing.assert_allclose(alone[0], together[row], rtol=1e-10, atol=1e-12)


def test_an_input_that_is_not_looked_at_or_is_zero_has_no_share():
    logits = network(tf.tanh)
    mask = tf.constant(1.0 - np.eye(F)[2])
    z = draw(4, F) * (1.0 - np.eye(F)[0])
    shares = attribution.integrated_gradients(lambda z: logits(z * mask), z, labels_of(4)).numpy()
    assert ((shares != 0) == ~np.isin(np.arange(F), [0, 2])).all()


# ---------------------------------------------------------------- scores of the first layer


class Trained:
    """A small network near the minimum of its loss, on labels that a like network drew: its own probabilities fit."""

    rows = 2000

    def __init__(self):
        draws = np.random.default_rng(7)
        # inputs of unlike strength, so that unlike amounts hang on them
        self.z = tf.constant(draws.normal(size=(self.rows, F)) * np.linspace(0.1, 1.5, F))
        odds = tf.nn.softmax(0.7 * network(tf.nn.relu, seed=20)(self.z)).numpy()
        self.labels = tf.constant([draws.choice(C, p=row) for row in odds], tf.int32)
        self.weights = [tf.Variable(draw(*shape, seed=30, scale=0.4)) for shape in ((F, H), (H,), (H, C))]
        learn = tf.function(self.step)
        for _ in range(300):
            learn()
        self.kernel, self.bias = self.weights[0].value(), self.weights[1].value()

    def step(self):
        with tf.GradientTape() as tape:
            loss = self.loss(self.weights[0])
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(0.5 * gradient)

    def above(self, pre):
        return tf.tanh(pre) @ self.weights[2]

    def losses(self, kernel, z, labels):
        logits = self.above(z @ kernel + self.weights[1])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def loss(self, kernel):
        return tf.reduce_mean(self.losses(kernel, self.z, self.labels))

    def scores(self, kernel):
        return attribution.first_layer(self.above, kernel, self.bias, self.z, self.labels)

    def removed(self, kernel, which):
        """The loss that taking away weights really costs: all of input i, or that of (i, h)."""
        left = kernel.numpy()
        left[which] = 0.0
        return float(self.loss(tf.constant(left)) - self.loss(kernel))

    def gradients(self, kernel):
        """Per example, [rows, F, H], one tape each."""
        found = []
        for n in range(len(self.z)):
            with tf.GradientTape() as tape:
                tape.watch(kernel)
                loss = self.losses(kernel, self.z[n : n + 1], self.labels[n : n + 1])
            found.append(tape.gradient(loss, kernel).numpy())
        return np.array(found)

    def shrunk(self, i, share):
        kernel = self.kernel.numpy()
        kernel[i] *= share
        return tf.constant(kernel)


@pytest.fixture(scope="module")
def trained():
    return Trained()


def ranks(values):
    return np.argsort(np.argsort(values))


def of_the_original(trained, kernel):
    """Fault 6: -sum(v g) - sum(v g^2), g of the batch."""
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        loss = trained.loss(kernel)
    g, v = tape.gradient(loss, kernel).numpy(), kernel.numpy()
    return -(v * g).sum(1) - (v * g**2).sum(1)


def test_the_pruning_score_is_made_of_per_example_gradients(trained):
    kernel, z, labels = trained.kernel, trained.z, trained.labels
    trained.z, trained.labels = z[:40], labels[:40]
    try:
        g, v = trained.gradients(kernel), kernel.numpy()
        scores = trained.scores(kernel)
    finally:
        trained.z, trained.labels = z, labels
    wanted = (-g.mean(0) * v + 0.5 * (g**2).mean(0) * v**2).sum(1)
    np.testing.assert_allclose(scores.pruning, wanted, rtol=1e-9)
    np.testing.assert_allclose(scores.gradient, np.abs(g.mean(0)).mean(1), rtol=1e-9)


def test_the_pruning_score_foretells_what_removal_costs(trained):
    """Brute force: every weight is taken away in turn and put back, and then every input with all its weights."""
    scores, theirs = trained.scores(trained.kernel).pruning.numpy(), of_the_original(trained, trained.kernel)
    one_by_one = np.array([sum(trained.removed(trained.kernel, (i, h)) for h in range(H)) for i in range(F)])
    at_once = np.array([trained.removed(trained.kernel, i) for i in range(F)])
    np.testing.assert_allclose(scores, one_by_one, rtol=0.3)
    assert np.median(np.abs(theirs / one_by_one)) < 0.2
    for real in (one_by_one, at_once):
        assert real.max() > 10 * real.min() > 0  # there is something to foretell
        assert np.corrcoef(ranks(scores), ranks(real))[0, 1] > 0.9 > 0.7 > np.corrcoef(ranks(theirs), ranks(real))[0, 1]


def test_the_error_of_the_score_falls_with_the_square_of_what_is_removed(trained):
    """Its first-order term is exact, its second-order one an estimate; fault 6 errs in the first order."""
    shares = 2.0 ** -np.arange(4, 9)
    ours, theirs = [], []
    for share in shares:
        kernels = [trained.shrunk(i, share) for i in range(F)]
        real = np.array([trained.removed(kernel, i) for i, kernel in enumerate(kernels)])
        ours.append(np.abs([trained.scores(k).pruning[i] for i, k in enumerate(kernels)] - real).sum())
        theirs.append(np.abs([of_the_original(trained, k)[i] for i, k in enumerate(kernels)] - real).sum())
    orders = [np.polyfit(np.log(shares), np.log(errors), 1)[0] for errors in (ours, theirs)]
    assert orders[0] > 1.8 and orders[1] < 1.3


def test_where_the_mean_gradient_is_zero_the_second_order_term_decides():
    """One weight v = log(6/4) before a logistic unit, 6 of 10 labels right: the loss is at its minimum.

    Its curvature is p (1 - p) = 0.24, which the squared per-example gradients give exactly; the squared mean gives 0.
    """
    v = tf.constant([[np.log(1.5)]])
    labels = tf.constant([0] * 6 + [1] * 4)

    def above(pre):
        return tf.concat([pre, tf.zeros_like(pre)], 1)

    def loss(v):
        return np.log1p(np.exp(-v)) * 0.6 + np.log1p(np.exp(v)) * 0.4

    scores = attribution.first_layer(above, v, tf.zeros(1, tf.float64), tf.ones((10, 1), tf.float64), labels)
    assert float(scores.gradient[0]) == pytest.approx(0.0, abs=1e-15)
    assert float(scores.pruning[0]) == pytest.approx(0.5 * 0.24 * np.log(1.5) ** 2, rel=1e-9)
    assert float(scores.pruning[0]) == pytest.approx(loss(0.0) - loss(np.log(1.5)), rel=0.03)


def test_magnitudes_do_not_cancel_and_do_not_grow_with_the_width():
    """Fault 7: a signed sum is zero here, and ten times another where only the width is ten times."""
    for width in (2, 20):
        kernel = tf.constant([[0.5, -0.5] * (width // 2), [0.0, 2.0] * (width // 2)])
        scores = attribution.first_layer(tf.identity, kernel, tf.zeros(width), tf.ones((3, 2)), tf.zeros(3, tf.int32))
        np.testing.assert_allclose(scores.weight, [0.5, 1.0])
