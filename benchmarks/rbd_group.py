"""Accuracy of groups of workers on Fashion-MNIST against the bytes that each sends, every worker an actor.

Dense network, batch 32, six epochs of 55,000 rows counted over all workers; rows set apart choose the rates (`--tune`,
a seed of its own), the test set judges. Rows, each with two workers and with four:
    rounds      kind rbd: ten local steps a round, signs of 1,000 directions, nobody waits
    held        the same, with every message held back for 16 rounds
    diloco      kind local: all weights as int8 every 50 steps, averaged, an outer Nesterov step; all wait for all
    local       kind local: the same every 500 steps, without the outer step
    gradients   kind sgd: gradients as float32, every step; all wait for all
Figures: <row>_<workers>: test accuracy of the shared weights, percent, mean of the seeds; <row>_<workers>_bytes:
payload that a worker sends for each of its steps; held_costs_<workers>: points that the delay costs.
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from benchmarks import _report, _runs
from learners.rbd.options import AnyLearner, Basis, Exchange, Group, Local, Rbd, Sgd, Step

WORKERS = (2, 4)
SEEDS = (0, 1, 2)
TUNING_SEED = 100
ROWS, EPOCHS, BATCH = 55_000, 6, 32
HELD = 16
NAMES = ("rounds", "held", "diloco", "local", "gradients")


class Reached(NamedTuple):
    """What one run came to."""

    validation: float  #: percent
    test: float
    bytes: float  #: of payload, a worker-step
    seconds: float
    staleness: float  #: updates, mean


def learner(name: str, workers: int, step: Step | None = None) -> AnyLearner:
    """The workers of a row, at their rates or at others."""
    own = {"update": step or CHOSEN[name, workers], "replicas": workers}
    if name in ("rounds", "held"):
        exchange = Exchange(mode="async", max_staleness=64, every=10, residual="local", precision="sign")
        if name == "held":
            exchange = msgspec.structs.replace(exchange, held_back=HELD)
        made: AnyLearner = Rbd(basis=Basis(dimensions=1000), exchange=exchange, **own)
    elif name == "gradients":
        made = Sgd(exchange=Group(mode="sync"), **own)
    else:
        every = 50 if name == "diloco" else 500
        made = Local(exchange=Exchange(mode="sync", every=every, precision="int8"), **own)
    steps = ROWS * EPOCHS // (BATCH * workers)
    whole = getattr(made.exchange, "every", None) or 1
    return msgspec.structs.replace(made, steps=steps // whole * whole)


DILOCO = Step(rate=0.05, schedule="constant", weight=0.7, momentum=0.9, nesterov=True)
CHOSEN: dict[tuple[str, int], Step] = {
    **{(name, workers): Step() for name in ("rounds", "held") for workers in WORKERS},
    **{("diloco", workers): DILOCO for workers in WORKERS},
    **{("local", workers): Step(rate=0.2, schedule="linear") for workers in WORKERS},
    **{("gradients", workers): Step(rate=0.1, schedule="linear") for workers in WORKERS},
}
"""Rates: of rounds the project's defaults."""


def candidates(name: str) -> list[Step]:
    """What `--tune` tries."""
    if name in ("rounds", "held"):
        weights = (1.0, 1.5, 2.5) if name == "rounds" else (0.5, 1.0, 1.5, 2.5)
        return [Step(rate=0.1, schedule="constant", weight=weight) for weight in weights]
    if name == "diloco":
        outer = ((0.7, 0.9), (1.0, 0.8))
        return [
            Step(rate=rate, schedule="constant", weight=weight, momentum=momentum, nesterov=True)
            for rate in (0.05, 0.1)
            for weight, momentum in outer
        ]
    return [Step(rate=rate, schedule="linear") for rate in (0.1, 0.2, 0.4)]


def run(name: str, workers: int, seed: int, step: Step | None, results: Path) -> Reached:
    """One run, or what it came to before."""
    made = learner(name, workers, step)
    chain = {
        "version": 1,
        "name": f"{name}-{workers}",
        "seed": seed,
        "data": {"name": "fashion_mnist", "validation": 5000},
        "learners": {"worker": msgspec.to_builtins(made)},
        "record": {"every": 500},
    }
    text = json.dumps(chain)
    kept = results / f"{name}-{workers}-{seed}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{name}.yaml")  # JSON is YAML
            file.write_text(text)
            found = reached(_runs.run(file, {}), made.steps)
        results.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found._asdict()) + "\n")
    found = Reached(**json.loads(kept.read_text()))
    _report.say(f"{kept.stem}: {found}")
    return found


def reached(done: _runs.Run, steps: int) -> Reached:
    """From what a run says; its digests were equal, or it would have failed."""
    workers = list(done.learners.values())
    accuracies: Sequence[Any] = [worker["accuracies"] for worker in workers]
    stale = [
        record["values"]["staleness/updates"]
        for records in done.records.values()
        for record in records
        if "staleness/updates" in record["values"]
    ]
    return Reached(
        validation=100 * mean(a["validation/accuracy"] for a in accuracies),
        test=100 * mean(a["test/accuracy"] for a in accuracies),
        bytes=sum(worker["bytes"]["updates"] for worker in workers) / (len(workers) * steps),
        seconds=max(worker["seconds"] for worker in workers),
        staleness=mean(stale) if stale else 0.0,
    )


def measure(arguments: argparse.Namespace) -> _report.Measured | dict[str, float]:
    """The table, or the candidates of `--tune`."""
    if arguments.tune:
        return {
            f"{name}_{workers}_{number}": run(name, workers, TUNING_SEED, step, arguments.results).validation
            for workers in arguments.workers
            for name in arguments.rows
            for number, step in enumerate(candidates(name))
        }
    figures, rows = {}, []
    for workers in arguments.workers:
        for name in arguments.rows:
            found = [run(name, workers, seed, None, arguments.results) for seed in arguments.seeds]
            accuracy = mean(one.test for one in found)
            figures |= {f"{name}_{workers}": accuracy, f"{name}_{workers}_bytes": mean(one.bytes for one in found)}
            rows.append(_row(name, workers, found))
        if {"rounds", "held"} <= set(arguments.rows):
            figures[f"held_costs_{workers}"] = figures[f"rounds_{workers}"] - figures[f"held_{workers}"]
    names = (
        "row",
        "workers",
        "test accuracy, %",
        "lowest",
        "payload, B a worker-step",
        "staleness, updates",
        "seconds",
    )
    return _report.Measured(figures, _report.table(names, rows) + "\n")


def _row(name: str, workers: int, found: Sequence[Reached]) -> Sequence[str]:
    return (
        f"`{name}`",
        str(workers),
        f"{mean(one.test for one in found):.2f}",
        f"{min(one.test for one in found):.2f}",
        f"{mean(one.bytes for one in found):,.1f}",
        f"{mean(one.staleness for one in found):.1f}",
        f"{mean(one.seconds for one in found):.0f}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench rbd-group", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--results", type=Path, default=Path("runs/rbd-group"), help="folder of results")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--rows", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--tune", action="store_true", help="try rates, judged on validation rows, instead")
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
