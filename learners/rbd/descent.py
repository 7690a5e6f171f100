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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from learners import watching
from learners.rbd.clocks import Name
from learners.rbd.coordinates import payload_bytes, quantise
from learners.rbd.directions import Directions, Learned, Past
from learners.rbd.options import Correlation, Local, Nes, Rbd, Sgd
from learners.rbd.replica import Diverged, Patch, Update
from learners.rbd.shaping import centred_ranks, correlation, kept, transformed
from learners.rbd.workers import Method, Worker

Floats = NDArray[np.float32]


class Problem(NamedTuple):
    """What is minimised. A batch is whatever these two take."""

    gradient: Callable[[Floats, Any], tuple[float, Floats]]  #: (theta [D], batch) -> mean loss, its gradient [D]
    loss: Callable[[Floats, Any], float]  #: the mean loss alone, for nes


@dataclass(frozen=True, eq=False)
class Round:
    """What came of a round."""

    worker: Worker
    update: Optional[Update]  #: to be sent to all; None where the round was passed over
    metrics: dict[str, float] = field(default_factory=dict)
    watched: dict[str, float] = field(default_factory=dict)  #: `learners.watching`'s, by heading; only if asked for


# ---------------------------------------------------------------- a round


class _Way(NamedTuple):
    """Where a worker wants to go, before directions and rounding."""

    coordinates: tuple[Floats, ...]  #: c of each compartment, as they would be sent
    wanted: Optional[Floats]  #: [D] the vector that c is of: rate h, or h of a round of local steps; nes has none
    whole: Optional[NDArray[Any]]  #: h [D] in the residual's units, where there is a residual
    gradient: Optional[Floats]  #: the mean gradient [D]
    loss: float


def descend(method: Method, worker: Worker, problem: Problem, batches: Sequence[Any], *, watch: bool = False) -> Round:
    """One round.

    Args:
        batches: `method.batches(worker.shared.directions)` of them.
        watch: whether `watched` is wanted: a few passes over the weights, no gradient more.

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
    payload = nbytes(method, update)
    metrics = {"loss": way.loss, "update_norm": float(np.linalg.norm(moved)), "bytes": float(payload)}
    metrics["compression"] = 4.0 * method.size * method.steps() / payload  # of gradients as float32, step by step
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
    watched = _watched(method, worker, after, way, update) if watch else {}
    return Round(_redirected(method, way, _carried(method, way, after)), update, metrics, watched)


def _watched(method: Method, before: Worker, after: Worker, way: _Way, update: Update) -> dict[str, float]:
    moves = watching.moves(method.tensors, before.shared.theta, after.shared.theta, way.gradient)
    return moves | watching.coordinate_statistics(way.coordinates, update.parts, method.precision)


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
        theta = worker.shared.theta
        theta = theta - _expanded(directions, worker.name, carried, method.size) if carried else theta
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
    learner = method.learner
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
    left_out = () if given.surgeon is None else _left_out(method, moved, way.wanted, given.surgeon)
    if not (given.scale or left_out):
        return update, shared
    scaled = tuple(c * np.float32(cosine) for c in way.coordinates) if given.scale else way.coordinates
    update = _update(method, worker, scaled, update.patches + left_out)
    return update, worker.shared.shared(update)


def _left_out(method: Method, moved: Floats, wanted: Floats, threshold: float) -> tuple[Patch, ...]:
    """The tensors whose own cosine is not above the threshold."""
    mine = [tensor for tensor in method.tensors if not method.takes_gradient(tensor)]
    low = [t for t in mine if correlation(moved[t.place], wanted[t.place]) <= threshold]
    return tuple(Patch(tensor.start, tensor.stop, None) for tensor in low)


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
        directions.parts[m].scatter(directions.expand(m, [name], c[None]), found)
    return found


class _NotFinite(Exception):
    pass


def _finite(loss: float, gradient: Floats) -> tuple[float, Floats]:
    if not np.isfinite(loss):
        raise _NotFinite(f"the loss is {loss}")
    if not np.isfinite(gradient).all():
        raise _NotFinite("the gradient has entries that are not finite")
    return loss, gradient
