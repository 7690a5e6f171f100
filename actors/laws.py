"""The laws of a Mach learner beside its training: asks for what they need, writes figures down, raises alarms.

Consumes: what each step has measured. Produces: records of kind mechanics, and a line in the log for each alarm.
Waits for: nothing.
"""

from typing import Any, Optional

import numpy as np

from actors.common import CURVE_POINTS
from actors.outgoing import Outgoing
from learners.mechanics.inside import LOOKED
from learners.mechanics.watch import Seen, Update, Watch
from learners.options import Mach as Options
from learners.options import Mechanics, Record


class Laws:
    """Of one incarnation; nothing at all if `mechanics.every` is 0.

    Args:
        network: the learner, watched if they are wanted, with the weights that it goes on from.
    """

    def __init__(
        self, name: str, network: Any, options: Options, mechanics: Mechanics, record: Record, outgoing: Outgoing
    ) -> None:
        self._network, self._options, self._outgoing = network, options, outgoing
        self._every, self._curve = mechanics.every, max(1, record.every // CURVE_POINTS)
        if not self._every:
            return
        rule = options.optimizer
        update = Update(rule.name, rule.momentum, rule.weight_decay, rule.decay)
        self._watch = Watch(name, network.symmetries.laws, update)
        self._begin()
        for layer, reason in network.symmetries.without:
            outgoing.log.info("mechanics: {} has no symmetry: {}", layer, reason)

    def due(self, step: int) -> bool:
        """Whether the step behind so many is looked at."""
        return bool(self._every) and step % self._every == 0

    def took(self, step: int, rate: float, graded: bool, trained: Any) -> None:
        """A step was taken behind so many; whether gradients of parents were in it."""
        if not self._every:
            return
        seen: Optional[Seen] = None
        if trained.looked is not None and self._watch.exact:
            seen = self._watch.compare(step, trained.looked)
        elif trained.looked is not None:
            seen = self._watch.balance(step, trained.looked, self._network.charges()[0])
        if self._watch.exact:
            parents = self._options.exchange.gradient_rate * rate if graded else None
            self._watch.follow(step, rate, parents, trained.sums)
        if seen is not None:
            self._note(step, seen)

    def end(self, step: int) -> None:
        """Compare once more behind the last step, of which no other follows that could be looked at."""
        if not (self._every and self._watch.exact):
            return
        found = self._network.measured()
        looked = np.zeros((len(LOOKED), len(found.charges)))
        looked[0], looked[1] = found.charges, found.sizes
        seen = self._watch.compare(step, looked)
        known = {key: v for key, v in seen.figures.items() if not key.endswith(("/identity", "/gradient_norm"))}
        self._note(step, Seen(known, seen.alarm))

    def _begin(self) -> None:
        found = self._network.measured()
        self._watch.begin(found.charges, found.buffers)

    def _note(self, step: int, seen: Seen) -> None:
        figures = dict(seen.figures)
        if seen.alarm is not None:
            self._outgoing.log.error("{}", seen.alarm)
            cause = seen.alarm.cause.replace(" ", "_")
            figures |= {f"mechanics/alarm/{cause}/{law}": float(seen.alarm.step) for law in seen.alarm.layers}
            self._begin()
        plotted = step // self._curve > (step - self._every) // self._curve or seen.alarm is not None
        self._outgoing.note(step, "mechanics", figures, plotted=plotted)
