"""The original's algorithm and threading, written anew from its semantics: the baseline of `bench original`.

Two components as Python threads of one process, TensorFlow's default threads, graph functions without XLA (what a
TensorFlow 1 session runs), Adam's fused kernel, batches of 50, inputs 0..255. Where it differs from ours on purpose
(numbers of the faults in `docs/faults.md`): an empty child input is distilled in the synthetic pass (1), `grade` takes
a zero downstream input (2), a component without a child trains a synthetic input too (3), the distillation loss is a
sum (9), nobody orders spike, grade and training (14), one Adam state and counter serve all objectives (15), inputs are
not scaled (17); every 100 steps the whole test set is evaluated four times (12).
Assumed, as the semantics do not say: kernels truncated normal of deviation 0.1, biases 0.1, Adam 1e-3, no dropout, the
target loss a mean; figures of attribution, which the original computes too, are left out, to its advantage.
Prints one JSON object.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Optional

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

BATCH, FEATURES, EMBEDDING, CLASSES, HIDDEN = 50, 784, 128, 10, (512, 512)
METRICS_EVERY = 100
WARM_STEPS = 30


def _stack(draws: np.random.Generator, *widths: int) -> list[tf.Variable]:
    layers = []
    for fan_in, fan_out in pairwise(widths):
        kernel = draws.normal(0.0, 0.1, (fan_in, fan_out))
        while (far := np.abs(kernel) > 0.2).any():  # truncated at two deviations: what lies beyond is drawn again
            kernel[far] = draws.normal(0.0, 0.1, far.sum())
        layers += [tf.Variable(kernel.astype(np.float32)), tf.Variable(np.full(fan_out, 0.1, np.float32))]
    return layers


def _dense(layers: list[tf.Variable], x: tf.Tensor, *, linear: bool = False) -> tf.Tensor:
    for i in range(0, len(layers), 2):
        x = x @ layers[i] + layers[i + 1]
        x = x if linear and i == len(layers) - 2 else tf.nn.relu(x)
    return x


class Component:
    """One learner of the original: synthetic input, encoder, head, one Adam."""

    def __init__(self, seed: int, rate: float) -> None:
        draws = np.random.default_rng(seed)
        self.synthetic = _stack(draws, FEATURES, *HIDDEN, EMBEDDING)
        self.encoder = _stack(draws, FEATURES + EMBEDDING, *HIDDEN, EMBEDDING)
        self.head = _stack(draws, EMBEDDING, CLASSES)
        weights = self.synthetic + self.encoder + self.head
        self.slots = {w.ref(): [tf.Variable(tf.zeros_like(w)) for _ in range(2)] for w in weights}
        self.powers = [tf.Variable(0.9), tf.Variable(0.999)]
        self.rate, self.steps = rate, 0
        #: each of them one run of the session
        self.spike, self.grade, self.train, self.evaluate = (
            tf.function(f, reduce_retracing=True) for f in (self._spike, self._grade, self._train, self._evaluate)
        )

    def _apply(self, gradients: list[tf.Tensor], weights: list[tf.Variable]) -> None:
        """Adam's fused kernel, as tf.train.AdamOptimizer runs it."""
        for gradient, weight in zip(gradients, weights, strict=True):
            first, second = self.slots[weight.ref()]
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle, m=first.handle, v=second.handle, beta1_power=self.powers[0],
                beta2_power=self.powers[1], lr=self.rate, beta1=0.9, beta2=0.999, epsilon=1e-8, grad=gradient,
            )  # fmt: skip
        for power, beta in zip(self.powers, (0.9, 0.999), strict=True):
            power.assign(power * beta)

    def _code(self, x: tf.Tensor, downstream: tf.Tensor) -> tf.Tensor:
        return _dense(self.encoder, tf.concat([x, downstream], 1))

    def _spike(self, x: tf.Tensor) -> tf.Tensor:
        return self._code(x, _dense(self.synthetic, x, linear=True))

    def _grade(self, x: tf.Tensor, gradient: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            code = self._code(x, tf.zeros([tf.shape(x)[0], EMBEDDING]))
        self._apply(tape.gradient(code, self.encoder, output_gradients=gradient), self.encoder)

    def _train(self, x: tf.Tensor, labels: tf.Tensor, child: tf.Tensor, use_synthetic: bool) -> tf.Tensor:
        """One pass; returns the gradient for the child."""
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(child)
            imagined = _dense(self.synthetic, x, linear=True)
            target, _ = self._scored(x, labels, imagined if use_synthetic else child)
            distillation = tf.reduce_sum(tf.square(imagined - child))
            moved = target + distillation if use_synthetic else distillation
        own = self.encoder + self.head
        found, to_child = tape.gradient(target, own), None if use_synthetic else tape.gradient(target, child)
        for_synthetic = tape.gradient(moved, self.synthetic)
        self._apply(found, own)
        self._apply(for_synthetic, self.synthetic)
        return tf.zeros_like(child) if to_child is None else to_child

    def _scored(self, x: tf.Tensor, labels: tf.Tensor, downstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = _dense(self.head, self._code(x, downstream), linear=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        right = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
        return tf.reduce_mean(loss), tf.reduce_mean(tf.cast(right, tf.float32))

    def _evaluate(self, x: tf.Tensor, labels: tf.Tensor, child: tf.Tensor, use_synthetic: bool) -> tf.Tensor:
        imagined = _dense(self.synthetic, x, linear=True)
        loss, accuracy = self._scored(x, labels, imagined if use_synthetic else child)
        return tf.stack([loss, accuracy, tf.reduce_sum(tf.square(imagined - child))])


class Chain:
    """Two components, the second above the first, each trained by a thread of its own."""

    def __init__(self, dataset: Any, *, scale: float, rate: float, metrics: bool) -> None:
        def prepared(split: Any) -> tuple[np.ndarray, np.ndarray]:
            return split.inputs.astype(np.float32) * np.float32(scale), split.labels

        self.train, self.test, self.metrics = prepared(dataset.train), prepared(dataset.test), metrics
        self.bottom, self.top = Component(1, rate), Component(2, rate)
        self._go, self._over = threading.Event(), False
        self._paused = threading.Semaphore(0)
        self._work: list[threading.Thread] = []

    def start(self) -> None:
        """Start both threads; they train from `resume` to `pause`."""
        for component, child in ((self.bottom, None), (self.top, self.bottom)):
            self._work.append(threading.Thread(target=self._loop, args=[component, child], daemon=True))
            self._work[-1].start()

    def resume(self) -> None:
        """Let both go on."""
        self._go.set()

    def pause(self) -> None:
        """Hold both after their current step; returns when they stand still."""
        self._go.clear()
        for _ in self._work:
            self._paused.acquire()

    def _loop(self, component: Component, child: Optional[Component]) -> None:
        draws = np.random.default_rng(component is self.top)
        order: np.ndarray = draws.permutation(len(self.train[1]))
        while True:
            if not self._go.is_set():
                self._paused.release()
                self._go.wait()
            at = component.steps * BATCH % (len(order) - BATCH)
            numbers = order[at : at + BATCH]
            self._step(component, child, self.train[0][numbers], self.train[1][numbers])
            component.steps += 1
            if self.metrics and component.steps % METRICS_EVERY == 0:
                self._report(component, child)

    @staticmethod
    def _step(component: Component, child: Optional[Component], x: np.ndarray, labels: np.ndarray) -> None:
        nothing = np.zeros((len(x), EMBEDDING), np.float32)
        embedding = child.spike(x).numpy() if child else nothing
        gradient = component.train(x, labels, embedding, False).numpy()
        if child:
            child.grade(x, gradient)
        component.train(x, labels, nothing, True).numpy()

    def _report(self, component: Component, child: Optional[Component]) -> None:
        x, labels = self.test
        for _ in range(2):
            for use_synthetic in (False, True):
                embedding = np.zeros((len(x), EMBEDDING), np.float32)
                if child and not use_synthetic:
                    embedding = child.spike(x).numpy()
                component.evaluate(x, labels, embedding, use_synthetic).numpy()

    def accuracy(self) -> float:
        """Of the upper component on the whole test set, with its child."""
        x, labels = self.test
        return float(self.top.evaluate(x, labels, self.bottom.spike(x), False)[1])


def speed(chain: Chain, seconds: float) -> dict[str, float]:
    """Steps a second of both once both are warm."""
    chain.start()
    chain.resume()
    _until(lambda: min(chain.bottom.steps, chain.top.steps) >= WARM_STEPS)
    began, before = time.perf_counter(), (chain.bottom.steps, chain.top.steps)
    time.sleep(seconds)
    lasted = time.perf_counter() - began
    return {
        "bottom": (chain.bottom.steps - before[0]) / lasted,
        "top": (chain.top.steps - before[1]) / lasted,
    }


def time_to(chain: Chain, accuracy: float, every: int, limit: float) -> dict[str, Any]:
    """Seconds from the first step until the upper component's test accuracy is that high, or None by the limit.

    Both stand still while it is evaluated, every so many steps, and so does the clock. Compilation comes before it.
    """
    _compile(chain)
    chain.start()
    seconds, reached = 0.0, 0.0
    while reached < accuracy and seconds < limit:
        began, wanted = time.perf_counter(), chain.top.steps + every
        chain.resume()
        _until(lambda: chain.top.steps >= wanted)  # noqa: B023  used before it changes
        chain.pause()
        seconds += time.perf_counter() - began
        reached = chain.accuracy()
    found = seconds if reached >= accuracy else None
    return {"seconds": found, "accuracy": reached, "steps": chain.top.steps, "ran": seconds}


def _compile(chain: Chain) -> None:
    """Trace every function, then put every variable back."""
    parts = (chain.bottom, chain.top)
    variables = [v for c in parts for v in (*c.synthetic, *c.encoder, *c.head, *c.powers)]
    variables += [slot for c in parts for pair in c.slots.values() for slot in pair]
    saved = [variable.numpy().copy() for variable in variables]
    x, labels = (part[:BATCH] for part in chain.train)
    for component, child in ((chain.bottom, None), (chain.top, chain.bottom)):
        chain._step(component, child, x, labels)
    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.002)


def _main() -> None:
    from actors import data
    from learners.options import Data

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the window in which steps are counted")
    parser.add_argument("--accuracy", type=float, default=0.0, help="time to this test accuracy instead")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which that is given up")
    parser.add_argument("--every", type=int, default=25, help="steps between two evaluations")
    parser.add_argument("--scaled", action="store_true", help="inputs 0..1")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--no-metrics", action="store_true", help="leave out the evaluations every 100 steps")
    arguments = parser.parse_args()
    dataset = data.load(Data(name="fashion_mnist", validation=5000))
    chain = Chain(
        dataset, scale=1 / 255 if arguments.scaled else 1.0, rate=arguments.rate, metrics=not arguments.no_metrics
    )
    if arguments.accuracy:
        print(json.dumps(time_to(chain, arguments.accuracy, arguments.every, arguments.limit)), flush=True)
    else:
        print(json.dumps(speed(chain, arguments.seconds)), flush=True)
    os._exit(0)  # the threads train on for ever


if __name__ == "__main__":
    _main()
