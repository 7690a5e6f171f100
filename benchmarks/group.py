"""What a group of workers costs each of them: processor time and bytes of a step, by the number of workers.

Dense network, Fashion-MNIST, batch 32; every worker an actor. Milliseconds of a processor and bytes, a worker-step:
    rounds     ours: ten local steps a round, signs of 1,000 directions, nobody waits
    original   the original's scheme with our kernels and messages (`_all_to_all.py`): 250 directions, float32, every
               step; each worker sends to each other one, waits for all, and applies each update by itself
    gradients  kind sgd: gradients as float32, every step, through the same actors as ours
Parts of ours: gradient, project, expand (its own update), apply (others'), messages (rules, packing, sending), train
(the rest of a round), others (threads of TensorFlow and of Ray in the worker's process), relay (its share of the
relay's process). What is evaluated or written down is not counted. Figures, by workers N:
    <scheme>_N                  all parts
    exchange_N, exchange_original_N   what N workers cost more than one that is alone, each
    exchange_ratio_N            the first over the second
    sent_N, received_N          bytes of ours with headers;  original_sent_N, gradients_sent_N
    apply_over_expansions_8     applying eight updates at once over eight times expanding one
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks import _report, _runs
from benchmarks.rbd_group import learner

WORKERS = (1, 2, 4, 8, 16)
PARTS = ("gradient", "project", "expand", "train", "apply", "messages", "others", "relay")
RELAY = re.compile(r"its relay took ([\d.]+) s of a processor")


def measure(arguments: argparse.Namespace) -> _report.Measured:
    """The figures above."""
    ours = {n: _ours("rounds", n, arguments) for n in arguments.workers}
    sgd = {n: _ours("gradients", n, arguments) for n in arguments.workers if n <= arguments.most}
    original = {n: _original(n, arguments) for n in arguments.workers if n <= arguments.most}
    figures: dict[str, float] = {}
    for n, parts in ours.items():
        figures |= {f"rounds_{n}": _cpu(parts), f"sent_{n}": parts["sent"], f"received_{n}": parts["received"]}
    for n, parts in sgd.items():
        figures |= {f"gradients_{n}": _cpu(parts), f"gradients_sent_{n}": parts["sent"]}
    for n, found in original.items():
        figures |= {f"original_{n}": found["cpu"], f"original_sent_{n}": found["bytes"]}
    for n in (n for n in ours.keys() & original.keys() if n > 1):
        figures[f"exchange_{n}"] = _cpu(ours[n]) - _cpu(ours[1])
        figures[f"exchange_original_{n}"] = original[n]["cpu"] - original[1]["cpu"]
        figures[f"exchange_ratio_{n}"] = figures[f"exchange_{n}"] / figures[f"exchange_original_{n}"]
    figures["apply_over_expansions_8"] = applied(8)
    names = ("scheme", "workers", "all, ms", *(f"{part}" for part in PARTS), "sent, B", "received, B")
    rows = [_row("rounds", n, parts) for n, parts in ours.items()]
    rows += [_row("gradients", n, parts) for n, parts in sgd.items()]
    rows += [
        (
            "`original`",
            str(n),
            f"{one['cpu']:.2f}",
            *[""] * 4,
            f"{one['apply']:.2f}",
            *[""] * 3,
            f"{one['bytes']:,.0f}",
            "",
        )
        for n, one in original.items()
    ]
    listed = [(f"`{name}`", f"{value:.4g}") for name, value in figures.items()]
    return _report.Measured(figures, f"{_report.table(names, rows)}\n{_report.table(('figure', 'value'), listed)}\n")


def _row(scheme: str, n: int, parts: Mapping[str, float]) -> tuple[str, ...]:
    each = [f"{parts[part]:.2f}" if part in parts else "" for part in PARTS]
    return (f"`{scheme}`", str(n), f"{_cpu(parts):.2f}", *each, f"{parts['sent']:,.0f}", f"{parts['received']:,.0f}")


def _cpu(parts: Mapping[str, float]) -> float:
    return sum(parts.get(part, 0.0) for part in PARTS)


def _ours(name: str, workers: int, arguments: argparse.Namespace) -> dict[str, float]:
    """A run of the command line: milliseconds of each part and bytes, a worker-step."""
    made = msgspec.structs.replace(learner(name, max(2, workers)), steps=arguments.steps, replicas=workers)
    chain = {
        "version": 1,
        "name": f"{name}-{workers}",
        "data": {"name": arguments.dataset, "validation": 5000},
        "learners": {"worker": msgspec.to_builtins(msgspec.structs.replace(made, resources={"cpus": 0.05}))},
        "record": {"every": 10 * arguments.steps},
        "checkpoint": {"every": 10 * arguments.steps},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.yaml")  # JSON is YAML
        file.write_text(json.dumps(chain))
        done = _runs.run(file, {})
    reached: list[Any] = list(done.learners.values())
    steps = sum(one["steps"] for one in reached)
    spent = {part: sum(one["processor"].get(part, 0.0) for one in reached) for part in PARTS}
    relay = RELAY.search(done.log)
    spent["relay"] = float(relay[1]) if relay else 0.0
    found = {part: 1e3 * seconds / steps for part, seconds in spent.items()}
    found |= {way: sum(one["bytes"].get(way, 0) for one in reached) / steps for way in ("sent", "received")}
    _report.say(f"{name}, {workers}: {_cpu(found):.2f} ms, {found['sent']:,.0f} B sent a worker-step")
    return found


def _original(workers: int, arguments: argparse.Namespace) -> dict[str, float]:
    options = (f"--dataset={arguments.dataset}", f"--steps={arguments.original_steps}")
    found: dict[str, float] = _runs.said("benchmarks._all_to_all", workers, *options)
    _report.say(f"original, {workers}: {found['cpu']:.2f} ms, {found['bytes']:,.0f} B sent a worker-step")
    return found


def applied(count: int) -> float:
    """Applying that many updates at once over as many times expanding one; medians of what ran turn and turn about."""
    import numba

    from learners.bases import Basis
    from learners.rbd.clocks import Name
    from learners.rbd.compartments import compartments, whole
    from learners.rbd.coordinates import quantise
    from learners.rbd.directions import Drawn
    from learners.rbd.replica import Grid, Replica, Update

    numba.set_num_threads(1)
    size, d = 101_770, 1000
    directions = Drawn(1, tuple(compartments(whole(size), d, "size")), Basis(d))
    replica = Replica.at_start(directions, Grid(weight=2.5), np.zeros(size, np.float32))
    signs = np.random.default_rng(0).normal(scale=1e-3, size=(count, d)).astype(np.float32)
    updates = [Update(Name(k, 0, 0), (quantise(signs[k], "sign"),)) for k in range(count)]
    one = signs[:1] / np.abs(signs[:1])
    works: dict[str, Callable[[], object]] = {
        "apply": lambda: replica.apply(updates),
        "expand": lambda: [directions.expand(0, [Name(k, 0, 0)], one) for k in range(count)],
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(25):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - began)
            if turn < 3:
                taken[name].clear()
    return median(taken["apply"]) / median(taken["expand"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench group", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--steps", type=int, default=500, help="of each worker, in whole rounds of ten (500)")
    parser.add_argument("--original-steps", type=int, default=150, help="of each worker in the original's scheme (150)")
    parser.add_argument("--most", type=int, default=16, help="workers of the others' schemes (16)")
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
