"""Three chained actors against the same three learners in one process: what the exchange costs.

The chain of `topology/chains/fashion.yaml` (batch 128), run as a user would, with its records and checkpoints; and the
same learners in three threads of one process, the child's embedding and gradient computed in place (see `_local.py`).
Turn and turn about, `--pairs` times. Only the time in which all three train counts. Figures (medians over the pairs):
    exchange_efficiency     the actors' total steps a second over the threads', of each pair
    arithmetic_efficiency   the same with every step weighed by its multiplications (learners' steps are unlike)
    metrics_share           part of the actors' busy time (all but waiting) that evaluation, attribution, records take
    messages_share          the same for exchange rules and sending
    wait_share              part of all their time in which they waited for a message
    actors_steps_per_second, local_steps_per_second     of all three together
    actors_<learner>, local_<learner>                   of each
    actors_gflops, local_gflops     multiplications and additions that the matrices of these steps need, 1e9 a second
    local_threads           intra-op threads of the threads' process: of 1, 2, 3 the fastest number
    matmul_gflops           of the steps' greatest matrix product alone, compiled by XLA, on every core at once
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import _report, _runs

CHAIN = Path("topology/chains/fashion.yaml")
WARM_STEPS = 50
"""Steps that every actor has done before the window opens."""


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures above."""
    threads = arguments.threads or _fastest(arguments.seconds)
    pairs = []
    for _ in range(arguments.pairs):
        pair = (_actors(arguments.steps), _local(arguments.seconds, threads))
        pairs.append(pair)
        rates = [sum(side["rates"].values()) for side in pair]
        _report.say(f"actors {rates[0]:.1f}, threads {rates[1]:.1f} steps/s: {rates[0] / rates[1]:.3f}")
    flops = _flops()
    figures = {"exchange_efficiency": median(_total(actors) / _total(local) for actors, local in pairs)}
    for share in ("metrics_share", "messages_share", "wait_share"):
        figures[share] = median(actors[share] for actors, _ in pairs)
    for index, side in enumerate(("actors", "local")):
        rates = {name: median(pair[index]["rates"][name] for pair in pairs) for name in flops}
        figures[f"{side}_steps_per_second"] = median(_total(pair[index]) for pair in pairs)
        figures |= {f"{side}_{name}": value for name, value in rates.items()}
        figures[f"{side}_gflops"] = sum(rates[name] * flops[name] for name in flops) / 1e9
    figures["arithmetic_efficiency"] = median(
        sum(actors["rates"][name] * flops[name] for name in flops)
        / sum(local["rates"][name] * flops[name] for name in flops)
        for actors, local in pairs
    )
    return {**figures, "matmul_gflops": _matmul(), "local_threads": threads, "pairs": arguments.pairs}


def _fastest(seconds: float) -> int:
    """How many intra-op threads serve the three threads best: one for each, or one for each core, or one in all."""
    rates = {threads: _total(_local(seconds, threads)) for threads in (1, 2, 3)}
    _report.say(f"threads, steps/s by intra-op threads: {rates}")
    return max(rates, key=lambda threads: rates[threads])


def _total(side: Mapping) -> float:
    return sum(side["rates"].values())


def _actors(steps: int) -> dict:
    flops = _flops()
    most = max(flops.values())  # all should end together: a learner with cheap steps takes more of them
    settings = {f"learners.{name}.steps": round(steps * most / flops[name]) for name in flops}
    return window(_runs.run(CHAIN, settings).records)


def window(records: Mapping[str, list[dict]]) -> dict:
    """Rates and shares while all learners train, from what they wrote down."""
    trained = {name: [r["time"] for r in written if r["kind"] == "train"] for name, written in records.items()}
    begin = max(times[WARM_STEPS - 1] for times in trained.values())
    end = min(times[-1] for times in trained.values())
    assert end > begin, "the first learner had ended before the last was warm: more --steps"
    rates = {name: sum(begin < at <= end for at in times) / (end - begin) for name, times in trained.items()}
    spent: dict[str, float] = {}
    for written in records.values():
        noted = [r["values"] for r in written if r["kind"] == "evaluate" and begin < r["time"] <= end]
        assert len(noted) > 1, "fewer than two evaluations while all trained: more --steps"
        for key in (key for key in noted[0] if key.startswith("seconds/")):
            heading = key.removeprefix("seconds/")
            spent[heading] = spent.get(heading, 0.0) + noted[-1][key] - noted[0][key]
    busy = sum(spent.values()) - spent["wait"]
    return {
        "rates": rates,
        "metrics_share": (spent["evaluate"] + spent["record"]) / busy,
        "messages_share": spent["messages"] / busy,
        "wait_share": spent["wait"] / sum(spent.values()),
    }


def _local(seconds: float, threads: int) -> dict:
    found = _runs.said("benchmarks._local", CHAIN, f"--seconds={seconds}", f"--threads={threads}")
    return {"rates": {name: steps / found["seconds"] for name, steps in found["steps"].items()}}


# ---------------------------------------------------------------- the machine's own limit


def _flops() -> dict[str, float]:
    """Multiplications and additions of one step of each learner: matrices only, every parent's gradient included.

    A product of [B, I] and [I, O] takes 2 B I O forwards, as much for the weights' gradient, and as much for the
    inputs' where somebody needs that.
    """
    from topology import parse

    topology, features, classes, found = parse.load(CHAIN), 784, 10, {}
    for name, learner in topology.learners.items():
        rows, below = learner.batch_size, sum(topology.learners[c].embedding for c in topology.children_of(name))
        inner = _products((*learner.hidden, learner.embedding))
        first = (features + below) * learner.hidden[0]
        head = learner.embedding * classes
        passes = 3 * (first + inner + head) - features * learner.hidden[0]
        synthetic = features * learner.synthetic.hidden[0] + _products((*learner.synthetic.hidden, below))
        total = passes
        if below:  # a second pass, and the synthetic input forwards and backwards
            total += passes + 3 * synthetic - features * learner.synthetic.hidden[0]
        for _ in topology.parents_of(name):  # an answer; then forwards and backwards for its gradient
            once = first + inner + (synthetic if below else 0)
            total += once + once + 2 * (first + inner) - first
        found[name] = 2.0 * rows * total
    return found


def _products(widths: tuple[int, ...]) -> int:
    return sum(one * other for one, other in pairwise(widths))


def _matmul() -> float:
    """1e9 operations a second of [128, 912] x [912, 512], in as many processes as there are cores."""
    cores = len(os.sched_getaffinity(0))
    command = [sys.executable, "-c", _PRODUCT]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(cores)]
    return sum(float(process.communicate()[0]) for process in running)


_PRODUCT = """
import time
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
x, w = tf.random.normal([128, 912]), tf.random.normal([912, 512])
@tf.function(jit_compile=True)
def product(x, w):
    return x @ w
product(x, w)
best = 0.0
for _ in range(20):
    began = time.perf_counter()
    for _ in range(100):
        product(x, w)
    best = max(best, 100 * 2 * 128 * 912 * 512 / (time.perf_counter() - began) / 1e9)
print(best)
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench chain", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument(
        "--steps",
        type=int,
        default=1000,
        help="of the actor with the dearest steps; the others take as many more as theirs are cheaper",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of the threads' window")
    parser.add_argument("--threads", type=int, default=0, help="intra-op threads of theirs (default: the fastest)")
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
