"""What a worker of random bases descent is: its method, which does not change, and its state, which does.

Values only; `learners.rbd.descent` maps a state to the next. Letters: D weights, d directions, M compartments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from learners.bases import Basis
from learners.layout import Tensor
from learners.rbd.clocks import Name
from learners.rbd.defaults import layout, outer_weight, round_steps
from learners.rbd.directions import Directions, Drawn, Learned, Past, Whole, dimensions
from learners.rbd.floating import Weights
from learners.rbd.options import AnyLearner, Coordinates, Fpd, Local, Nes, Rbd, Sgd, has_rounds
from learners.rbd.refusals import arithmetic
from learners.rbd.replica import Grid, Replica, Update
from learners.schedules import rate as scheduled

Floats = NDArray[np.float32]
Shared = Union[Replica, Weights]


@dataclass(frozen=True)
class Method:
    """What does not change in a run."""

    learner: AnyLearner  #: filled options
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """D."""
        return self.tensors[-1].stop

    @property
    def rounds(self) -> bool:
        """Whether a worker takes steps at weights of its own."""
        return has_rounds(self.learner)

    @property
    def coordinates(self) -> Coordinates:
        """What is done to coordinates."""
        return self.learner.coordinates if isinstance(self.learner, Rbd) else Coordinates()

    @property
    def residual(self) -> str:
        """What becomes of what an update misses."""
        return "none" if isinstance(self.learner, Sgd) else self.learner.exchange.residual or "none"

    @property
    def precision(self) -> str:
        """Of coordinates on the wire."""
        return "float32" if isinstance(self.learner, Sgd) else self.learner.exchange.precision or "float32"

    def steps(self) -> int:
        """Training steps of one round."""
        return round_steps(self.learner)

    def batches(self, directions: Directions) -> int:
        """Batches that one round takes."""
        if isinstance(self.learner, Nes):
            own = self.learner.offspring.batches == "own"
            return sum(dimensions(directions)) if own else 1
        return self.steps()

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        given = self.learner.update
        assert given.rate is not None and given.schedule is not None, "options are filled before they are used"
        return scheduled(
            given.rate, given.schedule, given.warmup, step, self.learner.steps, at=given.at, factor=given.factor
        )

    def plain(self, step: int) -> bool:
        """Whether this step is a gradient step whatever the directions are."""
        given = self.learner.update.plain
        return step < given.first or 0 < given.last >= self.learner.steps - step

    def takes_gradient(self, tensor: Tensor) -> bool:
        """Whether this tensor is in a layer that takes gradient steps."""
        given = self.learner.update.plain
        return given.layer is not None and (tensor.layer == given.layer) != given.others


@dataclass(frozen=True, eq=False)
class Worker:
    """The whole state of one worker."""

    number: int
    shared: Shared  #: T; all that other workers know too
    incarnation: int = 0
    sequence: int = 0  #: of its next update
    step: int = 0  #: training steps done
    residual: Optional[NDArray[Any]] = None  #: e [D]; None is 0. Leaky: in units of gradient, else in those of T
    carried: tuple[Floats, ...] = ()  #: coordinates that were not reset, per compartment; () is 0
    travelled: Optional[Floats] = None  #: [d] the way along each direction since some were last redrawn

    @property
    def name(self) -> Name:
        """Of its next update."""
        return Name(self.number, self.incarnation, self.sequence)

    def apply(self, updates: Sequence[Update]) -> Worker:
        """With what others sent taken in; its own residual stays, so it goes along with T."""
        return replace(self, shared=self.shared.apply(updates))

    def save(self) -> dict[str, NDArray[Any]]:
        """The whole state, by name."""
        state = {f"shared/{key}": array for key, array in self.shared.save().items()}
        state["counts"] = np.array([self.number, self.incarnation, self.sequence, self.step], np.int64)
        kept = {"residual": self.residual, "travelled": self.travelled}
        state.update({key: array for key, array in kept.items() if array is not None})
        state.update({f"carried/{m}": array for m, array in enumerate(self.carried)})
        directions = self.shared.directions
        if isinstance(directions, Learned):
            state["births"] = np.array(directions.births, np.int64)
        if isinstance(directions, Past):
            state.update({"past/rows": directions.rows, "past/oldest": np.array(directions.oldest)})
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> Worker:
        """As it was saved; `self` is a worker of the same method and start."""
        directions = self.shared.directions
        if isinstance(directions, Learned):
            directions = replace(directions, births=tuple(state["births"].tolist()))
        if isinstance(directions, Past):
            directions = Past(state["past/rows"], int(state["past/oldest"]))
        shared = {key[len("shared/") :]: array for key, array in state.items() if key.startswith("shared/")}
        number, incarnation, sequence, step = state["counts"].tolist()
        carried = tuple(state[f"carried/{m}"] for m in range(sum(key.startswith("carried/") for key in state)))
        return Worker(
            number,
            replace(self.shared, directions=directions).restore(shared),
            incarnation,
            sequence,
            step,
            state.get("residual"),
            carried,
            state.get("travelled"),
        )


def start(method: Method, theta_0: Floats, seed: int, number: int = 0) -> Worker:
    """A worker that has done nothing yet, with exact weights or, where an option contradicts these, float ones."""
    learner = method.learner
    directions = _directions(method, seed, number)
    weight = outer_weight(learner)
    if arithmetic(learner)[0] == "exact" and not isinstance(learner, Sgd):
        return Worker(number, Replica.at_start(directions, Grid(learner.exchange.bits, weight), theta_0))
    return Worker(number, Weights(directions, theta_0, weight, learner.update.momentum, learner.update.nesterov))


def _directions(method: Method, seed: int, number: int) -> Directions:
    learner = method.learner
    if isinstance(learner, Local):
        return Whole(method.size)
    if isinstance(learner, Sgd):
        return Drawn(seed, (), Basis(1))
    basis = learner.basis
    d = basis.dimensions or 1
    if basis.distribution == "gradients":
        return Past(np.zeros((d, method.size), np.float32))
    drawn = Basis(d, basis.distribution, basis.normalize, basis.antithetic)
    if basis.learn:
        return Learned(seed, method.size, drawn, (0,) * d)
    parts = tuple(layout(learner, method.tensors, number))
    redraw = 0 if isinstance(learner, Fpd) else basis.redraw or 1
    return Drawn(seed, parts, drawn, redraw, basis.per == "group", basis.keep)


def stream(learner: AnyLearner, name: str, number: int) -> str:
    """Whose stream of batches (`batches.rows`) a worker trains on: one for all, or its own."""
    return name if learner.exchange.same_data else f"{name}/{number}"
