"""Accuracy against the bytes that a worker sends: random bases, and what else sends little.

One worker, dense network, Fashion-MNIST, batch 32, no augmentation. Bytes are payload: coordinates and exponents,
without headers. Accuracy is that of the shared weights, which is what others would have.

First, 10 epochs and three seeds: signs of 250 directions with the residual applied locally, beside sgd.
Figures: sign_accuracy, sgd_accuracy (test, percent, means), sign_below_sgd, sign_megabytes, sgd_megabytes.

Then 2 epochs of one seed over all payloads. A point is a whole run:
    plain      d = 64, 250, 1000, 4000, each precision; what directions miss is forgotten
    residual   the same with the residual applied locally, one step a round
    rounds     signs and the residual, ten steps a round
    top-k      residual likewise, with signs at the k largest weights, and their places, in place of directions
    local      local SGD: all weights as int8, every H steps;  diloco: the same with an outer Nesterov step
    sgd        gradients as float32, every step
With one worker, local and diloco are steps of its own and the quantised update that it would send.
Rates are those that `--tune` finds on rows set apart, with a seed of its own, one for each kind of point.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from benchmarks import _alone, _pictures, _report
from benchmarks._alone import Result, Setting
from learners.rbd.options import AnyLearner, Basis, Exchange, Local, Rbd, Sgd, Step

PRECISIONS = ("sign", "int4", "int8", "int16", "float32")
DIMENSIONS = (64, 250, 1000, 4000)
COUNTS = (4, 14, 55, 222)
"""k: with their places, about as many bytes as the signs of `DIMENSIONS`."""
EVERY = (10, 50, 500)
LONG, SEEDS = 10.0, (0, 1, 2)
Point = tuple[AnyLearner, int]
"""A learner, and k or 0."""

# The best on validation rows; of the residual the project's defaults, which are the best at 10 epochs and d = 250, and
# within 0.2 of it at 2 epochs but for d = 64 (0.8).
PLAIN = {64: 8.0, 250: 8.0, 1000: 8.0, 4000: 4.0}
"""Rate by d, linear."""
RESIDUAL = Step(rate=0.1, schedule="constant", weight=2.5)
TOP = Step(rate=0.1, schedule="constant", weight=4.0)
LOCAL = Step(rate=0.2, schedule="linear")
DILOCO = Step(rate=0.05, schedule="constant", weight=0.7, momentum=0.9, nesterov=True)
SGD = Step(rate=0.1, schedule="linear")
BRIEF = Step(rate=0.2, schedule="linear")
"""Of sgd in 2 epochs; `SGD` is the best in 10."""


def plain(d: int, precision: str, rate: float) -> Point:
    """What directions miss is forgotten."""
    exchange = Exchange(residual="none", precision=precision)
    return Rbd(basis=Basis(dimensions=d), update=Step(rate=rate, schedule="linear"), exchange=exchange), 0


def residual(d: int, precision: str, step: Step, every: int = 1) -> Point:
    """The residual applied locally."""
    exchange = Exchange(residual="local", every=every, precision=precision)
    return Rbd(basis=Basis(dimensions=d), update=step, exchange=exchange), 0


def top(count: int, step: Step, every: int = 1) -> Point:
    """The residual likewise; the coordinates are +-2^x and 0 already, which float32 leaves as they are."""
    return residual(1, "float32", step, every)[0], count


def local(every: int, step: Step) -> Point:
    """Whole weights as int8."""
    return Local(update=step, exchange=Exchange(every=every, precision="int8")), 0


def sgd(step: Step) -> Point:
    """Whole gradients."""
    return Sgd(update=step), 0


def series() -> dict[str, list[Point]]:
    """The points, by what is joined by a line."""
    return {
        **{f"residual {p}": [residual(d, p, RESIDUAL) for d in DIMENSIONS] for p in PRECISIONS},
        "top-k residual": [top(k, TOP) for k in COUNTS],
        "local SGD int8": [local(every, LOCAL) for every in EVERY],
        "DiLoCo int8": [local(every, DILOCO) for every in EVERY],
        **{f"plain {p}": [plain(d, p, PLAIN[d]) for d in DIMENSIONS] for p in PRECISIONS},
        "rounds sign": [residual(d, "sign", RESIDUAL, 10) for d in DIMENSIONS],
        "top-k rounds": [top(k, TOP, 10) for k in COUNTS],
        "SGD float32": [sgd(BRIEF)],
    }


def candidates() -> dict[str, list[Point]]:
    """What `--tune` tries."""
    steps = [Step(rate=rate, schedule=schedule) for rate in (0.05, 0.1, 0.2) for schedule in ("constant", "linear")]
    outer = [
        Step(rate=rate, schedule="constant", weight=weight)
        for rate, weight in ((0.1, 1.0), (0.1, 1.5), (0.1, 2.5), (0.1, 4.0), (0.05, 2.5), (0.2, 2.5))
    ]
    nesterov = [
        Step(rate=rate, schedule="constant", weight=weight, momentum=momentum, nesterov=True)
        for rate in (0.05, 0.1)
        for weight, momentum in ((0.7, 0.9), (1.0, 0.8), (0.7, 0.8))
    ]
    return {
        **{f"plain, d = {d}": [plain(d, "int8", rate) for rate in (1.0, 2.0, 4.0, 6.0, 8.0)] for d in DIMENSIONS},
        **{f"residual, d = {d}": [residual(d, "sign", step) for step in outer] for d in DIMENSIONS},
        "rounds, d = 1000": [residual(1000, "sign", step, 10) for step in outer],
        "top-k, k = 14": [top(14, step) for step in outer],
        "top-k rounds, k = 55": [top(55, step, 10) for step in outer],
        "local, H = 50": [local(50, step) for step in steps],
        "diloco, H = 50": [local(50, step) for step in nesterov],
        "sgd": [sgd(Step(rate=rate, schedule="linear")) for rate in (0.05, 0.1, 0.2, 0.5)],
    }


# ---------------------------------------------------------------- figures


def measure(arguments: argparse.Namespace) -> _report.Measured:
    """Both tables, or the candidates of `--tune`."""
    if arguments.tune:
        return tune(arguments)
    long = [
        Setting(learner=learner, top=k, epochs=LONG * arguments.share, seed=seed, dataset=arguments.dataset)
        for learner, k in (residual(250, "sign", RESIDUAL), sgd(SGD))
        for seed in arguments.seeds
    ]
    grid = [
        (name, Setting(learner=learner, top=k, epochs=arguments.epochs, dataset=arguments.dataset))
        for name, points in series().items()
        for learner, k in points
        if name.split()[0] in arguments.points
    ]
    wanted = [*long, *(setting for _, setting in grid)]
    done = _alone.results(wanted, arguments.results, arguments.processes)
    signs, steepest = done[: len(arguments.seeds)], done[len(arguments.seeds) : len(long)]
    found: dict[str, list[Result]] = {}
    for (name, _), run in zip(grid, done[len(long) :], strict=True):
        found.setdefault(name, []).append(run)
    folder = _pictures.FOLDER if arguments.readme else arguments.results
    body = f"{_first(signs, steepest)}\n{_second(found, folder)}"
    return _report.Measured(_figures(signs, steepest), body)


def _figures(signs: Sequence[Result], steepest: Sequence[Result]) -> dict[str, float]:
    accuracies = [mean(run.accuracy for run in runs) for runs in (signs, steepest)]
    return {
        "sign_accuracy": accuracies[0],
        "sgd_accuracy": accuracies[1],
        "sign_below_sgd": accuracies[1] - accuracies[0],
        "sign_megabytes": max(run.payload for run in signs) / 1e6,
        "sgd_megabytes": max(run.payload for run in steepest) / 1e6,
    }


def _first(signs: Sequence[Result], steepest: Sequence[Result]) -> str:
    head = ("10 epochs", "test accuracy, %", "payload, MB", "bytes a step", "rate")
    names = {"signs, d = 250, residual": signs, "sgd": steepest}
    return _report.table(head, [(name, *_cells(runs)) for name, runs in names.items()])


def _cells(runs: Sequence[Result]) -> Iterator[str]:
    run = runs[0]
    yield _alone.spread([run.accuracy for run in runs])
    yield f"{run.payload / 1e6:.3g}"
    yield f"{run.payload / run.steps:,.1f}"
    yield _alone.described(run.setting.learner)


def _second(found: Mapping[str, Sequence[Result]], folder: Path) -> str:
    epochs = next(iter(found.values()))[0].setting.epochs
    title = f"dense, {epochs:g} epochs, one seed: accuracy against what is sent"
    curves = {name: [[(run.payload, run.accuracy) for run in runs]] for name, runs in found.items()}
    axes = ("payload bytes in all", "test accuracy, %")
    _pictures.lines(folder / "rbd-bytes.png", title, curves, axes, logarithmic=True)
    head = ("points", "", f"test accuracy after {epochs:g} epochs, %, by payload")
    rows = [
        (name, which(runs), "; ".join(f"{run.accuracy:.2f} ({run.payload / 1e6:.3g} MB)" for run in runs))
        for name, runs in found.items()
    ]
    return f"{_report.table(head, rows)}\n![{title}](pictures/rbd-bytes.png)\n"


def which(runs: Sequence[Result]) -> str:
    """What tells the points of a line apart."""
    learner = runs[0].setting.learner
    if isinstance(learner, Sgd):
        return ""
    if isinstance(learner, Local):
        return "H = " + ", ".join(str(run.setting.learner.exchange.every) for run in runs)
    if runs[0].setting.top:
        return "k = " + ", ".join(str(run.setting.top) for run in runs)
    return "d = " + ", ".join(str(run.setting.learner.basis.dimensions) for run in runs)


def tune(arguments: argparse.Namespace) -> _report.Measured:
    """Accuracy of every candidate on the rows set apart."""
    tried = [
        (name, _alone.candidate(learner, arguments.epochs, arguments.dataset, k))
        for name, points in candidates().items()
        for learner, k in points
    ]
    return _alone.compared(tried, arguments.results, arguments.processes, "rbd-bytes-rates")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench rbd-bytes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _alone.add_options(parser)
    parser.add_argument("--epochs", type=float, default=2.0, help="of a point, and of a candidate (2)")
    parser.add_argument("--share", type=float, default=1.0, help="of the 10 epochs that are run (1)")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the 10 epochs")
    kinds = list(dict.fromkeys(name.split()[0] for name in series()))
    parser.add_argument("--points", nargs="+", choices=kinds, default=kinds, help="which are run, of the 2 epochs")
    parser.add_argument("--tune", action="store_true", help="try rates on validation rows instead")
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
