"""Each method does what its formula says; nothing is lost in residuals; exact workers agree; faults of the original."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from learners import bases
from learners.bases import Basis, kept
from learners.layout import laid_out
from learners.rbd.defaults import filled
from learners.rbd.descent import Problem, descend
from learners.rbd.directions import Drawn, Past
from learners.rbd.floating import Weights
from learners.rbd.options import (
    Basis as BasisOptions,
)
from learners.rbd.options import (
    Coordinates,
    Correlation,
    Exchange,
    Fpd,
    Group,
    Learn,
    Local,
    Nes,
    Offspring,
    Plain,
    Rbd,
    Sgd,
    Step,
)
from learners.rbd.replica import Diverged, Replica
from learners.rbd.shaping import correlation
from learners.rbd.workers import Method, start, stream

TENSORS = laid_out(
    [("a", 0, "kernel", (8, 5)), ("b", 0, "rest", (5,)), ("c", 1, "kernel", (5, 3)), ("d", 1, "rest", (3,))]
)
D = TENSORS[-1].stop
CHANCE = np.random.default_rng(0)
THETA = CHANCE.standard_normal(D).astype(np.float32)
CURVE = np.linspace(0.5, 1.5, D).astype(np.float32)
GOALS = CHANCE.standard_normal((200, D)).astype(np.float32) * 0.1

#: a bowl whose bottom is a little elsewhere for every batch; a batch is the number of its goal
BOWL = Problem(
    lambda theta, n: (float(np.sum(CURVE * (theta - GOALS[n]) ** 2) / 2), CURVE * (theta - GOALS[n])),
    lambda theta, n: float(np.sum(CURVE * (theta - GOALS[n]) ** 2) / 2),
)
#: neither H, d nor precision of the defaults fit 63 weights
SMALL = BasisOptions(dimensions=12)
PLAIN = Exchange(residual="none", every=1, precision="float32")


def made(kind=Rbd, basis=SMALL, seed=7, number=0, **options):
    if kind not in (Sgd, Local):
        options["basis"] = basis
    method = Method(filled(kind(steps=100, **options), D), TENSORS)
    return method, start(method, THETA, seed, number)


def run(method, worker, rounds, first=0, problem=BOWL):
    """The workers, updates and metrics after each round."""
    found = []
    for _ in range(rounds):
        count = method.batches(worker.shared.directions)
        done = descend(method, worker, problem, range(first, first + count))
        first, worker = (first + count) % 100, done.worker
        found.append(done)
    return found


def matrix(method, update, m=0):
    """E of an update, one compartment."""
    worker = start(method, THETA, 7, update.name.sender)
    drawn = worker.shared.directions
    part = drawn.parts[m]
    return kept.draw(drawn.basis._replace(dimensions=part.dimensions), drawn.key(update.name, m), part.size).astype(
        float
    )


def sent(done):
    return done.update.parts[0].coordinates.astype(float)


# ---------------------------------------------------------------- methods


@pytest.mark.parametrize("kind", [Rbd, Fpd])
def test_plain_steps_go_along_the_projected_gradient(kind):
    method, worker = made(kind, exchange=PLAIN, update=Step(rate=0.5, schedule="constant"))
    for n, done in enumerate(run(method, worker, 3)):
        e = matrix(method, done.update)
        gradient = BOWL.gradient(worker.shared.theta, n)[1]
        assert np.allclose(sent(done), 0.5 / D * e.T @ gradient, rtol=1e-4, atol=1e-7)
        assert np.allclose(done.worker.shared.theta, worker.shared.theta - e @ sent(done), atol=1e-6)
        worker = done.worker


def test_rbd_redraws_every_n_updates_and_fpd_never():
    for kind, redraw, groups in ((Rbd, 1, 6), (Rbd, 3, 2), (Fpd, None, 1)):
        method, worker = made(kind, replace(SMALL, redraw=redraw), exchange=PLAIN)
        drawn = {matrix(method, done.update).tobytes() for done in run(method, worker, 6)}
        assert len(drawn) == groups


def test_directions_differ_by_worker_incarnation_and_seed():
    worker = made(exchange=PLAIN)[1]
    drawn = worker.shared.directions
    names = [
        worker.name,
        worker.name._replace(sender=1),
        worker.name._replace(incarnation=1),
        worker.name._replace(sequence=1),
    ]
    assert len({drawn.key(name, 0) for name in names}) == 4
    shared = Drawn(7, drawn.parts, drawn.basis, shared=True)
    assert len({shared.key(name, 0) for name in names[:3]}) == 1


def test_fixed_directions_lead_to_the_bottom_of_their_span_and_no_further():
    problem = Problem(lambda theta, n: BOWL.gradient(theta, 0), BOWL.loss)
    method, worker = made(Fpd, exchange=PLAIN, update=Step(rate=0.4, schedule="constant"))
    last = run(method, worker, 400, problem=problem)[-1]
    e = matrix(method, last.update)
    left = problem.gradient(last.worker.shared.theta, 0)[1]
    assert np.linalg.norm(e.T @ left) < 1e-3 * np.linalg.norm(e.T @ problem.gradient(THETA, 0)[1])
    assert np.linalg.norm(left) > 1.0


@pytest.mark.parametrize("exact", [True, False])
def test_rounds_with_the_residual_applied_locally(exact):
    """theta_k = T - e; h = T - theta_k after H steps; u = E c; e <- h - u; T <- T - w u."""
    options = {"exchange": Exchange(every=4), "update": Step(rate=0.05, weight=2.5 if exact else 2.3)}
    method, worker = made(**options)
    assert isinstance(worker.shared, Replica if exact else Weights)
    t, e, first = THETA.astype(float), np.zeros(D), 0
    for done in run(method, worker, 6):
        theta = t - e
        for n in range(first, first + 4):
            theta = theta - 0.05 * BOWL.gradient(theta, n)[1]
        h = t - theta
        directions = matrix(method, done.update)
        c = directions.T @ h / D
        values, exponent = done.update.parts[0]
        assert (values == np.sign(c)).all() and exponent == round(np.log2(np.abs(c).mean()))
        u = directions @ sent(done)
        t, e, first = t - method.learner.update.weight * u, h - u, first + 4
        assert np.allclose(done.worker.shared.theta, t, atol=1e-5)
        assert np.allclose(done.worker.shared.value(done.worker.residual), e, atol=1e-5)


@given(
    st.integers(1, 5),
    st.sampled_from(["sign", "int4", "int8", "int16", "float32"]),
    st.sampled_from([1.0, 2.5, 0.8125]),
)
@settings(max_examples=25, deadline=None)
def test_nothing_is_lost_in_a_local_residual(every, precision, weight):
    """To the bit: all local steps, in units, are all that was shared and what is still to be."""
    method, worker = made(exchange=Exchange(every=every, precision=precision), update=Step(weight=weight))
    steps, shared, before = np.zeros(D, np.int64), np.zeros(D, np.int64), worker
    for done in run(method, worker, 8):
        begun = before.shared.at(before.residual)
        theta = begun
        first = before.step
        for n in range(first, first + every):
            theta = theta - np.float32(0.1) * BOWL.gradient(theta, n)[1]
        steps += before.shared.units(begun - theta)
        shared += before.shared.shared(done.update)
        before = done.worker
        assert (steps == shared + before.residual).all()
        # where a worker stands, plus what it has not shared, is what all know
        stands = before.shared.at(before.residual)
        assert (stands == THETA + before.shared.value(before.shared.moved - before.residual)).all()
    assert (-before.shared.moved * 2**before.shared.grid.shift == before.shared.grid.numerator * shared).all()


def test_what_others_send_leaves_the_residual_alone():
    (method, one), (_, two) = made(), made(number=1)
    done = run(method, two, 1)[0]
    mine = run(method, one, 1)[0].worker
    after = mine.apply([done.update])
    assert after.residual is mine.residual
    assert after.shared.at(after.residual).tobytes() != mine.shared.at(mine.residual).tobytes()


def test_a_leaky_residual_is_what_directions_missed():
    """h = e + g; e <- rho (h - u / rate)"""
    method, worker = made(exchange=Exchange(residual="leaky", leak=0.9), update=Step(rate=0.5, schedule="linear"))
    for n, done in enumerate(run(method, worker, 5)):
        rate = method.rate(n)
        h = BOWL.gradient(worker.shared.theta, n)[1] + (0 if worker.residual is None else worker.residual)
        c = rate / D * matrix(method, done.update).T @ h
        assert (done.update.parts[0].values == np.sign(c)).all()
        u = matrix(method, done.update) @ sent(done)
        assert np.allclose(done.worker.residual, 0.9 * (h - u / rate), atol=1e-5)
        worker = done.worker
    assert method.learner.exchange.precision == "sign"


def test_rounds_without_a_residual_forget_it():
    method, worker = made(exchange=Exchange(residual="none", every=3))
    assert method.rounds and all(done.worker.residual is None for done in run(method, worker, 2))


def test_sgd_is_sgd():
    method, worker = made(Sgd, exchange=Group(mode="sync"), update=Step(rate=0.2, schedule="linear"))
    theta = THETA
    for n, done in enumerate(run(method, worker, 4)):
        theta = theta - np.float32(method.rate(n)) * BOWL.gradient(theta, n)[1]
        assert np.allclose(done.worker.shared.theta, theta, atol=1e-6)
        assert done.metrics["bytes"] == 4 * D + 8 and done.metrics["correlation"] == pytest.approx(1.0)


@pytest.mark.parametrize("residual", ["none", "local"])
def test_local_sgd_sends_whole_weights(residual):
    exchange = Exchange(every=5, residual=residual)
    method, worker = made(Local, exchange=exchange, update=Step(rate=0.1))
    done = run(method, worker, 1)[0]
    theta = THETA
    for n in range(5):
        theta = theta - np.float32(0.1) * BOWL.gradient(theta, n)[1]
    step = np.abs(THETA - theta).max() / 127
    assert np.abs(done.worker.shared.theta - theta).max() <= step
    assert done.metrics["bytes"] == D + 1 and isinstance(done.worker.shared, Replica)
    assert (done.worker.residual is not None) == (residual == "local")


def test_diloco_is_local_sgd_with_an_outer_nesterov():
    update = Step(rate=0.1, weight=0.7, momentum=0.9, nesterov=True)
    method, worker = made(Local, exchange=Exchange(every=5, mode="sync", precision="float32"), update=update)
    theta, velocity, first = THETA, 0, 0
    for done in run(method, worker, 4):
        local = theta
        for n in range(first, first + 5):
            local = local - 0.1 * BOWL.gradient(local, n)[1]
        step = 0.7 * (theta - local)
        velocity = 0.9 * velocity + step
        theta, first = theta - step - 0.9 * velocity, first + 5
        assert np.allclose(done.worker.shared.theta, theta, atol=1e-5)


@pytest.mark.parametrize("batches", ["own", "shared"])
def test_nes_ranks_losses_and_needs_no_gradient(batches):
    seen = []

    def loss(theta, n):
        seen.append(n)
        return BOWL.loss(theta, n)

    offspring = Offspring(sigma=0.1, batches=batches)
    method, worker = made(Nes, exchange=PLAIN, offspring=offspring, update=Step(rate=0.3, schedule="constant"))
    done = run(method, worker, 1, problem=Problem(None, loss))[0]
    e = matrix(method, done.update)
    losses = np.array([BOWL.loss(THETA + np.float32(0.1) * e[:, j].astype(np.float32), seen[j]) for j in range(12)])
    ranks = np.argsort(np.argsort(losses)) / 11 - 0.5
    assert np.allclose(sent(done), 0.3 / (12 * 0.1) * ranks, atol=1e-5)
    assert seen == (list(range(12)) if batches == "own" else [0] * 12)
    assert "correlation" not in done.metrics


def test_past_gradients_as_directions():
    basis = BasisOptions(dimensions=3, distribution="gradients")
    method, worker = made(basis=basis, exchange=PLAIN, update=Step(rate=0.5, schedule="constant"))
    gradients = []
    for n, done in enumerate(run(method, worker, 4)):
        g = BOWL.gradient(worker.shared.theta, n)[1].astype(float)
        moved = worker.shared.theta - done.worker.shared.theta
        if gradients:
            span = np.linalg.qr(np.stack(gradients[-3:], 1))[0]
            assert np.allclose(moved, 0.5 * span @ (span.T @ g), atol=1e-4)
        else:
            assert not moved.any()
        gradients.append(g)
        rows = done.worker.shared.directions.rows
        assert np.allclose(rows @ rows.T, np.diag(np.arange(3) <= n), atol=1e-5)
        assert np.linalg.norm(rows @ g) == pytest.approx(np.linalg.norm(g), rel=1e-4)  # the newest is in the span
        worker = done.worker


def test_a_gradient_in_the_span_brings_no_direction():
    past = Past(np.zeros((2, D), np.float32)).with_gradient(THETA)
    assert past.with_gradient(THETA * 3).oldest in (0, 1)
    twice = past.with_gradient(GOALS[0]).with_gradient(GOALS[1])
    assert np.linalg.matrix_rank(twice.rows) == 2


def test_base_learning_redraws_the_directions_that_moved_least_or_most():
    for what in ("small", "large"):
        basis = replace(SMALL, redraw=None, learn=Learn(redraw=what, fraction=0.25, every=2))
        method, worker = made(Rbd, basis, exchange=PLAIN)
        first, second, third = run(method, worker, 3)
        before, after = worker.shared.directions, second.worker.shared.directions
        assert first.worker.shared.directions.births == before.births == (0,) * 12
        assert third.worker.shared.directions == after
        travelled = np.abs(sent(first) + sent(second))
        order = np.argsort(travelled)
        chosen = order[:3] if what == "small" else order[-3:]
        assert {j for j in range(12) if after.births[j] == 2} == set(chosen.tolist())
        assert third.worker.travelled is not None and second.worker.travelled is None
        keys, new = before.keys(worker.name), after.keys(worker.name)
        assert [j for j in range(12) if keys[j] != new[j]] == sorted(chosen.tolist())


# ---------------------------------------------------------------- options of coordinates


def test_coordinates_that_are_not_reset_are_a_heavy_ball():
    """c <- c + rate scale E^T g(T - E c);  T <- T - E c"""
    for reset in (0, 1, 2):
        given = Coordinates(reset=reset)
        method, worker = made(Fpd, exchange=PLAIN, coordinates=given, update=Step(rate=0.1, schedule="constant"))
        c, t = np.zeros(12), THETA.astype(float)
        for n, done in enumerate(run(method, worker, 5)):
            e = matrix(method, done.update)
            c = c + 0.1 / D * e.T @ BOWL.gradient((t - e @ c).astype(np.float32), n)[1]
            t = t - e @ c
            assert np.allclose(sent(done), c, atol=1e-6)
            if reset and (n + 1) % reset == 0:
                c = np.zeros(12)


def test_a_continuous_update_descends_within_one_basis():
    method, worker = made(
        exchange=PLAIN, coordinates=Coordinates(continuous=4), update=Step(rate=2.0, schedule="constant")
    )
    done = run(method, worker, 1)[0]
    e, c = matrix(method, done.update), np.zeros(12)
    for n in range(4):
        c = c + 2.0 / D * e.T @ BOWL.gradient((THETA - e @ c).astype(np.float32), n)[1]
    assert np.allclose(sent(done), c, atol=1e-5)
    assert done.worker.step == 4 and done.worker.sequence == 1


@pytest.mark.parametrize(
    ("given", "check"),
    [
        (
            Coordinates(keep="top", count=3),
            lambda c, s: (np.flatnonzero(s) == np.sort(np.argsort(-np.abs(c))[:3])).all(),
        ),
        (Coordinates(keep="best", fraction=0.5), lambda c, s: np.abs(c)[s == 0].max() < np.abs(c)[s != 0].min()),
        (Coordinates(keep="lowest", fraction=0.5), lambda c, s: np.abs(c)[s == 0].min() > np.abs(c)[s != 0].max()),
        (
            Coordinates(transform="ranks"),
            lambda c, s: (np.argsort(c) == np.argsort(s)).all() and np.ptp(np.diff(np.sort(s))) < 1e-6,
        ),
        (Coordinates(transform="minmax"), lambda c, s: s.max() == pytest.approx(-s.min())),
    ],
)
def test_what_is_done_to_coordinates(given, check):
    plain = sent(run(*made(exchange=PLAIN), 1)[0])
    shaped = sent(run(*made(exchange=PLAIN, coordinates=given), 1)[0])
    assert check(plain, shaped) and not np.allclose(plain, shaped)
    if given.transform != "none":
        assert np.linalg.norm(shaped) == pytest.approx(np.linalg.norm(plain), rel=1e-5)


@pytest.mark.parametrize("precision", ["float32", "int16", "int8", "int4", "sign"])
def test_precision_is_what_travels(precision):
    method, worker = made(exchange=replace(PLAIN, precision=precision))
    done = run(method, worker, 1)[0]
    sizes = {"float32": 49, "int16": 25, "int8": 13, "int4": 7, "sign": 3}
    assert done.metrics["bytes"] == sizes[precision]
    assert np.allclose(done.worker.shared.theta, THETA - matrix(method, done.update) @ sent(done), atol=1e-6)


# ---------------------------------------------------------------- options of the update


def test_momentum_on_weights():
    method, worker = made(exchange=PLAIN, update=Step(rate=0.5, momentum=0.8))
    velocity = 0
    for done in run(method, worker, 4):
        velocity = 0.8 * velocity + matrix(method, done.update) @ sent(done)
        assert np.allclose(done.worker.shared.theta, worker.shared.theta - velocity, atol=1e-5)
        worker = done.worker


@pytest.mark.parametrize(("others", "taking"), [(False, (0,)), (True, (1,))])
def test_gradient_steps_for_one_layer_or_all_others(others, taking):
    plain = Plain(layer=0, others=others, rate=0.3)
    method, worker = made(exchange=PLAIN, update=Step(rate=0.5, schedule="constant", plain=plain))
    done = run(method, worker, 1)[0]
    gradient = BOWL.gradient(THETA, 0)[1]
    rest = gradient.copy()
    for tensor in TENSORS:
        if tensor.layer in taking:
            rest[tensor.place] = 0
    e = matrix(method, done.update)
    assert np.allclose(sent(done), 0.5 / D * e.T @ rest, atol=1e-6)
    moved = THETA - done.worker.shared.theta
    for tensor in TENSORS:
        wanted = 0.3 * gradient if tensor.layer in taking else e @ sent(done)
        assert np.allclose(moved[tensor.place], wanted[tensor.place], atol=1e-5)


def test_gradient_steps_first_and_last():
    plain = Plain(first=2, last=3, rate=0.3)
    learner = filled(Rbd(steps=8, basis=SMALL, exchange=PLAIN, update=Step(rate=0.5, plain=plain)), D)
    method = Method(learner, TENSORS)
    rounds = run(method, start(method, THETA, 7), 8)
    assert [bool(done.update.patches) for done in rounds] == [True] * 2 + [False] * 3 + [True] * 3
    assert [len(done.update.parts) for done in rounds] == [0] * 2 + [1] * 3 + [0] * 3
    assert rounds[0].metrics["correlation"] == pytest.approx(1.0)


def test_a_gradient_step_where_the_update_hardly_goes_along_the_gradient():
    usual = run(*made(exchange=PLAIN), 6)
    cosines = [done.metrics["correlation"] for done in usual]
    assert 0.2 < np.mean(cosines) < 0.7  # sqrt(d / D) = 0.44
    below = [run(*made(exchange=PLAIN, update=Step(correlation=Correlation(plain_below=c))), 1)[0] for c in (-1.0, 1.0)]
    assert not below[0].update.patches and below[1].metrics["correlation"] == pytest.approx(1.0)


def test_an_update_that_is_scaled_by_its_cosine():
    usual = run(*made(exchange=PLAIN), 1)[0]
    scaled = run(*made(exchange=PLAIN, update=Step(correlation=Correlation(scale=True))), 1)[0]
    assert np.allclose(sent(scaled), usual.metrics["correlation"] * sent(usual), rtol=1e-4)
    assert isinstance(scaled.worker.shared, Replica)


def test_the_surgeon_updates_only_tensors_above_its_threshold():
    usual = run(*made(exchange=PLAIN), 1)[0]
    moved, gradient = THETA - usual.worker.shared.theta, BOWL.gradient(THETA, 0)[1]
    cosines = [correlation(moved[t.place], gradient[t.place]) for t in TENSORS]
    threshold = float(np.sort(cosines)[1] + np.sort(cosines)[2]) / 2
    done = run(*made(exchange=PLAIN, update=Step(correlation=Correlation(surgeon=threshold))), 1)[0]
    for tensor, cosine in zip(TENSORS, cosines, strict=True):
        now = (THETA - done.worker.shared.theta)[tensor.place]
        assert np.allclose(now, moved[tensor.place], atol=1e-6) if cosine > threshold else not now.any()


def test_what_is_not_finite_stops_or_is_passed_over():
    bad = Problem(lambda theta, n: (np.nan if n == 1 else 1.0, np.ones(D, np.float32)), None)
    method, worker = made(exchange=PLAIN)
    with pytest.raises(Diverged, match="worker 0, step 1: the loss is nan; lower the rate"):
        run(method, worker, 3, problem=bad)
    rounds = run(*made(exchange=PLAIN, update=Step(on_nan="skip")), 3, problem=bad)
    assert [done.update is None for done in rounds] == [False, True, False]
    assert rounds[1].metrics == {"skipped": 1.0} and rounds[1].worker.shared is rounds[0].worker.shared
    assert [done.worker.sequence for done in rounds] == [1, 1, 2] and rounds[2].worker.step == 3
    infinite = Problem(lambda theta, n: (1.0, np.full(D, np.inf, np.float32)), None)
    with pytest.raises(Diverged, match="entries that are not finite"):
        run(method, worker, 1, problem=infinite)


# ---------------------------------------------------------------- workers


@pytest.mark.parametrize(
    "options", [{}, {"exchange": PLAIN}, {"basis": replace(SMALL, distribution="normal")}, {"kind": Nes}]
)
def test_workers_that_have_heard_of_the_same_updates_have_the_same_bits(options):
    workers = [made(number=k, **options) for k in range(3)]
    method, heard, ends = workers[0][0], [], []
    for _, worker in workers:
        rounds = run(method, worker, 4)
        heard += [done.update for done in rounds]
        ends.append(rounds[-1].worker)
    chance = np.random.default_rng(5)
    after = [end.apply([heard[i] for i in chance.permutation(len(heard))]) for end in ends]
    assert all(one.shared.agrees(after[0].shared) for one in after)


def test_shared_directions_averaged_are_one_step_of_the_mean_gradient():
    exchange = replace(PLAIN, mode="sync", combine="mean")
    basis = replace(SMALL, per="group")
    workers = [made(basis=basis, number=k, replicas=4, exchange=exchange, update=Step(rate=0.5)) for k in range(4)]
    method = workers[0][0]
    updates = [run(method, worker, 1, first=k)[0].update for k, (_, worker) in enumerate(workers)]
    theta = workers[0][1].apply(updates).shared.theta
    mean = np.mean([BOWL.gradient(THETA, k)[1] for k in range(4)], 0)
    e = matrix(method, updates[0])
    assert np.allclose(theta, THETA - 0.5 / D * e @ (e.T @ mean), atol=1e-5)


def test_the_same_data_for_all_or_each_its_own():
    own, same = Rbd(), Rbd(exchange=Exchange(same_data=True))
    assert len({stream(own, "worker", k) for k in range(4)}) == 4
    assert len({stream(same, "worker", k) for k in range(4)}) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exchange": Exchange(residual="leaky")},
        {"exchange": PLAIN, "update": Step(momentum=0.5)},
        {"exchange": PLAIN, "coordinates": Coordinates(reset=0)},
        {"exchange": PLAIN, "basis": replace(SMALL, learn=Learn(every=2))},
        {"exchange": PLAIN, "basis": replace(SMALL, distribution="gradients")},
        {"kind": Local, "exchange": Exchange(every=2, residual="local")},
    ],
)
def test_a_worker_that_was_saved_goes_on_as_if_nothing_had_been(options):
    method, worker = made(**options)
    half = run(method, worker, 3)[-1].worker
    state = {key: array.copy() for key, array in half.save().items()}
    back = made(**options)[1].restore(state)
    first = half.step
    ended, again = (run(method, one, 3, first)[-1].worker.save() for one in (half, back))
    assert ended.keys() == again.keys()
    assert all(ended[key].tobytes() == again[key].tobytes() for key in ended)


# ---------------------------------------------------------------- faults of the original


def test_directions_are_made_twice_a_step(monkeypatch):
    """Fault 1: three times, once to perturb with coordinates that are all 0."""
    calls = []
    for name in ("project", "expand_many"):
        real = getattr(bases, name)
        monkeypatch.setattr(bases, name, lambda *a, real=real, name=name: calls.append(name) or real(*a))
    for exchange in (PLAIN, Exchange(), Exchange(residual="leaky")):
        calls.clear()
        run(*made(exchange=exchange), 1)
        assert calls == ["project", "expand_many"]


@pytest.mark.parametrize("distribution", ["rademacher", "hadamard", "uniform", "normal", "lognormal"])
def test_every_distribution_descends_and_is_centred(distribution):
    """Fault 2: a mean of -1/2, a variance of 1/3."""
    e = kept.draw(Basis(64, distribution), bases.Key(1, 2, 3, 4), 2048)
    tolerance = 0.1 if distribution == "lognormal" else 0.02
    assert abs(e.mean()) < tolerance and abs((e**2).mean() - 1) < 10 * tolerance
    rounds = run(*made(basis=replace(SMALL, distribution=distribution), exchange=PLAIN, update=Step(rate=1.0)), 60)
    assert rounds[-1].metrics["loss"] < 0.2 * rounds[0].metrics["loss"]


@pytest.mark.parametrize("normalize", ["constant", "column", "none"])
def test_normalisation(normalize):
    basis = replace(SMALL, distribution="normal", normalize=normalize)
    scale = 1.0 if normalize == "none" else 1 / D
    method, worker = made(basis=basis, exchange=PLAIN, update=Step(rate=0.01 / scale, schedule="constant"))
    done = run(method, worker, 1)[0]
    raw = kept.draw(Basis(12, "normal"), worker.shared.directions.key(worker.name, 0), D).astype(float)
    e = raw * (D**0.5 / np.linalg.norm(raw, axis=0)) if normalize == "column" else raw
    step = 0.01 * e @ (e.T @ BOWL.gradient(THETA, 0)[1])
    assert np.allclose(THETA - done.worker.shared.theta, step, rtol=1e-4, atol=1e-5)


def test_antithetic_pairs_are_each_others_negatives():
    method, worker = made(Nes, replace(SMALL, antithetic=True), exchange=PLAIN)
    e = matrix(method, run(method, worker, 1)[0].update)
    assert (e[:, ::2] == -e[:, 1::2]).all()


def test_a_matrix_that_is_kept_is_drawn_once(monkeypatch):
    drawn, made_anew = [], []
    draw, project = kept.draw, bases.project
    monkeypatch.setattr(kept, "draw", lambda *a: drawn.append(a[1]) or draw(*a))
    monkeypatch.setattr(bases, "project", lambda *a: made_anew.append(a[1]) or project(*a))
    ends, counts = [], []
    for keep in (True, False):
        method, worker = made(Fpd, replace(SMALL, keep=keep), seed=99, exchange=replace(PLAIN, precision="int8"))
        ends.append(run(method, worker, 5)[-1].worker.shared.theta)
        counts.append((len(drawn), len(made_anew)))
    assert counts == [(1, 0), (1, 5)]
    assert np.allclose(*ends, atol=1e-6)


def test_a_single_compartment_per_layer_is_moved_by_its_own_directions():
    method, worker = made(basis=replace(SMALL, compartments="layer"), exchange=PLAIN, update=Step(rate=0.5))
    done = run(method, worker, 1)[0]
    gradient, moved = BOWL.gradient(THETA, 0)[1], THETA - done.worker.shared.theta
    for m, part in enumerate(worker.shared.directions.parts):
        e = matrix(method, done.update, m)
        step = 0.5 / part.size * e @ (e.T @ part.gather(gradient))
        assert np.allclose(part.gather(moved), step, atol=1e-5)
    assert len(done.update.parts) == 2


# ---------------------------------------------------------------- watching


WATCHED = [
    made(exchange=PLAIN),
    made(exchange=Exchange(every=4)),
    made(basis=replace(SMALL, compartments="layer"), exchange=Exchange(residual="leaky", precision="int8")),
    made(exchange=PLAIN, update=Step(plain=Plain(layer=0), momentum=0.9)),
    made(Local, exchange=Exchange(every=3)),
    made(Sgd),
    made(Nes, exchange=PLAIN),
]


@pytest.mark.parametrize("method_and_worker", WATCHED, ids=lambda pair: type(pair[0].learner).__name__)
def test_watching_changes_nothing_and_says_what_is_known(method_and_worker):
    method, worker = method_and_worker
    batches = range(method.batches(worker.shared.directions))
    blind, seen = (descend(method, worker, BOWL, batches, watch=watch) for watch in (False, True))
    assert blind.watched == {} and blind.metrics == seen.metrics
    assert blind.worker.shared.theta.tobytes() == seen.worker.shared.theta.tobytes()
    way = worker.shared.theta - seen.worker.shared.theta
    share = np.linalg.norm(way) / np.linalg.norm(seen.worker.shared.theta)
    assert seen.watched["moved/all"] == pytest.approx(share, rel=1e-4)
    assert ("correlation/all" in seen.watched) == (not isinstance(method.learner, Nes))
    assert ("coordinates/rms" in seen.watched) == (not isinstance(method.learner, Sgd))
    if isinstance(method.learner, Sgd):
        assert all(seen.watched[f"correlation/{name}"] == pytest.approx(1, abs=1e-4) for name in ("all", "a", "b"))


def test_what_is_watched_of_a_plain_step_is_the_correlation_of_a_projection():
    """E E^T g / D of d random directions of D has a cosine of about sqrt(d / D) with g."""
    method, worker = made(basis=replace(SMALL, dimensions=48), exchange=PLAIN, update=Step(rate=0.5))
    found = [done.watched["correlation/all"] for done in watch(method, worker, 30)]
    d, size = 48, D
    assert np.mean(found) == pytest.approx((d / (d + size)) ** 0.5, abs=0.05)


def watch(method, worker, rounds):
    for n in range(rounds):
        done = descend(method, worker, BOWL, [n], watch=True)
        yield done
        worker = done.worker


def test_compression_is_against_gradients_of_the_same_steps():
    method, worker = made(exchange=Exchange(every=4))  # 12 signs and an exponent
    assert run(method, worker, 1)[0].metrics["compression"] == 4 * D * 4 / 3
    method, worker = made(Sgd)  # a patch: where it begins and ends, and the gradient
    assert run(method, worker, 1)[0].metrics["compression"] == 4 * D / (4 * D + 8)


def test_float_workers_who_apply_a_round_together_have_the_same_bits_and_one_decay_of_momentum():
    """DiLoCo: momentum of the mean, once a round, whatever the order in which updates came."""
    options = {"replicas": 3, "update": Step(momentum=0.9, nesterov=True), "exchange": Exchange(mode="sync", every=2)}
    workers = [made(Local, number=k, **options) for k in range(3)]
    shared = [worker.shared for _, worker in workers]
    mean, velocity, theta = np.zeros(D), np.zeros(D), THETA.astype(np.float64)
    for n in range(3):
        sent = []
        for k, (method, worker) in enumerate(workers):
            done = descend(method, worker, BOWL, range(2 * (3 * n + k), 2 * (3 * n + k) + 2))
            sent.append(done.update)
            workers[k] = method, done.worker
        shared = [one.apply(sent[k:] + sent[:k]) for k, one in enumerate(shared)]
        workers = [(m, dataclasses.replace(w, shared=s)) for (m, w), s in zip(workers, shared, strict=True)]
        mean = np.mean([u.parts[0].coordinates for u in sent], axis=0)
        velocity = 0.9 * velocity + mean
        theta = theta - (0.9 * velocity + mean)
    assert len({one.theta.tobytes() for one in shared}) == 1
    assert np.allclose(shared[0].theta, theta, atol=1e-5)
