"""What depends on what: defaults of random bases descent as a study on Fashion-MNIST found them, and what follows.

    filled        no option is None any more
    round_steps   how many steps there are between two updates
    outer_weight  what one message counts
    layout        the compartments, with their directions

Letters: D weights, d directions, K workers, H steps of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from msgspec.structs import replace

from learners.layout import Tensor
from learners.rbd import budget
from learners.rbd import compartments as parted
from learners.rbd.options import (
    AnyLearner,
    Compartments,
    Exchange,
    Fpd,
    Local,
    Nes,
    Precision,
    Rbd,
    Sgd,
    has_rounds,
)


def filled(learner: AnyLearner, size: int, staleness: int = 0) -> AnyLearner:
    """With the defaults that the reference page advises.

    Args:
        size: D.
        staleness: rounds by which updates are late, as measured or expected.
    """
    if isinstance(learner, Sgd):
        step = learner.update
        return replace(learner, update=replace(step, rate=step.rate or 0.1, schedule=step.schedule or "linear"))
    learner = replace(learner, exchange=_exchange(learner, size))
    if not isinstance(learner, Local):
        d = learner.basis.dimensions or _dimensions(learner, size)
        redraw = learner.basis.redraw or (None if isinstance(learner, Fpd) else 1)
        learner = replace(learner, basis=replace(learner.basis, dimensions=d, redraw=redraw))
    step, rounds = learner.update, has_rounds(learner)
    step = replace(
        step,
        rate=step.rate or _rate(learner, size, staleness),
        schedule=step.schedule or ("constant" if rounds else "linear"),
        weight=step.weight or _weight(learner),
    )
    return replace(learner, update=step)


def _dimensions(learner: Union[Rbd, Fpd, Nes], size: int) -> int:
    if learner.exchange.budget:
        return budget.chosen(budget.bytes_a_second(learner.exchange.budget), size).dimensions
    return 1000 if learner.exchange.residual == "local" else 250


def _exchange(learner: Union[Rbd, Fpd, Nes, Local], size: int) -> Exchange:
    given = learner.exchange
    residual = given.residual or ("local" if type(learner) is Rbd else "none")
    kept = type(learner) is Rbd and residual != "none"  # other kinds refuse one, and nothing is to follow from it
    every = 50 if isinstance(learner, Local) else 10 if kept and residual == "local" else 1
    if given.budget:
        every = budget.chosen(budget.bytes_a_second(given.budget), size).every
    precision: Precision = "sign" if kept else "int8"
    return replace(given, residual=residual, every=given.every or every, precision=given.precision or precision)


def _rate(learner: Union[Rbd, Fpd, Nes, Local], size: int, staleness: int) -> float:
    if isinstance(learner, Nes):
        return 1e-3
    if has_rounds(learner) or isinstance(learner, Local):
        return 0.1
    if learner.basis.distribution == "gradients":
        return 0.1
    if learner.exchange.residual == "leaky":
        return float((learner.batch_size / 32) ** (1 / 3))
    ratio, late = size / (learner.basis.dimensions or 250), learner.replicas * (1 + staleness)
    rate = min(6.0, 0.25 * ratio) if late == 1 else min(8.0, 0.35 * ratio / late)
    return rate / size if learner.basis.normalize == "none" else rate


def _weight(learner: Union[Rbd, Fpd, Nes, Local]) -> float:
    return 2.5 if learner.exchange.residual == "local" and not isinstance(learner, Local) else 1.0


def round_steps(learner: AnyLearner) -> int:
    """Training steps between two updates; of filled options."""
    if has_rounds(learner):
        assert not isinstance(learner, (Nes, Sgd))
        return learner.exchange.every or 1
    return learner.coordinates.continuous if isinstance(learner, Rbd) else 1


def outer_weight(learner: AnyLearner) -> float:
    """What a message of one worker is multiplied by: w, or w / K where updates are averaged.

    Whole weights and whole gradients are always averaged: their sum would be K steps in one direction.
    """
    if isinstance(learner, Sgd):
        return 1.0 / learner.replicas
    averaged = isinstance(learner, Local) or learner.exchange.combine == "mean"
    return (learner.update.weight or 1.0) / (learner.replicas if averaged else 1)


def layout(learner: Union[Rbd, Fpd, Nes], tensors: Sequence[Tensor], worker: int = 0) -> list[parted.Compartment]:
    """The compartments of a worker, with their directions.

    Raises:
        ValueError: fewer directions than compartments.
    """
    basis, size = learner.basis, tensors[-1].stop
    wanted = basis.compartments if isinstance(basis.compartments, Compartments) else None
    d = basis.dimensions or 250
    if basis.split:
        d = parted.of_worker(d, worker, learner.replicas)
    if wanted is not None and wanted.by == "dynamic":
        found = parted.dynamic(tensors, wanted.compression or 1.0, wanted.exponent)
    else:
        ranges = ranges_of(basis.compartments, tensors, size)
        found = parted.compartments(ranges, d, wanted.share if wanted else "size")
    if basis.antithetic:
        found = [part._replace(dimensions=max(2, part.dimensions - part.dimensions % 2)) for part in found]
    return found


def ranges_of(wanted: Union[str, Compartments], tensors: Sequence[Tensor], size: int) -> list[parted.Ranges]:
    """Which weights each compartment has, for all but `dynamic`."""
    by = wanted if isinstance(wanted, str) else wanted.by
    if by == "layer":
        return parted.by_layer(tensors, 1 if isinstance(wanted, str) else wanted.layers)
    if by == "type":
        return parted.by_type(tensors)
    if by == "size" and isinstance(wanted, Compartments):
        return parted.sized(size, wanted.size or size)
    return parted.whole(size)
