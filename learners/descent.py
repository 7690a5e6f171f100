"""The methods: what a worker does between two updates. A round maps a worker to a worker, an update and metrics.

    kind     residual  a round
    rbd fpd  none      c = rate scale E^T g;  u = E c                                   (fpd: E is never redrawn)
    rbd      leaky     h = e + g;  c = rate scale E^T h;  u = E c;  e <- rho (h - u / rate)
    rbd      local     H steps theta_k <- theta_k - rate g from theta_k = T - e;  h = T - theta_k;  c = scale E^T h;
                       u = E c;  e <- h - u
    local    none      the same H steps, with all weights as coordinates, and what rounding missed forgotten (or kept)
    nes      none      c_j = rate / (d sigma) x the centred rank of the loss at T + sigma E_j
    sgd                u = rate g
All then go T <- T - w u, when the update reaches them. c is rounded to the precision of the wire before it is expanded,
so u is what the others see too. E is generated twice in a round: to project and to expand.

Coordinates are in units of weight: rate and scale (1/D) are inside, and the shared power of two is found after them.
Where the study found 2^round(log2 mean|c|) before the factor 1/D, the power here differs by at most sqrt(2).

The residual that is applied locally is exact bookkeeping. In exact mode it is counted in units of 2^-s: theta_k is
T - e by definition, and the sum of all local steps (each rounded to a unit) is the sum of all u and e, to the bit.

Letters: D weights, d directions, M compartments, H local steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from learners.bases import Basis
from learners.clocks import Name
from learners.compartments import Compartment
from learners.coordinates import payload_bytes, quantise
from learners.directions import Directions, Drawn, Learned, Past, Whole
from learners.floating import Weights
from learners.layout import Tensor
from learners.rbd_defaults import layout, outer_weight
from learners.rbd_options import AnyLearner, Coordinates, Correlation, Fpd, Local, Nes, Rbd, Sgd, has_rounds
from learners.rbd_refusals import arithmetic
from learners.replica import Diverged, Grid, Patch, Replica, Update
from learners.schedules import rate as scheduled
from learners.shaping import centred_ranks, correlation, kept, transformed

Floats = NDArray[np.float32]
Shared = Union[Replica, Weights]


class Problem(NamedTuple):
    """What is minimised. A batch is whatever these two take."""

    gradient: Callable[[Floats, Any], tuple[float, Floats]]  #: (theta [D], batch) -> mean loss, its gradient [D]
    loss: Callable[[Floats, Any], float]  #: the mean loss alone, for nes


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
        if self.rounds:
            assert not isinstance(self.learner, Sgd)
            return self.learner.exchange.every or 1
        return self.coordinates.continuous

    def batches(self, directions: Directions) -> int:
        """Batches that one round takes."""
        if isinstance(self.learner, Nes):
            own = self.learner.offspring.batches == "own"
            return sum(part.dimensions for part in directions.parts) if own else 1
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
        return step < given.first or step >= self.learner.steps - given.last

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


@dataclass(frozen=True, eq=False)
class Round:
    """What came of a round."""

    worker: Worker
    update: Optional[Update]  #: to be sent to all; None where the round was passed over
    metrics: dict[str, float] = field(default_factory=dict)


# ---------------------------------------------------------------- a start


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


def must_apply(learner: AnyLearner, waiting: int) -> bool:
    """Whether a worker must apply the updates that are waiting before it goes on."""
    return waiting > (learner.exchange.max_staleness if learner.exchange.mode == "async" else 0)


# ---------------------------------------------------------------- a round


class _Way(NamedTuple):
    """Where a worker wants to go, before directions and rounding."""

    coordinates: tuple[Floats, ...]  #: c of each compartment, as they would be sent
    wanted: Optional[Floats]  #: [D] the vector that c is of: rate h, or h of a round of local steps; nes has none
    whole: Optional[NDArray[Any]]  #: h [D] in the residual's units, where there is a residual
    gradient: Optional[Floats]  #: the mean gradient [D]
    loss: float


def descend(method: Method, worker: Worker, problem: Problem, batches: Sequence[Any]) -> Round:
    """One round.

    Args:
        batches: `method.batches(worker.shared.directions)` of them.

    Raises:
        Diverged: a loss or gradient is not finite and `on_nan` is stop, or weights go beyond all bounds.
    """
    try:
        way = _way(method, worker, problem, batches)
    except _NotFinite as bad:
        if method.learner.update.on_nan == "stop":
            raise Diverged(f"worker {worker.number}, step {worker.step}: {bad}; lower the rate") from None
        return Round(replace(worker, step=worker.step + method.steps()), None, {"skipped": 1.0})
    update, shared = _sent(method, worker, way)
    moved = worker.shared.value(shared)
    metrics = {"loss": way.loss, "update_norm": float(np.linalg.norm(moved)), "bytes": float(nbytes(method, update))}
    if way.wanted is not None:
        metrics["correlation"] = correlation(moved, way.wanted)
    if way.gradient is not None:
        metrics["gradient_norm"] = float(np.linalg.norm(way.gradient))
    after = replace(
        worker,
        shared=worker.shared.apply_own(update, shared),
        sequence=worker.sequence + 1,
        step=worker.step + method.steps(),
        residual=_missed(method, worker, way, shared, moved),
    )
    return Round(_redirected(method, way, _carried(method, way, after)), update, metrics)


def nbytes(method: Method, update: Update) -> int:
    """Payload bytes of an update: coordinates, exponents and patches, without header."""
    dimensions = [len(part.values) for part in update.parts]
    return payload_bytes(dimensions, method.precision) + sum(patch.nbytes for patch in update.patches)


def _way(method: Method, worker: Worker, problem: Problem, batches: Sequence[Any]) -> _Way:
    if isinstance(method.learner, Nes):
        return _looked_around(method, method.learner, worker, problem, batches)
    if method.rounds:
        return _local_steps(method, worker, problem, batches)
    return _along_directions(method, worker, problem, batches)


def _local_steps(method: Method, worker: Worker, problem: Problem, batches: Sequence[Any]) -> _Way:
    """H steps at weights of its own; what has come together since it last shared all, h = T - theta_k."""
    begun = worker.shared.at(worker.residual)
    theta, losses, total = begun, [], np.zeros_like(begun)
    for h, batch in enumerate(batches):
        loss, gradient = _finite(*problem.gradient(theta, batch))
        theta = theta - np.float32(method.rate(worker.step + h)) * gradient
        losses.append(loss)
        total += gradient
    whole = worker.shared.units(begun - theta)
    whole = whole if worker.residual is None else worker.residual + whole
    wanted = worker.shared.value(whole)
    return _Way(
        _projected(method, worker, wanted), wanted, whole, total / np.float32(len(batches)), float(np.mean(losses))
    )


def _along_directions(method: Method, worker: Worker, problem: Problem, batches: Sequence[Any]) -> _Way:
    """One step, or several within one basis: c <- c + rate scale E^T g, g taken at T - E c."""
    directions, carried, losses = worker.shared.directions, worker.carried, []
    wanted, total = np.zeros(method.size, np.float32), np.zeros(method.size, np.float32)
    leaky = worker.residual if method.residual == "leaky" else None
    for h, batch in enumerate(batches):
        theta = worker.shared.theta - _expanded(directions, worker.name, carried, method.size)
        loss, gradient = _finite(*problem.gradient(theta, batch))
        rate = np.float32(method.rate(worker.step + h))
        step = rate * (gradient if leaky is None else leaky + gradient)
        new = _projected(method, worker, step)
        carried = tuple(old + more for old, more in zip(carried, new)) if carried else new
        losses.append(loss)
        wanted, total = wanted + step, total + gradient
    whole = None if method.residual != "leaky" else wanted
    return _Way(carried, wanted, whole, total / np.float32(len(batches)), float(np.mean(losses)))


def _projected(method: Method, worker: Worker, vector_D: Floats) -> tuple[Floats, ...]:
    """Coordinates of each compartment; none where a gradient step is taken anyway."""
    if isinstance(method.learner, Sgd) or method.plain(worker.step):
        return ()
    return tuple(worker.shared.directions.project(worker.name, _without_plain(method, vector_D)))


def _looked_around(method: Method, learner: Nes, worker: Worker, problem: Problem, batches: Sequence[Any]) -> _Way:
    """Losses of one offspring per direction, as ranks."""
    directions, sigma = worker.shared.directions, np.float32(learner.offspring.sigma)
    losses: list[float] = []
    for m, part in enumerate(directions.parts):
        for one in np.eye(part.dimensions, dtype=np.float32):
            theta = worker.shared.theta.copy()
            aside = directions.expand(m, [worker.name], one[None])
            part.scatter(part.gather(theta) + sigma * aside, theta)
            losses.append(problem.loss(theta, batches[len(losses) % len(batches)]))
    if not np.isfinite(losses).all():
        raise _NotFinite("the loss of an offspring is not finite")
    factor = method.rate(worker.step) / (len(losses) * learner.offspring.sigma)
    ranks = np.float32(factor) * centred_ranks(np.array(losses))
    ends = np.cumsum([part.dimensions for part in directions.parts])[:-1]
    return _Way(tuple(np.split(ranks, ends)), None, None, None, float(np.mean(losses)))


# ---------------------------------------------------------------- what is sent


def _sent(method: Method, worker: Worker, way: _Way) -> tuple[Update, NDArray[Any]]:
    """The update, and its u in the units of T."""
    learner, name = method.learner, worker.name
    if isinstance(learner, Sgd) or method.plain(worker.step):
        return _gradient_step(method, worker, way)
    update = _update(method, worker, way.coordinates, _plain_patches(method, worker, way))
    shared: NDArray[Any] = worker.shared.shared(update)
    given = learner.update.correlation
    if way.wanted is None or given == Correlation():
        return update, shared
    moved = worker.shared.value(shared)
    cosine = correlation(moved, way.wanted)
    if given.plain_below is not None and cosine < given.plain_below:
        return _gradient_step(method, worker, way)
    scaled = tuple(c * np.float32(cosine) for c in way.coordinates) if given.scale else way.coordinates
    patches = update.patches
    if given.surgeon is not None:
        patches += tuple(
            Patch(t.start, t.stop, None)
            for t in method.tensors
            if not method.takes_gradient(t) and correlation(moved[t.place], way.wanted[t.place]) <= given.surgeon
        )
    update = _update(method, worker, scaled, patches)
    assert update.name == name
    return update, worker.shared.shared(update)


def _update(method: Method, worker: Worker, coordinates: Sequence[Floats], patches: tuple[Patch, ...]) -> Update:
    """Shaped and rounded coordinates under the worker's next name."""
    given = method.coordinates
    shaped = [kept(transformed(c, given.transform), given.keep, given.count, given.fraction) for c in coordinates]
    summed = not isinstance(method.learner, Local)  # each whole weight is a coordinate of its own
    parts = [quantise(c, method.precision, worker.shared.floor, summed=summed) for c in shaped]
    return Update(worker.name, tuple(parts), patches)


def _gradient_step(method: Method, worker: Worker, way: _Way) -> tuple[Update, NDArray[Any]]:
    update = Update(worker.name, (), (Patch(0, method.size, _plain_step(method, worker, way)),))
    return update, worker.shared.shared(update)


def _plain_patches(method: Method, worker: Worker, way: _Way) -> tuple[Patch, ...]:
    layers = [tensor for tensor in method.tensors if method.takes_gradient(tensor)]
    if not layers:
        return ()
    step = _plain_step(method, worker, way)
    return tuple(Patch(tensor.start, tensor.stop, step[tensor.place]) for tensor in layers)


def _plain_step(method: Method, worker: Worker, way: _Way) -> Floats:
    """What a gradient step moves: in rounds the whole way, else the rate times the gradient."""
    assert way.gradient is not None and way.wanted is not None
    if method.rounds:
        return way.wanted
    own = method.learner.update.plain.rate
    given = method.learner.update.rate or own
    rate = method.rate(worker.step) * (1.0 if isinstance(method.learner, Sgd) else own / given)
    step: Floats = np.float32(rate) * way.gradient
    return step


def _without_plain(method: Method, vector_D: Floats) -> Floats:
    """Zeros where layers take gradient steps: directions have nothing to say about them."""
    layers = [tensor for tensor in method.tensors if method.takes_gradient(tensor)]
    if not layers:
        return vector_D
    found: Floats = vector_D.copy()
    for tensor in layers:
        found[tensor.place] = 0.0
    return found


# ---------------------------------------------------------------- what stays


def _missed(method: Method, worker: Worker, way: _Way, shared: NDArray[Any], moved: Floats) -> Optional[NDArray[Any]]:
    """The residual after the round."""
    if method.residual == "none" or way.whole is None:
        return None
    if method.residual == "local":
        left: NDArray[Any] = way.whole - shared
        return left
    assert isinstance(method.learner, Rbd)
    rate = method.rate(worker.step)
    # rate 0 at the end of a schedule: nothing was sent, and nothing will be
    missed = (way.whole - moved) / np.float32(rate) if rate else np.zeros_like(moved)
    kept_back: NDArray[Any] = np.float32(method.learner.exchange.leak) * missed
    return kept_back


def _carried(method: Method, way: _Way, after: Worker) -> Worker:
    """Coordinates go on where they are not reset."""
    reset = method.coordinates.reset
    goes_on = reset == 0 or (reset > 1 and after.step % reset != 0)
    return replace(after, carried=way.coordinates if goes_on and not isinstance(method.learner, Nes) else ())


def _redirected(method: Method, way: _Way, after: Worker) -> Worker:
    """Directions that depend on what has been: learned bases, past gradients."""
    directions, travelled = after.shared.directions, after.travelled
    if isinstance(directions, Past) and way.gradient is not None:
        directions = directions.with_gradient(way.gradient)
    elif isinstance(directions, Learned) and way.coordinates:
        assert isinstance(method.learner, Rbd) and method.learner.basis.learn is not None
        learn, c = method.learner.basis.learn, way.coordinates[0]
        travelled = c if travelled is None else travelled + c
        if after.sequence % learn.every == 0:
            directions = directions.redrawn(travelled, learn.redraw, learn.fraction, after.sequence)
            travelled = None
    return replace(after, shared=replace(after.shared, directions=directions), travelled=travelled)


def _expanded(directions: Directions, name: Name, coordinates: Sequence[Floats], size: int) -> Floats:
    """E c over all compartments; zeros where there is nothing to expand."""
    found = np.zeros(size, np.float32)
    for m, c in enumerate(coordinates):
        part: Compartment = directions.parts[m]
        part.scatter(directions.expand(m, [name], c[None]), found)
    return found


class _NotFinite(Exception):
    pass


def _finite(loss: float, gradient: Floats) -> tuple[float, Floats]:
    if not np.isfinite(loss):
        raise _NotFinite(f"the loss is {loss}")
    if not np.isfinite(gradient).all():
        raise _NotFinite("the gradient has entries that are not finite")
    return loss, gradient
