"""Update rules against Keras's own and against their equations; schedules by their properties."""

import math
from itertools import pairwise

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from learners import optimizers
from learners.optimizers import SLOTS, Rule

STEPS = 6
RULES = [
    Rule("sgd"),
    Rule("momentum", momentum=0.8),
    Rule("momentum", momentum=0.0),
    Rule("nesterov", momentum=0.8),
    Rule("adam", beta_1=0.85, beta_2=0.95),
    Rule("adam", beta_1=0.0, epsilon=1e-2),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.momentum}-{rule.beta_1}")
each_decay = pytest.mark.parametrize("decay", [("coupled", 0.0), ("coupled", 0.1), ("decoupled", 0.1)], ids=str)


def path(rule, theta, gradients, rates):
    """Where our rule leads, step by step."""
    theta = tf.constant(theta)
    slots = [tf.zeros_like(theta) for _ in range(SLOTS[rule.name])]
    places = []
    for count, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        rate, count = (tf.constant(x, theta.dtype) for x in (rate, count))
        step, slots = optimizers.delta(rule, theta, tf.constant(gradient), slots, rate, count)
        theta = theta + step
        places.append(theta.numpy())
    return np.array(places)


def keras_path(rule, theta, gradients, rates, dtype):
    decay = rule.weight_decay if rule.decay == "decoupled" and rule.weight_decay else None
    if rule.name == "adam":
        made = keras.optimizers.Adam(1.0, rule.beta_1, rule.beta_2, rule.epsilon, weight_decay=decay)
    else:
        momentum = {"sgd": 0.0}.get(rule.name, rule.momentum)
        made = keras.optimizers.SGD(1.0, momentum, nesterov=rule.name == "nesterov", weight_decay=decay)
    weight = keras.Variable(theta, dtype=dtype)
    places = []
    for count, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        if rule.decay == "coupled":
            gradient = gradient + rule.weight_decay * weight.numpy()
        made.learning_rate = rate
        # Keras adds epsilon before the bias correction of the second moment, the paper and we after it
        made.epsilon = rule.epsilon * math.sqrt(1.0 - rule.beta_2**count)
        made.apply([tf.constant(gradient, dtype)], [weight])
        places.append(weight.numpy())
    return np.array(places)


def problem(dtype):
    draw = np.random.default_rng(3)
    gradients = draw.normal(size=(STEPS, 3, 2)).astype(dtype)
    gradients[2] *= 1e-3
    gradients[:, 0, 0] = 0.0  # a weight that gets no gradient
    return draw.normal(size=(3, 2)).astype(dtype), gradients, np.linspace(0.3, 0.02, STEPS)


@each_rule
@each_decay
def test_every_rule_is_that_of_keras(rule, decay):
    rule = rule._replace(decay=decay[0], weight_decay=decay[1])
    theta, gradients, rates = problem(np.float32)
    ours, theirs = path(rule, theta, gradients, rates), keras_path(rule, theta, gradients, rates, "float32")
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    assert np.abs(ours - theta).max() > 0.01  # and it went somewhere


def by_hand(rule, theta, gradients, rates):
    """The equations of the docstring in NumPy."""
    velocity = first = second = np.zeros_like(theta)
    places = []
    for t, (g, eta) in enumerate(zip(gradients, rates, strict=True), 1):
        d = g + rule.weight_decay * theta if rule.decay == "coupled" else g
        shrink = eta * rule.weight_decay * theta if rule.decay == "decoupled" else 0.0
        if rule.name == "sgd":
            step = -eta * d
        elif rule.name == "adam":
            first = rule.beta_1 * first + (1 - rule.beta_1) * d
            second = rule.beta_2 * second + (1 - rule.beta_2) * d**2
            step = -eta * first / (1 - rule.beta_1**t) / (np.sqrt(second / (1 - rule.beta_2**t)) + rule.epsilon)
        else:
            velocity = rule.momentum * velocity - eta * d
            step = velocity if rule.name == "momentum" else rule.momentum * velocity - eta * d
        theta = theta + step - shrink
        places.append(theta)
    return np.array(places)


@each_rule
@each_decay
def test_every_rule_is_that_of_its_equations_to_the_last_digits(rule, decay):
    rule = rule._replace(decay=decay[0], weight_decay=decay[1])
    theta, gradients, rates = problem(np.float64)
    ours = path(rule, theta, gradients, rates)
    np.testing.assert_allclose(ours, by_hand(rule, theta, gradients, rates), rtol=1e-12, atol=1e-13)


def test_decoupled_decay_is_not_seen_by_the_moments():
    """At gradients of zero coupled Adam takes steps of the size of the rate; decoupled decay shrinks in proportion."""
    theta, gradients = np.array([2.0, -0.7]), np.zeros((STEPS, 2))
    rule = Rule("adam", weight_decay=0.1, decay="decoupled")
    shrunk = path(rule, theta, gradients, [0.5] * STEPS)
    np.testing.assert_allclose(shrunk, theta * 0.95 ** np.arange(1, STEPS + 1)[:, None], rtol=1e-12)
    coupled = path(rule._replace(decay="coupled"), theta, gradients[:1], [0.5])
    np.testing.assert_allclose(coupled[0], theta - 0.5 * np.sign(theta), rtol=1e-5)


def test_momentum_keeps_steps_of_the_old_rate_when_the_rate_falls():
    """Keras's convention, on which the conservation laws rest: the velocity holds the rate."""
    places = path(Rule("momentum", momentum=0.5), np.zeros(1), np.array([[1.0], [0.0]]), [0.4, 0.0])
    np.testing.assert_allclose(places[:, 0], [-0.4, -0.6])


@pytest.mark.parametrize("name", SLOTS)
@given(shape=st.lists(st.integers(0, 3), max_size=3), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=10)
def test_steps_and_slots_have_the_shape_and_type_of_the_weight(name, shape, seed):
    draw = np.random.default_rng(seed)
    theta, gradient = (tf.constant(draw.normal(size=shape), tf.float32) for _ in range(2))
    slots = [tf.zeros_like(theta) for _ in range(SLOTS[name])]
    step, new = optimizers.delta(Rule(name), theta, gradient, slots, tf.constant(0.1), tf.constant(1.0))
    assert [t.shape for t in (step, *new)] == [theta.shape] * (1 + SLOTS[name])
    assert {t.dtype for t in (step, *new)} == {tf.float32}
    assert np.isfinite(step).all()
    # all rules go downhill at first, none farther than (1 + momentum) x rate x gradient or, for Adam, the rate
    assert (np.sign(step) == -np.sign(gradient)).all()


def test_a_rule_that_does_not_exist_is_refused_in_words():
    with pytest.raises(ValueError, match="'adma' is not a rule; one of sgd, momentum, nesterov, adam"):
        optimizers.delta(Rule("adma"), tf.zeros(1), tf.zeros(1), [], tf.constant(0.1), tf.constant(1.0))
    with pytest.raises(ValueError, match="'cosin' is not a schedule; one of constant, linear, cosine"):
        optimizers.rate(0.1, "cosin", 0, 0, 10)


schedules = st.sampled_from(["constant", "linear", "cosine"])


@given(schedules, st.floats(1e-6, 10), st.integers(0, 20), st.integers(1, 60))
def test_a_rate_rises_along_a_line_and_then_never_again(schedule, initial, warmup, steps):
    rates = [optimizers.rate(initial, schedule, warmup, step, steps) for step in range(steps)]
    assert all(0.0 < rate <= initial * (1 + 1e-12) for rate in rates)
    rise, fall = rates[:warmup], rates[warmup:]
    np.testing.assert_allclose(rise, initial * np.arange(1, len(rise) + 1) / (warmup + 1))
    assert all(later <= earlier for earlier, later in pairwise(fall))
    if fall:
        assert fall[0] == initial  # the next point of the rise: no jump where it ends


@given(schedules, st.integers(0, 20), st.integers(1, 60))
def test_a_schedule_ends_where_it_says(schedule, warmup, after):
    end = optimizers.rate(0.3, schedule, warmup, warmup + after, warmup + after)
    half = optimizers.rate(0.3, schedule, warmup, warmup + after, warmup + 2 * after)
    if schedule == "constant":
        assert end == half == 0.3
    else:
        assert end == pytest.approx(0.0, abs=1e-15) and half == pytest.approx(0.15)


def test_line_and_cosine_are_told_apart():
    quarter = {name: optimizers.rate(1.0, name, 0, 1, 4) for name in ("linear", "cosine")}
    assert quarter == pytest.approx({"linear": 0.75, "cosine": 0.5 + 0.5 * math.cos(math.pi / 4)})
