"""The laws of one learner while it trains: the sums of its steps in, figures and alarms out. Values; no TensorFlow.

With sgd, momentum and nesterov every step is followed (`follow`), and every so often charges are compared with what was
predicted (`compare`); the paper's curve runs beside. With other rules there is the budget of the step that is looked at
(`balance`). Errors are relative to the sizes of `charges.sizes`; letters: N units of all laws.
"""

from collections import deque
from typing import Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from learners.mechanics import alarm, charges, curves, exact
from learners.mechanics.alarm import Alarm, Look, Taken
from learners.mechanics.symmetries import Law

Doubles = NDArray[np.float64]
MOST = 64
"""Steps between two comparisons that are kept, so that an alarm can name one."""


class Update(NamedTuple):
    """The update rule of a learner."""

    name: str  #: sgd, momentum, nesterov, adam
    beta: float
    weight_decay: float
    decay: str  #: coupled, decoupled


class Seen(NamedTuple):
    """What a look came to."""

    figures: Dict[str, float]
    alarm: Optional[Alarm]


class Watch:
    """Predictions of one learner's charges."""

    def __init__(self, learner: str, laws: Sequence[Law], update: Update) -> None:
        self._learner, self._laws, self._update = learner, tuple(laws), update
        self._motion = exact.Motion(update.name, 0.0 if update.name == "sgd" else update.beta)
        self._degrees = charges.degrees(laws)
        self._zeros = np.zeros_like(self._degrees)
        self._state = exact.start(self._zeros, 2)
        #: the curve ends where the rule is not the paper's
        self._curve: Optional[curves.Curve] = None
        self._taken: Deque[Taken] = deque(maxlen=MOST)
        self._offset = self._zeros  # of what was measured over the prediction at the last comparison
        self.alarms = 0

    @property
    def exact(self) -> bool:
        """Whether the rule has exact recursions."""
        return self._update.name in exact.RULES

    def begin(self, charges_N: Doubles, buffers: Sequence[Doubles]) -> None:
        """Take what is measured for the truth: at the start, and after an alarm."""
        self._state = exact.start(charges_N, 2, buffers if self.exact else None)
        begun = curves.start(charges_N)
        self._curve = begun if self._has_curve and not any(np.any(c) for c in buffers) else None
        self._taken.clear()
        self._offset = np.zeros_like(charges_N)

    @property
    def _has_curve(self) -> bool:
        """The paper has sgd, and momentum with coupled decay."""
        update = self._update
        return update.name == "sgd" or (
            update.name == "momentum" and (update.decay == "coupled" or not update.weight_decay)
        )

    def follow(self, step: int, rate: float, parents_rate: Optional[float], sums_5N: NDArray[np.float32]) -> None:
        """Predict the charges after a step.

        Args:
            step: steps done before it.
            rate: of the learner's own objectives.
            parents_rate: of the parents' gradients; None where there were none.
            sums_5N: rows of `inside.SUMS`.
        """
        square, moved, own, parents, drive = sums_5N.astype(np.float64)
        update = self._update
        lam = {"coupled": 0.0, "decoupled": 0.0, update.decay: update.weight_decay}
        buffers = (
            exact.Buffer(rate, lam["coupled"], lam["decoupled"]),
            exact.Buffer(parents_rate or 0.0, steps=parents_rate is not None),
        )
        measured = exact.Sums(square, (own, parents), (None, drive))
        before = self._state
        self._state = exact.advance(self._motion, before, self._degrees, buffers, measured)
        self._taken.append(Taken(step, before, self._state, buffers, measured, moved))
        if self._curve is not None:
            self._curve = self._curved(self._curve, rate, square)

    def _curved(self, curve: curves.Curve, rate: float, square_N: Doubles) -> curves.Curve:
        update = self._update
        if update.name == "sgd":
            return curves.sgd(curve, self._degrees, rate, update.weight_decay, square_N)
        return curves.momentum(curve, self._degrees, rate, update.beta, update.weight_decay, square_N)

    def compare(self, step: int, looked_8N: Doubles) -> Seen:
        """Prediction and measurement before step number `step`, which is not followed yet.

        Args:
            looked_8N: rows of `inside.LOOKED`.
        """
        measured, size, along, gradient, signed = looked_8N[:5]
        off = measured - self._state.q_N
        found = alarm.judge(self._look(step, off - self._offset, size, along, gradient, signed))
        self._offset = off
        self._taken.clear()
        figures = self._common(measured, size, along, gradient)
        for law, part in self._by_law(off / _floored(size)):
            figures[f"{law}/residual"] = float(np.max(np.abs(part)))
        theories = {"theory": self._state.q_N} | ({"paper": self._curve.q_N} if self._curve is not None else {})
        for name, values in theories.items():
            figures |= {f"{law}/{name}": float(np.mean(part)) for law, part in self._by_law(values)}
        return self._seen(figures, found)

    def balance(self, step: int, looked_8N: Doubles, after_N: Doubles) -> Seen:
        """The budget of step number `step`, whatever the rule.

        Args:
            after_N: charges measured after it.
        """
        measured, size, along, gradient, signed, linear, square, moved = looked_8N
        budget = exact.Budget(self._degrees * linear, square)
        jump = after_N - measured - budget.change_N
        before = exact.State(measured, ())
        taken = Taken(step, before, exact.State(measured + budget.change_N, ()), (), exact.Sums(square, ()), moved)
        self._taken.append(taken)
        found = alarm.judge(self._look(step, jump, size, along, gradient, signed))
        self._taken.clear()
        figures = self._common(measured, size, along, gradient)
        parts = {"linear": budget.linear_N, "square": budget.square_N}
        for name, values in parts.items():
            figures |= {f"{law}/budget_{name}": float(np.mean(part)) for law, part in self._by_law(values)}
        for law, part in self._by_law(jump / _floored(size)):
            figures[f"{law}/residual"] = float(np.max(np.abs(part)))
        return self._seen(figures, found)

    def _look(
        self, step: int, jump: Doubles, size: Doubles, along: Doubles, gradient: Doubles, signed: Doubles
    ) -> Look:
        return Look(
            self._learner,
            self._laws,
            self._motion,
            step,
            tuple(self._taken),
            jump,
            size,
            along,
            gradient,
            signed,
        )

    def _common(self, measured: Doubles, size: Doubles, along: Doubles, gradient: Doubles) -> Dict[str, float]:
        """Means over the units of a law of charge and gradient norm; the identity's residual, pooled."""
        figures = {}
        lengths = np.sqrt(size * gradient)
        for (law, charge), (_, one), (_, length), (_, square) in zip(
            self._by_law(measured), self._by_law(along), self._by_law(lengths), self._by_law(gradient)
        ):
            figures[f"{law}/charge"] = float(np.mean(charge))
            figures[f"{law}/gradient_norm"] = float(np.mean(np.sqrt(square)))
            whole = float(np.linalg.norm(length))
            figures[f"{law}/identity"] = float(np.linalg.norm(one)) / whole if whole else 0.0
        return figures

    def _by_law(self, values_N: Doubles) -> List[Tuple[str, Doubles]]:
        names = [f"{law.kind}/{law.name}" for law in self._laws]
        return list(zip(names, charges.by_law(self._laws, values_N)))

    def _seen(self, figures: Mapping[str, float], found: Optional[Alarm]) -> Seen:
        self.alarms += found is not None
        named = {f"mechanics/{name}": value for name, value in figures.items()}
        return Seen({**named, "mechanics/alarms": float(self.alarms)}, found)


def _floored(size: Doubles) -> Doubles:
    floored: Doubles = np.maximum(size, np.finfo(np.float64).tiny)
    return floored
