"""The laws of the real learner, step by step: they hold in clean runs, and one fault is named for what it is."""

from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from learners.mach import Mach, Shape
from learners.mechanics.watch import Update, Watch
from learners.optimizers import Rule

F, C, B, E, D = 20, 5, 32, 16, 8
SHAPE = Shape(
    features=F,
    classes=C,
    children=(D,),
    hidden=(32, 24),
    embedding=E,
    synthetic=(24, 20),
    batch=B,
    gradient_rows=B,
    answer_rows=B,
)
EVERY = 10
RATES = {"sgd": 0.1, "momentum": 0.03, "nesterov": 0.03, "adam": 1e-3}
EXACT = ("sgd", "momentum", "nesterov")


class Poisoned(Mach):
    """A learner whose own gradients can be changed before they are applied, by a factor on each entry of a kernel."""

    def __init__(self, *args, **kwargs):
        self.poison = tf.Variable(0.0, trainable=False)
        super().__init__(*args, **kwargs)

    def _apply(self, gradients, *rest):
        second = gradients["target"][2]
        noise = tf.random.stateless_normal(second.shape, [1, 2]) * tf.reduce_max(tf.abs(second))
        target = [*gradients["target"][:2], second + self.poison * noise, *gradients["target"][3:]]
        return super()._apply({**gradients, "target": target}, *rest)


@cache
def built(rule):
    made = Poisoned(SHAPE, rule, seed=3, dropout=0.2, parents_rate=0.1, watched=True)
    return made, made.save()


class Training:
    """A learner, its watch, and its data; parents send something in every third step, the child misses every fifth."""

    def __init__(self, name, decay="coupled", weight_decay=1e-3, seed=0):
        self.rule = Rule(name, momentum=0.9, weight_decay=weight_decay, decay=decay)
        self.mach, state = built(self.rule)
        self.mach.restore(state)
        self.draws = np.random.default_rng(seed)
        self.x = self.draws.normal(size=(500, F)).astype(np.float32)
        self.y = (self.x @ self.draws.normal(size=(F, C)) + self.draws.normal(size=(500, C))).argmax(1)
        self.child = 0.3 * self.draws.normal(size=(F, D))
        self.watch = Watch("x", self.mach.symmetries.laws, Update(name, 0.9, weight_decay, decay))
        self.begin()
        self.alarms, self.worst, self.step = [], {}, 0

    def begin(self):
        found = self.mach.measured()
        self.watch.begin(found.charges, found.buffers)

    def go(self, steps, of=1000, fault=None, at=None):
        """Take steps; `fault` happens in the one of number `at`."""
        for _ in range(steps):
            chosen = self.draws.integers(500, size=B)
            x, labels = self.x[chosen], self.y[chosen].astype(np.int32)
            child = [np.maximum(x @ self.child, 0).astype(np.float32) if self.step % 5 else None]
            gradients = [(x, 0.01 * self.draws.normal(size=(B, E)).astype(np.float32))] if self.step % 3 == 0 else []
            self._one(x, labels, child, gradients, RATES[self.rule.name] * (1 - self.step / of), at == self.step, fault)
            self.step += 1
        return self

    def _one(self, x, labels, child, gradients, rate, faulty, fault):
        look = self.step % EVERY == 0
        before = self.mach.save()
        if faulty and fault == "poisoned":
            self.mach.poison.assign(1.0)
        trained = self.mach.train(x, labels, child, gradients, rate, look=look)
        self.mach.poison.assign(0.0)
        if faulty:
            self._spoil(fault, before)
        if look:
            seen = self._seen(trained)
            for name, value in seen.figures.items():
                self.worst[name] = max(self.worst.get(name, 0.0), abs(value))
        if self.watch.exact:
            self.watch.follow(self.step, rate, 0.1 * rate if gradients else None, trained.sums)
        if look and seen.alarm:
            self.alarms.append(seen.alarm)
            self.begin()

    def _seen(self, trained):
        if self.watch.exact:
            return self.watch.compare(self.step, trained.looked)
        return self.watch.balance(self.step, trained.looked, self.mach.charges()[0])

    def _spoil(self, fault, before):
        after = self.mach.save()
        weights = [name for name in after if name.startswith(("encoder", "head", "synthetic"))]
        if fault == "doubled":
            after.update({name: 2 * after[name] - before[name] for name in weights})
        if fault == "lost":
            after.update({name: before[name] for name in weights})
        if fault == "corrupted":
            after["encoder/2"][5, 7] += 0.5
        if fault == "nan":
            after["encoder/2"][5, 7] = np.nan
        self.mach.restore(after)


@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
@pytest.mark.parametrize("name", EXACT)
def test_every_exact_law_holds_and_nothing_is_raised(name, decay):
    run = Training(name, decay).go(400, of=400)
    found = {name: value for name, value in run.worst.items() if name.endswith("/residual")}
    assert len(found) == 7
    assert max(found.values()) < 2e-5
    assert run.alarms == []


FAULTS = [
    ("doubled", "update doubled"),
    ("lost", "update lost"),
    ("corrupted", "weight corrupted"),
    ("poisoned", "gradient poisoned"),
    ("nan", "non-finite"),
]


@pytest.mark.parametrize(("fault", "cause"), FAULTS, ids=[fault for fault, _ in FAULTS])
@pytest.mark.parametrize("at", [203, 210, 219])
@pytest.mark.parametrize("name", EXACT)
def test_one_fault_is_told_apart_within_twenty_steps(name, at, fault, cause):
    run = Training(name).go(200).go(2 * EVERY + 1, fault=fault, at=at)
    (first, *more) = run.alarms
    assert (first.cause, first.learner) == (cause, "x")
    assert at <= first.seen <= at + 20
    assert fault not in ("doubled", "lost") or first.step == at
    assert fault not in ("corrupted",) or set(first.layers) == {"encoder_0", "encoder_1"}
    assert fault == "nan" or more == []


@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
def test_adams_budget_balances(decay):
    run = Training("adam", decay).go(200)
    found = {name: value for name, value in run.worst.items() if name.endswith(("/residual", "rescale/identity"))}
    assert max(found.values()) < 1e-5
    assert run.alarms == []


@pytest.mark.parametrize(("fault", "cause"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_fault_of_adam_in_a_step_that_is_looked_at(fault, cause):
    run = Training("adam").go(200).go(11, fault=fault, at=200)
    assert [one.cause for one in run.alarms][:1] == [cause]
