"""Rules of the alarm, on arrays: each cause by what it leaves behind."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from learners.mechanics import alarm, charges, exact
from learners.optimizers import Rule

spec = importlib.util.spec_from_file_location("laws_world", Path(__file__).with_name("laws_world.py"))
laws_world = importlib.util.module_from_spec(spec)
spec.loader.exec_module(laws_world)
Net, Run = laws_world.Net, laws_world.Run
STEPS, RATE = 10, 0.05


def window(name, *, at=None, lag=None):
    """A look after a few steps of a fresh network; the gradient of step `at`, or of the look, is `lag` steps old."""
    net = Net((10,)).dense(40).act("relu").dense(30).act("relu").dense(3).end()
    run = Run(net, Rule(name, momentum=0.5), rows=200)
    state, taken, kept = exact.start(run.charges, 1), [], []
    for step in range(STEPS):
        kept.append(run.gradients())
        stale = kept[-1 - lag] if step == at else None
        moved = run.weights
        buffers, sums, _ = run.step(RATE, gradients=stale)
        after = exact.advance(exact.Motion(name, 0.5), state, run.degrees, buffers, sums)
        steps = laws_world.arrays([new - old for new, old in zip(run.weights, moved, strict=True)])
        length = charges.lengths(run.laws, steps, steps)
        taken.append(alarm.Taken(step, state, after, buffers, sums, length))
        state = after
    kept.append(run.gradients())
    gradient = laws_world.arrays((kept[-1 - lag] if at == STEPS else kept[-1])[0])
    weights = laws_world.arrays(run.weights)
    return alarm.Look(
        "x",
        run.laws,
        exact.Motion(name, 0.5),
        STEPS,
        tuple(taken),
        run.charges - state.q_N,
        run.sizes,
        charges.along(run.laws, weights, gradient),
        charges.lengths(run.laws, gradient, gradient),
        charges.products(run.laws, gradient, gradient),
    )


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_a_clean_window_raises_nothing(name):
    assert alarm.judge(window(name)) is None


@pytest.mark.parametrize("name", ["sgd", "momentum"])
@pytest.mark.parametrize("lag", [1, 3])
def test_a_stale_gradient_in_the_step_that_is_looked_at(name, lag):
    found = alarm.judge(window(name, at=STEPS, lag=lag))
    assert (found.cause, found.step) == ("gradient stale", STEPS)


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_a_stale_gradient_in_a_step_before(name):
    found = alarm.judge(window(name, at=STEPS - 4, lag=3))
    assert found.cause == "gradient stale"


def test_noise_on_a_gradient_is_not_stale():
    look = window("sgd")
    draws = np.random.default_rng(1)
    along = 0.3 * np.sqrt(look.size_N * look.gradient_N) * draws.normal(size=len(look.size_N))
    found = alarm.judge(look._replace(along_N=along))
    assert (found.cause, found.seen) == ("gradient poisoned", STEPS)


@pytest.mark.parametrize("field", ["jump_N", "along_N", "gradient_N"])
def test_what_is_not_finite_names_its_layer(field):
    look = window("sgd")
    values = getattr(look, field).copy()
    values[45] = np.nan
    found = alarm.judge(look._replace(**{field: values}))
    assert (found.cause, found.layers) == ("non-finite", ("dense2",))


def test_weights_that_moved_further_than_any_step_are_corrupted():
    look = window("sgd")
    found = alarm.judge(look._replace(jump_N=np.sign(look.jump_N + 1e-30) * look.size_N))
    assert found.cause == "weight corrupted"


def test_the_replica_that_has_other_charges_than_the_rest_is_named():
    laws = window("sgd").laws
    usual = np.arange(sum(law.units for law in laws), dtype=float)
    other = usual.copy()
    other[3] += 1e-6
    found = alarm.diverged(laws, 7, [("a", usual), ("b", other), ("c", usual.copy())])
    assert [(one.learner, one.cause, one.layers, one.step) for one in found] == [
        ("b", "replica diverged", ("dense0",), 7)
    ]
    assert alarm.diverged(laws, 7, [("a", usual), ("b", usual.copy())]) == []


def test_an_alarm_says_who_where_when_and_why():
    text = str(alarm.Alarm("top", ("encoder_0",), 12, 20, "update lost", 3e-4))
    assert text == "learners.top: mechanics: update lost at step 12 (seen at step 20): encoder_0: off by 3.0e-04"
