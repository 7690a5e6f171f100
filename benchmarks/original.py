"""Two learners as actors against the original's algorithm and threading (see `_original.py`): speed and time to 85 %.

Fashion-MNIST, batch 50, hidden 512 and 512, embedding 128, Adam 1e-3. Ours runs as a user would run it, with its
records and checkpoints. Speed turn and turn about, `--pairs` times, while both learners train (medians):
    ratio_to_original       steps a second of both learners, ours over the original's
    ratio_without_metrics   the same without the original's evaluations (ours stay)
    ratio_upper             the same, of the upper learner alone: its passes are alike on both sides, while our lower
                            one trains no synthetic input for a child that it has not
    ours_*, original_*, original_without_metrics_*      steps a second of each
Time to 85 % test accuracy of the upper learner, with its child; clocks run from the first step and stand still while
the test set is evaluated. Ours is evaluated at its end: runs of 150, 200, ... steps, the rate falling to 0 in each,
until one is there. The original goes on until 20 times as long, without its own evaluations:
    ours_seconds_to_85, ours_steps_to_85
    time_to_85_ratio        the original's seconds over ours; where it has not got there, how long it went on over ours
    original_reached        its test accuracy at the end
    tuned_ratio             the same with inputs scaled to 0..1 and the best of the rates 1e-4, 3e-4, 1e-3
    tuned_rate, tuned_reached
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks import _report, _runs
from benchmarks.chain import window

TARGET, LIMIT, RATES = 0.85, 20.0, (1e-4, 3e-4, 1e-3)
FEWEST_STEPS, STEPS_APART = 150, 50
"""How many steps a run of ours gets at first, and how many more if it has missed the target."""
YAML = """\
version: 1
name: two
seed: 7
data: {name: fashion_mnist, validation: 5000}
defaults: {batch_size: 50, steps: 1500, optimizer: {name: adam, learning_rate: 1e-3, schedule: linear}}
learners:
  bottom: {kind: mach, hidden: [512, 512], embedding: 128}
  top: {kind: mach, child: bottom}
record: {every: 100}
"""


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures above."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder, "two.yaml")
        chain.write_text(YAML)
        return {**_speeds(chain, arguments), **({} if arguments.speed_only else _times(chain))}


def _speeds(chain: Path, arguments: argparse.Namespace) -> dict[str, float]:
    settings = {"learners.top.steps": arguments.steps, "learners.bottom.steps": 2 * arguments.steps}
    rounds = []
    for _ in range(arguments.pairs):
        found = {"ours": window(_runs.run(chain, settings).records)["rates"]}
        for name, options in (("original", ()), ("original_without_metrics", ("--no-metrics",))):
            found[name] = _runs.said("benchmarks._original", f"--seconds={arguments.seconds}", *options)
        _report.say(str(found))
        rounds.append(found)
    return {
        "ratio_to_original": median(_both(r["ours"]) / _both(r["original"]) for r in rounds),
        "ratio_without_metrics": median(_both(r["ours"]) / _both(r["original_without_metrics"]) for r in rounds),
        "ratio_upper": median(r["ours"]["top"] / r["original_without_metrics"]["top"] for r in rounds),
        **{f"{who}_{name}": median(r[who][name] for r in rounds) for who in rounds[0] for name in ("bottom", "top")},
    }


def _both(rates: Mapping[str, float]) -> float:
    return rates["bottom"] + rates["top"]


def _times(chain: Path) -> dict[str, float]:
    steps, seconds = _ours(chain)
    _report.say(f"ours: {TARGET:.0%} after {steps} steps, {seconds:.2f} s")
    until = (f"--accuracy={TARGET}", f"--limit={LIMIT * seconds}", "--no-metrics")
    original = _runs.said("benchmarks._original", *until)
    _report.say(f"original: {original}")
    tuned = {rate: _runs.said("benchmarks._original", *until, "--scaled", f"--rate={rate}") for rate in RATES}
    _report.say(f"scaled, by rate: {tuned}")
    best = min(RATES, key=lambda rate: (tuned[rate]["seconds"] or LIMIT * seconds, -tuned[rate]["accuracy"]))
    return {
        "ours_seconds_to_85": seconds,
        "ours_steps_to_85": steps,
        "time_to_85_ratio": original["ran"] / seconds,
        "original_reached": original["accuracy"],
        "tuned_ratio": tuned[best]["ran"] / seconds,
        "tuned_rate": best,
        "tuned_reached": tuned[best]["accuracy"],
    }


def _ours(chain: Path) -> tuple[int, float]:
    """Steps of the upper learner that reach the target, and their seconds, in a run of just so many."""
    steps = FEWEST_STEPS
    while True:
        top = _runs.run(chain, {"learners.top.steps": steps}).learners["top"]
        _report.say(f"{steps} steps: {top['accuracies']['test/accuracy/child']:.4f} in {top['seconds']:.2f} s")
        if top["accuracies"]["test/accuracy/child"] >= TARGET:
            return steps, top["seconds"]
        steps += STEPS_APART


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench original", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=800, help="of the upper learner, for speed")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the original's window")
    parser.add_argument("--speed-only", action="store_true", help="leave out the time to 85 %%")
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
