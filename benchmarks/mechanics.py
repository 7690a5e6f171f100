"""What watching the laws costs a Mach learner's step: `mechanics: {every: 10}` against none.

The middle learner of `topology/chains/fashion.yaml` (batch 128, a child, a parent's gradients in every step) in one
process and on one thread, twice: watched and not. Both take the same batches, turn and turn about in blocks; a block's
cost is its CPU seconds, all that the watch does in Python included. Figures:
    overhead_exact      share that momentum's steps become longer by: sums in every step, a comparison every 10th
    overhead_nesterov   the same
    overhead_adam       the same of Adam, a budget every 10th step
    step_ms_<rule>      of one step that is not watched
Medians over the blocks' ratios.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import _report

CHAIN = Path("topology/chains/fashion.yaml")
LEARNER = "middle"
RULES = {"exact": "momentum", "nesterov": "nesterov", "adam": "adam"}


class Side:
    """The learner, watched or not, and its batches."""

    def __init__(self, rule: str, every: int) -> None:
        from msgspec.structs import replace

        from actors.laws import Laws
        from actors.mach import network
        from learners.options import Mechanics
        from topology import parse

        topology = parse.load(CHAIN)
        chosen = topology.learners[LEARNER]
        self.options = replace(chosen, optimizer=replace(chosen.optimizer, name=rule))
        children = {child: topology.learners[child].embedding for child in topology.children_of(LEARNER)}
        parents = {parent: topology.learners[parent].batch_size for parent in topology.parents_of(LEARNER)}
        rows = topology.gradient_rows_of(LEARNER)
        self.network = network(LEARNER, 7, self.options, children, parents, rows, 784, 10, watched=bool(every))
        self.network.warm_up()
        notes: Any = SimpleNamespace(note=lambda *a, **k: None, log=SimpleNamespace(info=lambda *a: None))
        self.laws = Laws(LEARNER, self.network, self.options, Mechanics(every), topology.record, notes)
        self.step, draws = 0, np.random.default_rng(1)
        size = self.options.batch_size
        self.x = draws.random((16, size, 784), np.float32)
        self.labels = draws.integers(10, size=(16, size)).astype(np.int32)
        self.child = np.maximum(draws.normal(size=(size, 128)), 0).astype(np.float32)
        self.gradient = (1e-4 * draws.normal(size=(size, 128))).astype(np.float32)

    def block(self, steps: int) -> float:
        """CPU seconds of so many steps."""
        rate, began = 1e-3, time.process_time()
        for _ in range(steps):
            x, labels = self.x[self.step % 16], self.labels[self.step % 16]
            gradients = [(x, self.gradient)]
            done = self.network.train(x, labels, [self.child], gradients, rate, self.laws.due(self.step))
            self.laws.took(self.step, rate, True, done)
            self.step += 1
        return time.process_time() - began


def measure(arguments: argparse.Namespace) -> Mapping[str, float]:
    """The figures above."""
    from actors import device

    device.configure(1)
    figures = {}
    for figure, rule in RULES.items():
        plain, watched = Side(rule, 0), Side(rule, arguments.every)
        plain.block(10), watched.block(10)
        pairs = []
        for turn in range(arguments.blocks):
            sides = (plain, watched) if turn % 2 else (watched, plain)  # nobody always goes first
            seconds = {side: side.block(arguments.steps) for side in sides}
            pairs.append((seconds[plain], seconds[watched]))
        figures[f"overhead_{figure}"] = median(with_it / without - 1.0 for without, with_it in pairs)
        figures[f"step_ms_{rule}"] = 1e3 * median(without for without, _ in pairs) / arguments.steps
        _report.say(f"{rule}: {figures[f'overhead_{figure}']:.3f} of {figures[f'step_ms_{rule}']:.2f} ms")
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="machworks bench mechanics", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--every", type=int, default=10, help="steps between two comparisons")
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--blocks", type=int, default=40)
    return parser


if __name__ == "__main__":
    _report.main(measure, _parser())
