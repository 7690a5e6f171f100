"""The Mach learner against a slow one in NumPy that was written from its description, and by its properties."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.mach import ATTRIBUTION_ROWS, Mach, Shape
from learners.optimizers import Rule

F, C, B, E, G = 5, 3, 6, 4, 9
SHAPE = Shape(
    features=F,
    classes=C,
    children=(3,),
    hidden=(8, 7),
    embedding=E,
    synthetic=(6,),
    batch=B,
    gradient_rows=G,
    answer_rows=4,
)
SGD = Rule("sgd")
DROPPING = dict(rule=Rule("momentum"), dropout=0.5)


@cache
def built(rule=SGD, seed=1, dropout=0.0, weight=1.0, parents_rate=1.0, **shape):
    made = Mach(
        SHAPE._replace(**shape), rule, seed=seed, dropout=dropout, weight=weight, parents_rate=parents_rate
    )  # fmt: skip
    return made, started(made)


def started(mach, seed=11):
    """A state in which nothing is zero, so that nothing is right by chance: biases, slots and counts too."""
    draws, state = np.random.default_rng(seed), mach.save()
    for name, value in state.items():
        if name.startswith("slots"):
            state[name] = np.abs(draws.normal(size=value.shape, scale=0.1)).astype(np.float32)
        elif not name.startswith("counts"):
            state[name] = value + draws.normal(size=value.shape, scale=0.2).astype(np.float32)
    if mach.synthetic:  # its ReLUs are open at the end: what it imagines is not 0
        state[f"synthetic/{len(mach.synthetic) - 1}"] += np.float32(1.0)
    return {**state, "counts/target": np.array(3), "counts/distil": np.array(3), "counts/parents": np.array(2)}


def machine(*args, **kwargs):
    """A learner in its first state; those of equal shape are compiled once."""
    mach, state = built(*args, **kwargs)
    mach.restore(state)
    return mach


def rows(count, seed=0, widths=(3,)):
    """Features, labels and children's embeddings (which are never negative)."""
    draws = np.random.default_rng(seed)
    x, y = draws.normal(size=(count, F)).astype(np.float32), draws.integers(C, size=count).astype(np.int32)
    return x, y, [np.maximum(draws.normal(size=(count, w)), 0).astype(np.float32) for w in widths]


def gradient(count, seed=5):
    draws = np.random.default_rng(seed)
    return draws.normal(size=(count, F)).astype(np.float32), draws.normal(size=(count, E)).astype(np.float32)


def part(state, name):
    """The weights `name`/0, `name`/1, ... in order."""
    return [state[f"{name}/{i}"] for i in range(sum(key.startswith(f"{name}/") for key in state))]


def same_bits(a, b, *prefixes):
    return all(a[key].tobytes() == b[key].tobytes() for key in a if key.startswith(prefixes or ""))


# ---------------------------------------------------------------- the slow learner


def forward(layers, x):
    """Input and output of every ReLU layer."""
    passed = [x]
    for kernel, bias in zip(layers[::2], layers[1::2], strict=True):
        passed.append(np.maximum(passed[-1] @ kernel + bias, 0))
    return passed


def backward(layers, passed, out):
    """Derivatives by the layers and by their input, from the one by their output."""
    found = []
    for i in reversed(range(len(layers) // 2)):
        out = out * (passed[i + 1] > 0)
        found = [passed[i].T @ out, out.sum(0), *found]
        out = out @ layers[2 * i].T
    return found, out


class Slow:
    """One learner in float64, one loop after the other."""

    def __init__(self, mach):
        state = mach.save()
        self.rule, self.weight, self.children = mach.rule, mach.weight, mach.shape.children
        self.parents_rate = mach.parents_rate
        self.weights = {name: [w.astype(float) for w in part(state, name)] for name in ("encoder", "head", "synthetic")}
        self.slots = {  # one state for each objective
            name: {(p, i): self._slots(state, name, n) for n, (p, i) in enumerate(self._moved(name))}
            for name in ("target", "distil", "parents")
        }
        self.counts = {name: int(state[f"counts/{name}"]) for name in self.slots}

    def _moved(self, objective):
        parts = {"target": ["encoder", "head"], "distil": ["synthetic"], "parents": ["encoder"]}[objective]
        return [(name, i) for name in parts for i in range(len(self.weights[name]))]

    @staticmethod
    def _slots(state, objective, n):
        return [
            state[f"slots/{objective}/{n}/{k}"].astype(float) for k in (0, 1) if f"slots/{objective}/{n}/{k}" in state
        ]

    def imagined(self, x):
        return forward(self.weights["synthetic"], x)[-1] if self.children else np.zeros((len(x), 0))

    def filled(self, x, embeddings):
        ends, s = np.cumsum(self.children, dtype=int), self.imagined(x)
        parts = [s[:, end - width : end] for end, width in zip(ends, self.children, strict=True)]
        return np.hstack(
            [np.zeros((len(x), 0)), *(p if e is None else e for e, p in zip(embeddings, parts, strict=True))]
        )

    def passed(self, x, d, labels):
        """Losses and hits of every row, derivatives of the mean loss by encoder, head and d."""
        (kernel, bias), encoder = self.weights["head"], self.weights["encoder"]
        layers = forward(encoder, np.hstack([x, d]))
        logits = layers[-1] @ kernel + bias
        odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses, hits = -np.log(odds[np.arange(len(x)), labels]), logits.argmax(1) == labels
        out = (odds - np.eye(C)[labels]) / len(x)
        by_encoder, by_input = backward(encoder, layers, out @ kernel.T)
        return losses, hits, [*by_encoder, layers[-1].T @ out, out.sum(0)], by_input[:, F:]

    def embed(self, x):
        return forward(self.weights["encoder"], np.hstack([x, self.imagined(x)]))[-1]

    def train(self, x, labels, embeddings, gradients, rate):
        x = x.astype(float)
        there = [e is not None for e in embeddings]
        child = self.passed(x, self.filled(x, embeddings), labels)
        updates, to_children = {"target": child[2]}, child[3]
        metrics = {"loss/child": child[0].mean(), "accuracy/child": child[1].mean()}
        if self.children:
            s = self.imagined(x)
            synthetic = self.passed(x, s, labels)
            share = 0.5 if any(there) else 0.0
            updates["target"] = [share * a + (1 - share) * b for a, b in zip(child[2], synthetic[2], strict=True)]
            columns = np.repeat(there, self.children)
            apart = (s - self.filled(x, embeddings)) * columns
            entries = max(1, columns.sum() * len(x))
            by_s = (1 - share) * synthetic[3] + self.weight * 2 * apart / entries
            layers = forward(self.weights["synthetic"], x)
            updates["distil"] = backward(self.weights["synthetic"], layers, by_s)[0]
            metrics |= {"loss/synthetic": synthetic[0].mean(), "accuracy/synthetic": synthetic[1].mean()}
            metrics["distillation"] = (apart**2).sum() / entries
            to_children = to_children * columns
            if not any(there):
                metrics = {key: value for key, value in metrics.items() if key.endswith("synthetic")}
        own = [*updates["target"], *updates.get("distil", [])]
        metrics["gradient_norm"] = np.sqrt(sum((g**2).sum() for g in own))
        if gradients:
            x_g, g = (np.concatenate(parts).astype(float) for parts in zip(*gradients, strict=True))
            encoder = self.weights["encoder"]
            updates["parents"] = backward(encoder, forward(encoder, np.hstack([x_g, self.imagined(x_g)])), g)[0]
        self.apply(updates, rate)
        return np.split(to_children, np.cumsum(self.children, dtype=int), axis=1)[:-1], metrics

    def apply(self, updates, rate):
        before = {name: [w.copy() for w in ws] for name, ws in self.weights.items()}
        for objective, found in updates.items():
            self.counts[objective] += 1
            for (name, i), g in zip(self._moved(objective), found, strict=True):
                theta, slots = before[name][i], self.slots[objective][name, i]
                self.weights[name][i] += self.change(objective, theta, g, slots, rate)

    def change(self, objective, theta, g, slots, rate):
        rule, decay = self.rule, self.rule.weight_decay
        if objective == "parents":
            rate, decay = rate * self.parents_rate, 0.0
        if rule.decay == "coupled":
            g = g + decay * theta
        if rule.name == "adam":
            t = self.counts[objective]
            slots[0][:] = rule.beta_1 * slots[0] + (1 - rule.beta_1) * g
            slots[1][:] = rule.beta_2 * slots[1] + (1 - rule.beta_2) * g**2
            root = np.sqrt(slots[1] / (1 - rule.beta_2**t)) + rule.epsilon
            step = -rate * slots[0] / (1 - rule.beta_1**t) / root
        else:
            slots[0][:] = rule.momentum * slots[0] - rate * g
            step = slots[0].copy()
        return step - (rate * decay * theta if rule.decay == "decoupled" else 0.0)


CASES = {
    "no child": dict(rule=Rule("adam", weight_decay=0.1, decay="decoupled"), children=()),
    "one child": dict(rule=Rule("adam", beta_2=0.9, weight_decay=0.1), weight=3.0),
    "two children": dict(rule=Rule("momentum"), children=(3, 2), parents_rate=0.25),
}


@pytest.mark.parametrize("case", CASES)
def test_four_steps_are_those_of_the_slow_learner(case):
    """Each with all objectives at the weights before it, and a state of its own for each objective (fault 15)."""
    mach = machine(**CASES[case])
    slow, widths = Slow(mach), mach.shape.children
    steps = [  # who has answered, how many rows of gradients have come
        ([True] * len(widths), (4, 5)),
        ([False] * len(widths), ()),
        ([i == 0 for i in range(len(widths))], (2,)),
        ([i == 1 for i in range(len(widths))], ()),
    ]
    for n, (there, counts) in enumerate(steps):
        x, y, answers = rows(B, n, widths)
        embeddings = [e if t else None for e, t in zip(answers, there, strict=True)]
        gradients = [gradient(count, seed=count) for count in counts]
        ours = mach.train(x, y, embeddings, gradients, 0.02)
        theirs = slow.train(x, y, embeddings, gradients, 0.02)
        assert ours.metrics == pytest.approx(theirs[1], rel=1e-4, abs=1e-6)
        assert [g.shape for g in ours.gradients] == [(B, width) for width in widths]
        for got, wanted in zip(ours.gradients, theirs[0], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-6)
        state = mach.save()
        for name, weights in slow.weights.items():
            for got, wanted in zip(part(state, name), weights, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=2e-5)
    assert mach.version == 7 and mach.counts["parents"] == 4


# ---------------------------------------------------------------- targets


def test_without_an_answer_nothing_is_distilled():
    """Fault 1: zeros were the target. Here the weight of distillation makes no difference then."""
    heavy, light = machine(weight=1000.0), machine()
    x, y, answers = rows(B)
    for mach in (heavy, light):
        assert "distillation" not in mach.train(x, y, [None], [], 0.1).metrics
    assert same_bits(heavy.save(), light.save())
    for mach in (heavy, light):
        mach.train(x, y, answers, [], 0.1)
    assert not same_bits(heavy.save(), light.save(), "synthetic")


def test_distillation_brings_the_synthetic_input_to_the_childs_answers():
    mach = machine(**CASES["one child"])
    x, y, answers = rows(B)
    errors = [mach.train(x, y, answers, [], 0.02).metrics["distillation"] for _ in range(100)]
    assert errors[-1] < errors[0] / 2


def test_a_missing_child_is_not_a_target_where_another_has_answered():
    """The error is a mean over the columns that are there, whatever the others would have been."""
    mach = machine(**CASES["two children"])
    x, y, (first, second) = rows(B, widths=(3, 2))
    s, state = Slow(mach).imagined(x), mach.save()
    for embeddings, apart in (([first, None], s[:, :3] - first), ([None, second], s[:, 3:] - second)):
        mach.restore(state)
        found = mach.train(x, y, embeddings, [], 0.1).metrics["distillation"]
        assert found == pytest.approx(np.square(apart).mean(), rel=1e-5)


def test_without_children_there_is_no_synthetic_input():
    """Fault 3: it was trained all the same, towards zero."""
    mach = machine(**CASES["no child"])
    x, y, _ = rows(B)
    names = {*mach.save(), *mach.train(x, y, [], [], 0.1).metrics, *mach.evaluate(x, y, []), *mach.norms()}
    assert not [name for name in names if "synthetic" in name or "distillation" in name or "slots/distil" in name]
    assert "downstream" not in " ".join(mach.attribute(x, y, []))


def test_losses_are_means():
    """Fault 9: the distillation loss was a sum. Every row twice makes the same step, of half the gradient per row."""
    once, twice = machine(), machine(batch=2 * B)
    x, y, answers = rows(B)
    one = once.train(x, y, answers, [], 0.1)
    two = twice.train(np.tile(x, (2, 1)), np.tile(y, 2), [np.tile(a, (2, 1)) for a in answers], [], 0.1)
    assert one.metrics == pytest.approx(two.metrics, rel=1e-5)
    np.testing.assert_allclose(np.tile(one.gradients[0], (2, 1)), 2 * two.gradients[0], rtol=1e-4, atol=1e-7)
    a, b = once.save(), twice.save()
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- gradients down and from above


def test_the_gradient_for_a_child_is_that_of_the_loss_with_its_answer():
    mach = machine()
    x, y, (d,) = rows(B)
    direction = np.random.default_rng(1).normal(size=d.shape).astype(np.float32)
    up, down = (mach.evaluate(x, y, [d + sign * 1e-2 * direction])["loss/child"] for sign in (1, -1))
    (got,) = mach.train(x, y, [d], [], 0.1).gradients
    assert (got * direction).sum() == pytest.approx((up - down) / 2e-2, rel=1e-2)


def test_a_child_that_has_not_answered_gets_no_gradient():
    mach = machine(**CASES["two children"])
    x, y, (first, _) = rows(B, widths=(3, 2))
    got = mach.train(x, y, [first, None], [], 0.1).gradients
    assert got[0].any() and not got[1].any() and got[1].shape == (B, 2)


def test_parents_move_the_encoder_along_the_answer_that_they_got():
    """Fault 2: the forward pass was another one. The answer's own slope, by differences, is the size of the step.

    With dropout, so that a pass with it would be seen too; head and synthetic input stay as they are.
    """
    mach = machine(**DROPPING)
    x, y, answers = rows(B)
    x_G, g_GE = gradient(3)
    before, states = {key: value * (not key.startswith("slots")) for key, value in mach.save().items()}, []
    for gradients in ([], [(x_G, g_GE)]):
        mach.restore(before)
        mach.train(x, y, answers, gradients, 0.1)
        states.append(mach.save())
    without, graded = states
    assert same_bits(without, graded, "head", "synthetic")
    slope = {key: (without[key] - graded[key]) / 0.1 for key in without if key.startswith("encoder")}

    def agreement(size):
        mach.restore({**before, **{key: before[key] + np.float32(size) * s for key, s in slope.items()}})
        return float((mach.embed(x_G) * g_GE).sum())

    square = sum(float(np.square(s).sum()) for s in slope.values())
    size = 1e-2 / np.sqrt(square)
    assert (agreement(size) - agreement(-size)) / (2 * size) == pytest.approx(square, rel=2e-2)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=2), st.integers(0, 9))
@settings(deadline=None, max_examples=10)
def test_gradients_of_all_parents_count_in_any_order_and_however_few_rows_they_have(counts, seed):
    mach = machine()
    x, y, answers = rows(B)
    parts = [gradient(count, seed + i) for i, count in enumerate(counts)]
    spare = G - sum(counts)
    filled = [np.concatenate([*p, np.zeros((spare, p[0].shape[1]), np.float32)]) for p in zip(*parts, strict=True)]
    filled[0][sum(counts) :] = 7.0  # rows whose gradient is zero, whatever they are
    states = []
    for gradients in (parts, parts[::-1], [tuple(filled)]):
        mach.restore(built()[1])
        mach.train(x, y, answers, gradients, 0.1)
        states.append(mach.save())
    for other in states[1:]:
        for key, value in states[0].items():
            np.testing.assert_allclose(other[key], value, rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------- answers and figures


@given(count=st.integers(1, 20), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=15)
def test_any_number_of_rows_is_answered_row_by_row(count, seed):
    mach = machine()
    x = rows(count, seed)[0]
    embedding = mach.embed(x)
    assert embedding.shape == (count, E) and embedding.dtype == np.float32
    np.testing.assert_allclose(embedding, Slow(mach).embed(x), rtol=1e-4, atol=1e-5)


@given(count=st.integers(1, 20), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=15)
def test_figures_are_means_over_the_rows_however_many_and_each_has_its_own_name(count, seed):
    """Fault 4: "with the child" and "with the synthetic input" were swapped."""
    mach, slow = machine(), Slow(machine())
    x, y, (d,) = rows(count, seed)
    s = slow.imagined(x)
    child, synthetic = slow.passed(x, d, y), slow.passed(x, s, y)
    assert mach.evaluate(x, y, [d]) == pytest.approx(
        {
            "loss/child": child[0].mean(),
            "loss/synthetic": synthetic[0].mean(),
            "accuracy/child": child[1].mean(),
            "accuracy/synthetic": synthetic[1].mean(),
            "distillation": np.square(s - d).mean(),
        },
        rel=1e-4,
        abs=1e-6,
    )
    assert mach.evaluate(x, y, [None]) == pytest.approx(
        {"loss/synthetic": synthetic[0].mean(), "accuracy/synthetic": synthetic[1].mean()}, rel=1e-4
    )


def test_with_a_child_missing_only_the_synthetic_figures_are_given():
    mach = machine(**CASES["two children"])
    x, y, (first, second) = rows(B, widths=(3, 2))
    assert set(mach.evaluate(x, y, [first, None])) == {"loss/synthetic", "accuracy/synthetic"}
    assert len(mach.evaluate(x, y, [first, second])) == 5


def test_dropout_is_for_training_only():
    dropping, plain = machine(**DROPPING), machine()
    x, y, answers = rows(B)
    assert dropping.embed(x).tobytes() == plain.embed(x).tobytes()
    assert dropping.evaluate(x, y, answers) == plain.evaluate(x, y, answers)
    assert dropping.train(x, y, answers, [], 0.0).metrics["loss/child"] != pytest.approx(
        plain.train(x, y, answers, [], 0.0).metrics["loss/child"], rel=1e-3
    )


def test_every_step_drops_something_else_and_can_be_repeated():
    mach = machine(**DROPPING)
    x, y, answers = rows(B)
    losses = [mach.train(x, y, answers, [], 0.0).metrics["loss/child"] for _ in range(5)]
    mach = machine(**DROPPING)
    assert losses == [mach.train(x, y, answers, [], 0.0).metrics["loss/child"] for _ in range(5)]
    assert len(set(losses)) == 5


def test_columns_are_split_where_the_features_end():
    """Fault 8: 784 stood in the code. Fault 7: magnitudes were signed sums."""
    mach = machine()
    state = mach.save()
    signs = np.where(np.arange(8) % 2, 1.0, -1.0)
    state["encoder/0"] = (np.repeat([1.0, 3.0], [F, 3])[:, None] * signs).astype(np.float32)
    mach.restore(state)
    x, y, answers = rows(B)
    found = mach.attribute(x, y, answers)
    assert found["weight_magnitude/inputs"] == 1.0 and found["weight_magnitude/downstream"] == 3.0
    assert found["integrated_gradients/inputs"] + found["integrated_gradients/downstream"] == pytest.approx(1.0)
    assert found["integrated_gradients/downstream"] > 0.1


def test_columns_that_no_weight_reads_are_worth_nothing():
    mach = machine()
    state = mach.save()
    state["encoder/0"][F:] = 0.0
    mach.restore(state)
    x, y, answers = rows(B)
    found = mach.attribute(x, y, answers)
    worth = {key: value for key, value in found.items() if "downstream" in key and "gradient/" not in key}
    assert worth == {f"{name}/downstream": 0.0 for name in ("pruning", "weight_magnitude", "integrated_gradients")}
    assert found["absolute_gradient/downstream"] > 0.0  # yet the loss would change with them
    assert found["pruning/inputs"] != 0.0


def test_attribution_is_of_exactly_the_rows_that_came_up_to_a_limit():
    mach = machine()
    x, y, (d,) = rows(2 * ATTRIBUTION_ROWS)
    found = [mach.attribute(x[:n], y[:n], [d[:n]]) for n in (B, ATTRIBUTION_ROWS, len(x))]
    assert found[0] != found[1] == found[2]
    each = [mach.attribute(x[n : n + 1], y[n : n + 1], [d[n : n + 1]])["pruning/inputs"] for n in range(B)]
    assert found[0]["pruning/inputs"] == pytest.approx(np.mean(each), rel=1e-4)  # a plain mean over rows


def test_norms_are_of_the_parts():
    mach = machine()
    state = mach.save()
    wanted = {
        f"weight_norm/{name}": np.sqrt(sum(np.square(w).sum() for w in part(state, name)))
        for name in ("encoder", "head", "synthetic")
    }
    assert mach.norms() == pytest.approx(wanted, rel=1e-5)


# ---------------------------------------------------------------- state


def train(mach, first, count):
    for n in range(first, first + count):
        x, y, answers = rows(B, n)
        mach.train(x, y, answers if n % 3 else [None], [gradient(3, n)] if n % 2 else [], 0.05)


def test_a_learner_that_was_saved_and_restored_goes_on_as_if_nothing_had_been():
    mach = machine(**DROPPING)
    train(mach, 0, 4)
    saved = mach.save()
    train(mach, 4, 4)
    ended = mach.save()
    other = Mach(mach.shape, seed=1, **DROPPING)
    other.restore(saved)
    assert other.version == 7
    train(other, 4, 4)
    assert ended.keys() == other.save().keys()
    assert same_bits(ended, other.save())
    assert not same_bits(ended, saved, "encoder") and not same_bits(ended, saved, "slots")


def test_what_was_saved_does_not_change_with_training():
    mach = machine()
    saved = mach.save()
    copies = {key: value.copy() for key, value in saved.items()}
    train(mach, 0, 2)
    assert same_bits(saved, copies)


def test_warming_up_compiles_everything_and_changes_nothing():
    mach = Mach(SHAPE, SGD, seed=3)
    before = mach.save()
    mach.warm_up(attributed=B)
    assert same_bits(before, mach.save()) and mach.version == 0
    functions = (mach._train, mach._embed, mach._evaluate, mach._attribute)
    compiled = [function.experimental_get_tracing_count() for function in functions]
    train(mach, 0, 6)
    x, y, answers = rows(2 * B)
    mach.embed(x[:1]), mach.embed(x), mach.evaluate(x, y, answers), mach.evaluate(x[:1], y[:1], [None])
    mach.attribute(x[:B], y[:B], [None])
    assert compiled == [function.experimental_get_tracing_count() for function in functions] == [2, 1, 1, 1]


def test_equal_seeds_equal_learners():
    first, again, other = (Mach(SHAPE, SGD, seed=seed).save() for seed in (4, 4, 5))
    assert same_bits(first, again)
    assert all((first[key] != other[key]).any() for key in first if first[key].ndim == 2)
    assert (first["encoder/0"][:F, :6] != first["synthetic/0"]).any()  # parts do not begin alike


def test_the_first_weights_are_those_of_the_shape():
    mach = Mach(SHAPE._replace(children=(3, 2), synthetic=()), Rule("adam"), seed=1)
    shapes = {name: [w.shape for w in part(mach.save(), name)] for name in ("encoder", "head", "synthetic")}
    assert shapes == {
        "encoder": [(F + 5, 8), (8,), (8, 7), (7,), (7, E), (E,)],
        "head": [(E, C), (C,)],
        "synthetic": [(F, 5), (5,)],
    }
    assert len(mach.slots["target"]) == 8 and len(mach.slots["distil"]) == 2 and len(mach.slots["parents"]) == 6
    assert Mach(SHAPE._replace(gradient_rows=0), Rule("adam"), seed=1).slots["parents"] == []


# ---------------------------------------------------------------- learning


def test_a_chain_of_two_learns_the_digits():
    """Test accuracy of the upper one after 250 steps, with its child and alone with its synthetic input."""
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    draws = np.random.default_rng(0)
    order = draws.permutation(len(inputs))
    x, y = (inputs[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    shape = Shape(64, 10, (), (64,), 32, (64,), batch=64, gradient_rows=64, answer_rows=64)
    bottom = Mach(shape, Rule("adam"), seed=1)
    top = Mach(shape._replace(children=(32,), gradient_rows=0), Rule("adam"), seed=2)
    gradient = np.zeros((64, 32), np.float32)
    for _ in range(250):
        chosen = draws.choice(1400, 64, replace=False)
        answer = bottom.embed(x[chosen])
        bottom.train(x[chosen], y[chosen], [], [(x[chosen], gradient)], 3e-3)
        (gradient,) = top.train(x[chosen], y[chosen], [answer], [], 3e-3).gradients
    answer = bottom.embed(x[1400:])
    found = top.evaluate(x[1400:], y[1400:], [answer])
    assert min(found["accuracy/child"], found["accuracy/synthetic"]) > 0.93
    assert found["distillation"] < 0.5 * answer.var()
