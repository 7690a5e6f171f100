"""Small networks that are chains of `symmetries.Step`, trained by the real update rules; for tests of the laws."""

from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from learners import optimizers
from learners.mechanics import charges, exact
from learners.mechanics.symmetries import Step, symmetries

ACTIVATIONS = {
    "relu": tf.nn.relu,
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.1),
    "linear": tf.identity,
    "tanh": tf.tanh,
}
EPSILON = 1e-5
"""Of normalisations."""


@dataclass
class Net:
    """Steps, their tensors' shapes, and the shape of an example."""

    example: tuple
    steps: list = field(default_factory=list)
    shapes: list = field(default_factory=list)

    def __post_init__(self):
        self._now, self._spread = self.example, 1  # of what passes; positions of an image that was laid flat

    def _tensor(self, shape):
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def _weighted(self, kind, kernel, bias):
        number = self._tensor(kernel)
        self.steps.append(Step(kind, f"{kind}{number}", number, self._tensor(kernel[-1:]) if bias else None))
        return self

    def dense(self, units, bias=True):
        rows, self._now = self._now[-1], (units,)
        return self._weighted("dense", (rows, units), bias)

    def conv(self, filters, bias=True):
        height, width, channels = self._now
        self._now = (height - 2, width - 2, filters)
        return self._weighted("conv", (3, 3, channels, filters), bias)

    def act(self, name):
        self.steps.append(Step("activation", name, detail=name))
        return self

    def drop(self):
        self.steps.append(Step("dropout", "dropout"))
        return self

    def pool(self):
        height, width, channels = self._now
        self._now = (height // 2, width // 2, channels)
        self.steps.append(Step("pool", "pool"))
        return self

    def flatten(self):
        self._now = (int(np.prod(self._now)),)
        self.steps.append(Step("flatten", "flatten"))
        return self

    def norm(self, detail="batch"):
        units = self._now[-1:]
        self.steps.append(Step("norm", f"norm{len(self.shapes)}", self._tensor(units), self._tensor(units), detail))
        return self

    def end(self):
        self.steps.append(Step("softmax", "loss"))
        return self

    @property
    def symmetries(self):
        return symmetries(self.steps, self.shapes)

    def draw(self, seed, dtype):
        """Weights in which nothing is 0."""
        draws, found = np.random.default_rng(seed), []
        for shape in self.shapes:
            if len(shape) == 1:
                found.append(1.0 + 0.3 * draws.normal(size=shape))
            else:
                found.append(draws.normal(size=shape) * (2.0 / np.prod(shape[:-1])) ** 0.5)
        return [tf.constant(one, dtype) for one in found]

    def logits(self, weights, x, mask):
        for step in self.steps:
            if step.kind in ("dense", "conv"):
                x = x @ weights[step.weight] if step.kind == "dense" else conv(x, weights[step.weight])
                x = x if step.bias is None else x + weights[step.bias]
            elif step.kind == "activation":
                x = ACTIVATIONS[step.detail](x)
            elif step.kind == "flatten":
                x = tf.reshape(x, (x.shape[0], -1))
            elif step.kind == "pool":
                x = pooled(x)
            elif step.kind == "dropout":
                x = tf.where(tf.random.stateless_uniform(x.shape, mask) > 0.3, x / 0.7, tf.zeros_like(x))
            elif step.kind == "norm":
                over = list(range(len(x.shape) - 1)) if step.detail == "batch" else [-1]
                mean, variance = tf.nn.moments(x, over, keepdims=True)
                x = (x - mean) * tf.math.rsqrt(variance + EPSILON) * weights[step.weight] + weights[step.bias]
        return x


def conv(x, kernel):
    """Without padding, in any float type."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    return tf.add_n([x[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3)])


def pooled(x):
    height, width, channels = x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    x = tf.reshape(x[:, : 2 * height, : 2 * width], (-1, height, 2, width, 2, channels))
    return tf.reduce_max(x, (2, 4))


class Run:
    """Training with one or two objectives on the same weights, and what the laws need of every step.

    Objective k sees labels of its own; `rates` gives the rate of each objective at a step, None where it stands still.
    """

    def __init__(self, net, rule, *, dtype="float64", seed=0, objectives=1, classes=3, rows=12):
        self.net, self.rule, self.laws, self.dtype = net, rule, net.symmetries.laws, dtype
        self.weights = net.draw(seed, dtype)
        draws = np.random.default_rng(seed + 1)
        self.x = tf.constant(draws.normal(size=(rows, *net.example)), dtype)
        self.labels = [tf.constant(draws.integers(classes, size=rows)) for _ in range(objectives)]
        slots = optimizers.SLOTS[rule.name]
        self.slots = [[[tf.zeros_like(w) for _ in range(slots)] for w in self.weights] for _ in range(objectives)]
        self.counts, self.steps = [0] * objectives, 0
        self._gradient = tf.function(self._gradients, autograph=False)

    def _gradients(self, weights, mask):
        found = []
        for labels in self.labels:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits = self.net.logits(weights, self.x, mask)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            found.append(tape.gradient(loss, weights))
        return found

    def gradients(self):
        return self._gradient(self.weights, tf.constant([7, self.steps]))

    def step(self, *rates, gradients=None):
        """One step; the buffers, the sums, and the gradients."""
        gradients = self.gradients() if gradients is None else gradients
        deltas, news, buffers = [], [], []
        for k, rate in enumerate(rates):
            rule = self.rule if k == 0 else self.rule._replace(weight_decay=0.0)
            lam = {"coupled": 0.0, "decoupled": 0.0, rule.decay: rule.weight_decay}
            buffers.append(exact.Buffer(rate or 0.0, lam["coupled"], lam["decoupled"], rate is not None))
            if rate is None:
                news.append(self.slots[k])
                continue
            self.counts[k] += 1
            moved, new = self._objective(rule, k, gradients[k], rate, lam["decoupled"])
            deltas.append(moved)
            news.append(new)
        total = [tf.add_n(list(parts)) for parts in zip(*deltas, strict=True)]
        shrink = 1.0 - sum(b.rate * b.decoupled for b in buffers if b.steps)
        self.slots, self.steps = news, self.steps + 1
        self.weights = [w + (delta + (shrink - 1.0) * w) for w, delta in zip(self.weights, total, strict=True)]
        square = self.products(total, total)
        cross = tuple(self.products(total, [s[0] for s in new]) if new[0] else 0 * square for new in news)
        return tuple(buffers), exact.Sums(square, cross), gradients

    def _objective(self, rule, k, gradients, rate, decoupled):
        rate_t, count = tf.constant(rate, self.dtype), tf.constant(self.counts[k], self.dtype)
        moved, new = [], []
        for weight, gradient, slots in zip(self.weights, gradients, self.slots[k], strict=True):
            delta, after = optimizers.delta(rule, weight, gradient, slots, rate_t, count)
            moved.append(delta + rate * decoupled * weight)
            new.append(after)
        return moved, new

    @property
    def charges(self):
        return charges.charges(self.laws, arrays(self.weights))

    @property
    def sizes(self):
        return charges.sizes(self.laws, arrays(self.weights))

    @property
    def degrees(self):
        return charges.degrees(self.laws)

    def products(self, one, other):
        return charges.products(self.laws, arrays(one), arrays(other))


def arrays(tensors):
    return [tensor.numpy() for tensor in tensors]
