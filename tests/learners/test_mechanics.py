"""Exact recursions hold to rounding for every network; the paper's curves stay near; what has no law breaks it."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learners.mechanics import curves, exact
from learners.optimizers import Rule
from learners.schedules import rate as scheduled

spec = importlib.util.spec_from_file_location("laws_world", Path(__file__).with_name("laws_world.py"))
laws_world = importlib.util.module_from_spec(spec)
spec.loader.exec_module(laws_world)
Net, Run = laws_world.Net, laws_world.Run
BOUNDS = {"float64": 1e-11, "float32": 2e-5}


def motion(rule):
    return exact.Motion(rule.name, 0.0 if rule.name == "sgd" else rule.momentum)


def followed(run, rates):
    """Take these steps; the greatest error of the exact charges, relative to their sizes, at any step."""
    state = exact.start(run.charges, len(rates[0]))
    worst = 0.0
    for one in rates:
        buffers, sums, _ = run.step(*one)
        state = exact.advance(motion(run.rule), state, run.degrees, buffers, sums)
        worst = max(worst, np.max(np.abs(run.charges - state.q_N) / run.sizes))
    return worst


def dense():
    return Net((5,)).dense(7).act("relu").drop().dense(6).act("leaky_relu").dense(3).end()


@st.composite
def cases(draw):
    """A network of a random shape, a rule, and the rates of its steps."""
    image = draw(st.booleans())
    net = Net((7, 7, 2)) if image else Net((draw(st.integers(2, 6)),))
    if image:
        net.conv(draw(st.integers(2, 5)), draw(st.booleans())).act("relu")
        net.pool() if draw(st.booleans()) else None
        net.flatten()
    net.dense(draw(st.integers(2, 7)), draw(st.booleans())).act(draw(st.sampled_from(["relu", "leaky_relu"])))
    net.dense(3, draw(st.booleans())).end()
    name = draw(st.sampled_from(["sgd", "momentum", "nesterov"]))
    decay = draw(st.sampled_from([("coupled", 0.0), ("coupled", 1e-2), ("decoupled", 1e-2)]))
    beta = draw(st.sampled_from([0.5, 0.9, 0.99]))
    rule = Rule(name, momentum=beta, decay=decay[0], weight_decay=decay[1])
    schedule, warmup = draw(st.sampled_from(["constant", "linear", "cosine"])), draw(st.integers(0, 5))
    first = draw(st.sampled_from([0.01, 0.1])) * (1.0 if name == "sgd" else 1.0 - beta)
    second = draw(st.sampled_from(["none", "always", "now and then"]))
    rates = []
    for step in range(60):
        rate = scheduled(first, schedule, warmup, step, 60)
        other = None if second == "now and then" and step % 3 else 0.1 * rate
        rates.append((rate,) if second == "none" else (rate, other))
    return net, rule, rates


@given(case=cases(), seed=st.integers(0, 99), dtype=st.sampled_from(["float64", "float32"]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_exact_forms_hold_for_every_network_rule_and_schedule(case, seed, dtype):
    net, rule, rates = case
    run = Run(net, rule, dtype=dtype, seed=seed, objectives=len(rates[0]))
    assert followed(run, rates) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov"])
def test_exact_forms_hold_for_long(name, dtype):
    rule = Rule(name, momentum=0.9, weight_decay=1e-3)
    rate = 0.05 if name == "sgd" else 0.01
    run = Run(dense(), rule, dtype=dtype, objectives=2)
    assert followed(run, [(rate, 0.3 * rate if step % 4 else None) for step in range(1000)]) < BOUNDS[dtype]


def test_two_buffers_need_their_cross_terms():
    run = Run(dense(), Rule("momentum", momentum=0.9), objectives=2)
    state = exact.start(run.charges, 2)
    for _ in range(400):
        buffers, sums, _ = run.step(0.01, 0.01)
        each = tuple(cross * 0.0 for cross in sums.cross_KN)
        state = exact.advance(motion(run.rule), state, run.degrees, buffers, sums._replace(cross_KN=each))
    assert np.max(np.abs(run.charges - state.q_N) / run.sizes) > 1e-2


@pytest.mark.parametrize("activation", ["tanh"])
def test_without_the_symmetry_the_law_breaks(activation):
    net = dense()
    run = Run(net, Rule("sgd"))
    net.steps[:] = [s._replace(detail=activation) if s.kind == "activation" else s for s in net.steps]
    assert followed(run, [(0.1,)] * 500) > 1e-2


def test_a_gradient_that_lacks_the_symmetry_is_a_drive_that_can_be_measured():
    """As a parent's gradient is for the last encoder layer: on some tensors of a charge, not on others."""
    run = Run(dense(), Rule("momentum", momentum=0.9), objectives=2)
    state = exact.start(run.charges, 2)
    for _ in range(200):
        own, foreign = run.gradients()
        foreign = [*foreign[:4], *(0 * g for g in foreign[4:])]
        weights = laws_world.arrays(run.weights)
        drive = laws_world.charges.along(run.laws, weights, laws_world.arrays(foreign))
        buffers, sums, _ = run.step(0.02, 0.01, gradients=[own, foreign])
        sums = sums._replace(drive_KN=(None, drive))
        state = exact.advance(motion(run.rule), state, run.degrees, buffers, sums)
    assert np.max(np.abs(drive)) > 1e-3
    assert np.max(np.abs(run.charges - state.q_N) / run.sizes) < 1e-11


def test_a_bias_before_a_normalisation_decays_and_does_nothing_else():
    rule, rate = Rule("sgd", weight_decay=0.05), 0.1
    run = Run(Net((4,)).dense(8).norm().act("relu").dense(3).end(), rule)
    bias = run.weights[1].numpy()
    for _ in range(50):
        run.step(rate)
    np.testing.assert_allclose(run.weights[1].numpy(), bias * (1 - rate * 0.05) ** 50, rtol=1e-10)


def test_the_scale_law_under_batch_normalisation_holds_but_for_its_epsilon():
    run = Run(Net((4,)).dense(8).norm().act("relu").dense(3).end(), Rule("momentum", weight_decay=1e-3), rows=32)
    assert followed(run, [(0.01,)] * 300) < 20 * laws_world.EPSILON


def test_adams_budget_is_the_change_of_every_charge():
    run = Run(dense(), Rule("adam", weight_decay=1e-2, decay="decoupled"))
    for _ in range(50):
        before, charged = run.weights, run.charges
        run.step(1e-2)
        moved = [after - w for after, w in zip(run.weights, before, strict=True)]
        weights = laws_world.arrays(before)
        linear = run.degrees * laws_world.charges.along(run.laws, weights, laws_world.arrays(moved))
        budget = exact.Budget(linear, run.products(moved, moved))
        assert np.max(np.abs(run.charges - charged - budget.change_N) / run.sizes) < 1e-13


# ---------------------------------------------------------------- the paper's curves


def with_curve(run, rates, step):
    """Errors of a curve relative to the greatest size of any unit so far."""
    curve, worst, largest = curves.start(run.charges), 0.0, run.sizes.max()
    for rate in rates:
        _, sums, _ = run.step(rate)
        curve = step(curve, run.degrees, rate, sums.square_N)
        largest = max(largest, run.sizes.max())
        worst = max(worst, np.max(np.abs(run.charges - curve.q_N) / largest))
    return worst


def test_the_papers_curve_of_sgd():
    run = Run(dense(), Rule("sgd", weight_decay=1e-3))
    assert with_curve(run, [0.1] * 800, lambda c, n, h, v: curves.sgd(c, n, h, 1e-3, v)) < 1e-4


@pytest.mark.parametrize(("strength", "bound"), [(0.05, 1e-3), (1.0, 1e-2), (1.5, 1e-2)], ids=["over", "at", "under"])
@pytest.mark.parametrize("beta", [0.9, 0.95])
def test_the_papers_curve_of_momentum(beta, strength, bound):
    """Over-, critically and under-damped: `strength` is om^2 / gam^2."""
    rate = 0.2 * (1 - beta)
    lam = strength * (1 - beta) ** 2 / (4 * rate * (1 + beta))
    run = Run(dense(), Rule("momentum", momentum=beta, weight_decay=lam))
    assert with_curve(run, [rate] * 600, lambda c, n, h, v: curves.momentum(c, n, h, beta, lam, v)) < bound


@pytest.mark.parametrize("beta", [0.9, 0.95, 0.99])
def test_the_curve_of_momentum_overflows_at_no_step(beta):
    """The published code does at step 843, 1,730 and 8,828."""
    rate, lam, degree = 0.1, 5e-4, np.array([2.0, 2.0, 1.0])
    draws = np.random.default_rng(3)
    state, curve = exact.start(np.array([1.0, -0.5, 2.0]), 1), curves.start(np.array([1.0, -0.5, 2.0]))
    buffer, worst = exact.Buffer(rate, lam), 0.0
    for step in range(20_000):
        square = np.array([1.0, -1.0, 0.0]) * 1e-4 * draws.uniform(0.5, 1.5) * math.exp(-step / 4000)
        state = exact.advance(exact.Motion("momentum", beta), state, degree, (buffer,), exact.Sums(square, (square,)))
        curve = curves.momentum(curve, degree, rate, beta, lam, square)
        assert np.isfinite(curve.q_N).all()
        worst = max(worst, np.max(np.abs(curve.q_N - state.q_N)))
    assert worst < 1e-2 * 2.5  # of the greatest charge


@given(
    rate=st.floats(1e-4, 1.0), beta=st.floats(0.0, 0.999), strength=st.floats(0.0, 100.0), near=st.floats(-1e-9, 1e-9)
)
def test_the_flow_is_the_exponential_of_its_matrix(rate, beta, strength, near):
    """Against the differential equation's own solution, at critical damping too; and nothing grows."""
    gamma = (1 - beta) / (rate * (1 + beta))
    for omega2 in (strength * gamma**2, gamma**2 * (1 + near)):
        flow = np.array(curves.flow(rate, beta, omega2))
        scale = np.diag([1.0, rate])  # in units of one step
        generator = np.array([[0.0, 1.0], [-omega2 * rate**2, -2 * gamma * rate]])
        small = np.linalg.matrix_power(
            np.eye(2) + generator / 2**20 + (generator / 2**20) @ (generator / 2**20) / 2, 2**20
        )
        np.testing.assert_allclose(scale @ flow @ np.linalg.inv(scale), small, rtol=1e-6, atol=1e-7)
        assert np.max(np.abs(np.linalg.eigvals(flow))) <= 1 + 1e-12
