"""Weights in plain float32, for options that contradict integers: momentum, patches, bases that are learned.

The same surface as `replica.Replica`, for one worker or a synchronous group: sums depend on their order, so those who
must agree apply the same updates together. They are taken in the order of their names.

    v <- momentum v + w u;  theta <- theta - v        u: the sum of what is applied together

Letters: D weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from learners.rbd.clocks import Clock, Name
from learners.rbd.coordinates import LOWEST
from learners.rbd.directions import Directions
from learners.rbd.replica import Diverged, Update

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of one worker. A value: applying updates makes another one."""

    directions: Directions
    theta: Floats  #: [D]
    weight: float = 1.0  #: w
    momentum: float = 0.0  #: heavy ball, or Nesterov's form of it: w u + momentum v beyond v
    nesterov: bool = False
    velocity: Optional[Floats] = None  #: v [D]; None is 0
    clock: Clock = field(default_factory=Clock)

    floor = LOWEST

    def apply(self, updates: Iterable[Update]) -> Weights:
        """With those of the updates that are new: their sum is one step, whatever the order in which they came.

        So all who apply the same round at once have the same bits, and momentum decays once a round.
        """
        fresh = {update.name: update for update in updates if update.name not in self.clock}
        if not fresh:
            return self
        total = np.zeros(len(self.theta), np.float32)
        for name in sorted(fresh):
            total += self.shared(fresh[name])
        return self._moved(total, fresh)

    def apply_own(self, update: Update, shared: NDArray[Any]) -> Weights:
        """As `apply([update])`, by one who has expanded the update already: `shared` is its u. It must be new."""
        return self._moved(shared, [update.name])

    def _moved(self, vector_D: Floats, names: Iterable[Name]) -> Weights:
        """By w v, with momentum."""
        step, velocity, beta = np.float32(self.weight) * vector_D, self.velocity, np.float32(self.momentum)
        if self.momentum:
            velocity = step if velocity is None else beta * velocity + step
            step = beta * velocity + step if self.nesterov else velocity
        return replace(self, theta=self.theta - step, velocity=velocity, clock=self.clock.add(names))

    def shared(self, update: Update) -> Floats:
        """u, float32 [D]: E c, with the update's patches in place."""
        found = np.zeros(len(self.theta), np.float32)
        for m, (part, quantised) in enumerate(zip(self.directions.parts, update.parts)):
            coordinates = quantised.coordinates
            if coordinates.any():
                part.scatter(self.directions.expand(m, [update.name], coordinates[None]), found)
        for patch in update.patches:
            found[patch.start : patch.stop] = 0.0 if patch.values is None else patch.values
        return found

    def units(self, way_D: Floats) -> Floats:
        """A vector of weights as residuals hold it: itself. Raises Diverged where it is not finite."""
        if not np.isfinite(way_D).all():
            raise Diverged("weights: a worker has moved them beyond all bounds in one round: lower the rate")
        return way_D

    def value(self, units_D: NDArray[Any]) -> Floats:
        """The inverse of `units`."""
        return units_D

    def at(self, residual: Optional[NDArray[Any]]) -> Floats:
        """T - e."""
        return self.theta if residual is None else self.theta - residual

    def save(self) -> dict[str, NDArray[Any]]:
        """By name: weights, velocity, clock."""
        velocity = np.zeros(0, np.float32) if self.velocity is None else self.velocity
        return {"theta": self.theta, "velocity": velocity, "clock": self.clock.save()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> Weights:
        """As it was saved."""
        velocity = arrays["velocity"] if len(arrays["velocity"]) else None
        clock = Clock.restored(arrays["clock"])
        return replace(self, theta=arrays["theta"], velocity=velocity, clock=clock)
