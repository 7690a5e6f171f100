"""Random bases against the original's way of making them, and against what the processor can do.

D = 101,770 weights (784-128-10), d = 250 directions, and 4,000 (`_4000`). Milliseconds:
    rademacher, normal, uniform, lognormal, hadamard_16000    project + expand of ours, all cores
    baseline_bernoulli, baseline_normal   a step of the original's, on TensorFlow: the matrix is drawn in batches of 50
                             directions, three times a step: to perturb (by zero coordinates), to project, to expand
    limit                    what the look-ups (shift, permute, add) of one pass take from registers, plus what the
                             generator alone takes for its words: the sum, although a processor may overlap the two
    sgd, rbd                 a training step, batch 32: gradient and update in one compiled function; gradient in one,
                             then project, expand, update
Ratios, of the medians of what ran turn and turn about:
    rademacher_ratio, normal_ratio     baseline over ours
    fraction_of_limit        limit over ours, of a pass (the mean of project and expand)
    hadamard_over_rademacher project + expand at d = 16,000 over Rademacher's at d = 250
    step_over_sgd            rbd over sgd
The baseline's distributions are the original's: Bernoulli of +0.5 and -1.5, drawn as sign(uniform) - 0.5.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numba
import numpy as np

from benchmarks import _report
from learners import bases
from learners.bases import Basis, Key
from learners.bases.philox import Domain, blocks, counting, place, stream
from learners.bases.signs import CHUNK, TILE, Sums
from learners.bases.vectors import F32, FLOATS, I64, PAIRS, WORDS, Code, emitted

D, BATCH, DIRECTIONS_AT_ONCE = 101_770, 32, 50
Work = Callable[[], Any]


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures above."""
    ours = {name: _ours(Basis(250, name)) for name in ("rademacher", "normal", "uniform", "lognormal")}
    ours["hadamard_16000"] = _ours(Basis(16_000, "hadamard"))
    few = turns({**ours, **_baselines(250), "limit": _limit(250), **_steps()}, arguments.rounds)
    many = {"rademacher": _ours(Basis(4000)), "normal": _ours(Basis(4000, "normal")), **_baselines(4000)}
    many_taken = turns({**many, "limit": _limit(4000)}, arguments.rounds_4000)
    return {
        **_ratios(few),
        "hadamard_over_rademacher": few["hadamard_16000"] / few["rademacher"],
        "step_over_sgd": few["rbd"] / few["sgd"],
        **few,
        **{f"{name}_4000": value for name, value in {**_ratios(many_taken), **many_taken}.items()},
        "threads": numba.get_num_threads(),
    }


def _ratios(taken: Mapping[str, float]) -> dict[str, float]:
    return {
        "rademacher_ratio": taken["baseline_bernoulli"] / taken["rademacher"],
        "normal_ratio": taken["baseline_normal"] / taken["normal"],
        "fraction_of_limit": 2 * taken["limit"] / taken["rademacher"],
    }


def turns(works: Mapping[str, Work], rounds: int) -> dict[str, float]:
    """Milliseconds of each: the median over rounds, in each of which everything has its turn for a moment."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            work()  # whatever ran before it has had the caches
            samples, until = [], time.perf_counter() + 0.05
            while not samples or (time.perf_counter() < until and len(samples) < 100):
                began = time.perf_counter()
                work()
                samples.append(time.perf_counter() - began)
            taken[name].append(1e3 * median(samples))
        _report.say(", ".join(f"{name} {values[-1]:.4g}" for name, values in taken.items()))
    return {name: median(values) for name, values in taken.items()}


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _ours(basis: Basis) -> Work:
    gradient, sequence = _numbers(D), iter(range(1 << 40))

    def work() -> np.ndarray:
        key = Key(1, 0, next(sequence))
        return bases.expand(basis, key, bases.project(basis, key, gradient), D)

    return work


# ---------------------------------------------------------------- the original's way


def _baselines(directions: int) -> dict[str, Work]:
    """A step each: theta after a perturbation by nothing, a projection and an update. Graph mode, not XLA.

    stateless_* are Philox too, and on this path no slower than the stateful generators that the original had.
    """
    import tensorflow as tf

    def bernoulli(seed: Any) -> Any:
        return tf.sign(tf.random.stateless_uniform([DIRECTIONS_AT_ONCE, D], seed, -1.0, 1.0)) - 0.5

    def normal(seed: Any) -> Any:
        return tf.random.stateless_normal([DIRECTIONS_AT_ONCE, D], seed)

    def step_of(draw: Callable[[Any], Any]) -> Work:
        starts = range(0, directions, DIRECTIONS_AT_ONCE)

        def expanded(step: Any, coordinates: Any) -> Any:
            total = tf.zeros([D])
            for start in starts:
                chosen = coordinates[start : start + DIRECTIONS_AT_ONCE]
                total += tf.linalg.matvec(draw([step, start]), chosen, transpose_a=True)
            return total

        @tf.function
        def run(theta: Any, gradient: Any, step: Any) -> Any:
            theta += expanded(step, tf.zeros([directions]))
            # a graph would draw a batch once for both, if it could prove them equal: the parts come one after the other
            with tf.control_dependencies([theta]):
                found = [tf.linalg.matvec(draw([step, start]), gradient) for start in starts]
            coordinates = tf.concat(found, 0) / D
            with tf.control_dependencies([coordinates]):
                return theta - 0.1 * expanded(step, coordinates)

        theta, gradient, count = tf.zeros([D]), tf.constant(_numbers(D)), tf.Variable(0)
        return lambda: run(theta, gradient, count.assign_add(1).read_value()).numpy()

    return {"baseline_bernoulli": step_of(bernoulli), "baseline_normal": step_of(normal)}


# ---------------------------------------------------------------- what the processor can do


@emitted
def _look_ups(code: Code, count: Any, io: Any) -> None:
    """`count` times 1,024 entries: 16 shifts, permutes and additions."""
    totals = [code.variable(code.load(io, I64(16 * n), FLOATS)) for n in range(16)]
    words = [code.variable(code.builder.bitcast(code.load(io, I64(16 * n), FLOATS), WORDS)) for n in range(2)]
    table = Sums(code, [code.load(io, I64(n), F32) for n in range(4)])
    with code.loop(I64(0), count):
        for half, word in enumerate(words):
            bits = code.builder.load(word)
            for n in range(8):
                code.add_to(totals[8 * half + n], table[code.lshr(bits, 4 * n)])
            code.builder.store(code.add(bits, 0x9E3779B9), word)
    for n, total in enumerate(totals):
        code.store(code.builder.load(total), io, I64(16 * n))


@emitted
def _generate(code: Code, count: Any, at: Any, io: Any) -> None:
    """`count` times the 1,024 bits of eight blocks."""
    places, columns = place(code, at), counting(code, I64(0))
    totals = [code.variable(code.load(io, I64(8 * n), PAIRS)) for n in range(2)]
    with code.loop(I64(0), count) as row:
        for total, pair in zip(totals, blocks(code, row, columns, places), strict=True):
            code.builder.store(code.xor(code.builder.load(total), pair), total)
    for n, total in enumerate(totals):
        code.store(code.builder.load(total), io, I64(8 * n))


@numba.njit(parallel=True, nogil=True)
def _limit_of(count, threads, at, floats, words):  # type: ignore[no-untyped-def]
    for thread in numba.prange(threads):
        _look_ups((count // threads, floats[thread]))
    for thread in numba.prange(threads):
        _generate((count // threads, at, words[thread]))


def _limit(directions: int) -> Work:
    """One pass over as many entries as the kernels go through, padding included."""
    threads = numba.get_num_threads()
    count = -(-D // TILE) * TILE * -(-directions // CHUNK) * CHUNK // 1024
    floats, words = np.ones((threads, 256), np.float32), np.zeros((threads, 16), np.uint64)
    return lambda: _limit_of(count, threads, stream(Key(1), Domain.RADEMACHER), floats, words)


# ---------------------------------------------------------------- inside the training loop


def _steps() -> dict[str, Work]:
    """Both on four tensors: XLA takes many times as long over a gradient that it is to lay into one vector."""
    import tensorflow as tf

    shapes, rate = ((784, 128), (128,), (128, 10), (10,)), np.float32(0.1)
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    x, labels = tf.constant(abs(_numbers(BATCH, 784))), tf.constant(np.arange(BATCH) % 10)
    theta = 0.03 * _numbers(D)

    def tensors() -> list[np.ndarray]:
        parts = zip(ends, ends[1:], shapes, strict=False)
        return [theta[begin:end].reshape(shape) for begin, end, shape in parts]

    def gradient_of(weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            w1, b1, w2, b2 = weights
            logits = tf.nn.relu(x @ w1 + b1) @ w2 + b2
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return loss, tape.gradient(loss, weights)

    @tf.function(jit_compile=True)
    def gradient(*weights: Any) -> Any:
        return gradient_of(weights)

    variables = [tf.Variable(tensor) for tensor in tensors()]

    @tf.function(jit_compile=True)
    def descended() -> Any:
        loss, found = gradient_of(variables)
        for variable, slope in zip(variables, found, strict=True):
            variable.assign_sub(rate * slope)
        return loss

    basis, keys = Basis(250), itertools.count()

    def sgd() -> None:
        descended().numpy()

    def rbd() -> None:
        nonlocal theta
        key = Key(1, 0, next(keys))
        _, found = gradient(*map(tf.constant, tensors()))
        gradient_D = np.concatenate([slope.numpy().ravel() for slope in found])
        update = bases.expand(basis, key, bases.project(basis, key, gradient_D), D)
        theta = theta - rate * np.float32(bases.scale(basis, D)) * update

    return {"sgd": sgd, "rbd": rbd}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench bases", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rounds-4000", type=int, default=2)
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
