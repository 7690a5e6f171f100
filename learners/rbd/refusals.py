"""Which options contradict integers, and which contradict one another. Filled options, no files.

Letters: D weights, d directions, K workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Literal, Union

from learners.layout import Tensor
from learners.rbd.defaults import outer_weight, ranges_of
from learners.rbd.options import (
    AnyLearner,
    Basis,
    Compartments,
    Correlation,
    Fpd,
    Local,
    Nes,
    Plain,
    Rbd,
    Sgd,
    has_rounds,
)

Finding = tuple[str, str]
SECTIONS = ("replicas", "steps", "update", "exchange", "basis", "coordinates")
"""Of a learner, those that its options are judged by."""
KEPT_BYTES = 2**30
"""Most memory of matrices that are kept."""


def arithmetic(learner: AnyLearner) -> tuple[Literal["exact", "float"], str]:
    """Whether replicas hold integers, and the reason where they cannot; of filled options."""
    if isinstance(learner, Sgd):
        return "float", "kind: sgd: whole gradients are summed as float32"
    reasons = list(_against_integers(learner))
    return ("float", "; ".join(reasons)) if reasons else ("exact", "sums of integers: any order gives the same bits")


def _against_integers(learner: Union[Rbd, Fpd, Nes, Local]) -> Iterator[str]:
    step = learner.update
    if step.momentum:
        yield "update.momentum: where the weights go depends on the order of updates"
    if (16 * outer_weight(learner)) % 1:
        yield f"update.weight: {outer_weight(learner):g} for each message is not a multiple of 1/16"
    if step.plain != Plain(rate=step.plain.rate):
        yield "update.plain: gradients travel as float32"
    if step.correlation.plain_below is not None:
        yield "update.correlation.plain_below: gradients travel as float32"
    if step.correlation.surgeon is not None:
        yield "update.correlation.surgeon: parts of an update are left out"
    if isinstance(learner, Local):
        return
    if learner.basis.learn:
        yield "basis.learn: directions depend on what was sent before"
    if learner.basis.distribution == "gradients":
        yield "basis.distribution: gradients: others do not know them"


def refusals(learner: AnyLearner, tensors: Sequence[Tensor], faulty: Set[str] = frozenset()) -> list[Finding]:
    """(key path, message) for all that makes no sense together; of filled options.

    Args:
        tensors: of the network; none where they are not known yet, and what depends on them is passed over.
        faulty: sections of it that are not as they were meant; so is what depends on them.
    """
    found: list[Finding] = []
    if faulty.isdisjoint(("replicas", "steps", "update", "exchange", "basis")):
        found += _steps(learner, tensors)
    if not isinstance(learner, Sgd) and faulty.isdisjoint(("exchange", "basis")):
        found += _exchanges(learner)
    if isinstance(learner, (Rbd, Fpd, Nes)):
        # how many directions there are depends on the residual
        if faulty.isdisjoint(("replicas", "exchange", "basis")):
            found += [*_bases(learner, tensors), *_kept(learner, tensors)]
        if faulty.isdisjoint(("exchange", "basis", "coordinates")):
            found += _coordinates(learner)
    return found


def _steps(learner: AnyLearner, tensors: Sequence[Tensor]) -> Iterator[Finding]:
    step, plain = learner.update, learner.update.plain
    if bool(step.at) != (step.schedule == "piecewise"):
        yield "update.at", "shares of the run go with schedule: piecewise, and that needs some; give both or neither"
    if step.nesterov and not step.momentum:
        yield "update.nesterov", "there is no momentum; give update.momentum too"
    if plain.others and plain.layer is None:
        yield "update.plain.others", "no layer is named; give update.plain.layer too"
    if tensors and plain.layer is not None and plain.layer > tensors[-1].layer:
        yield "update.plain.layer", f"{plain.layer} was given; the network's layers are 0 .. {tensors[-1].layer}"
    if plain.first + plain.last > learner.steps:
        yield (
            "update.plain",
            f"first and last are {plain.first + plain.last} steps of {learner.steps}; that is kind: sgd",
        )
    special = plain != Plain(rate=plain.rate) or step.correlation != Correlation()
    if special and (not isinstance(learner, Rbd) or isinstance(learner, Nes)):
        yield "update", "plain and correlation are of kinds that know a gradient and leave it: rbd and fpd"
    if isinstance(learner, Sgd) and step.weight is not None:
        yield "update.weight", "kind: sgd averages gradients; change update.rate"
    if learner.exchange.held_back and (learner.exchange.mode == "sync" or learner.replicas == 1):
        yield (
            "exchange.held_back",
            "is for workers that do not wait for one another (mode: async, 2 replicas or more); leave it out",
        )
    mode, reason = arithmetic(learner)
    if mode == "float" and learner.exchange.mode == "async" and learner.replicas > 1:
        yield "exchange.mode", f"async replicas need exact sums, and there are none ({reason}); give mode: sync"


def _exchanges(learner: Union[Rbd, Fpd, Nes, Local]) -> Iterator[Finding]:
    exchange = learner.exchange
    if exchange.budget and (
        type(learner) is not Rbd
        or (exchange.residual, exchange.mode, exchange.precision) != ("local", "async", "sign")
        or learner.replicas < 2
    ):
        wanted = "kind: rbd, replicas of 2 or more, mode: async, residual: local, precision: sign"
        yield "exchange.budget", f"rounds follow a budget where each may have any number of steps: give {wanted}"
    if exchange.residual == "leaky" and (isinstance(learner, Local) or (exchange.every or 1) > 1):
        yield "exchange.residual", "leaky is for one step at a time; with rounds of several steps give residual: local"
    if isinstance(learner, (Fpd, Nes)) and exchange.residual != "none":
        why = "directions never change, so what they miss is never sent" if isinstance(learner, Fpd) else "no gradient"
        yield "exchange.residual", f"{exchange.residual} makes no sense here ({why}); give residual: none"
    if isinstance(learner, Nes) and (exchange.every or 1) > 1:
        yield "exchange.every", "nes has no local steps; give every: 1"
    if isinstance(learner, Local):
        if exchange.combine == "mean":
            yield "exchange.combine", "kind: local always averages; leave it out"
        return
    if exchange.combine == "mean" and (learner.basis.per, exchange.mode) != ("group", "sync"):
        yield "exchange.combine", "coordinates have a mean in shared directions only: basis.per: group and mode: sync"
    if learner.basis.split and learner.basis.per == "group":
        yield "basis.split", "shared directions cannot be split among workers; give per: worker"


def _bases(learner: Union[Rbd, Fpd, Nes], tensors: Sequence[Tensor]) -> Iterator[Finding]:
    basis, d = learner.basis, learner.basis.dimensions or 250
    if tensors and d > (size := tensors[-1].stop):
        yield "basis.dimensions", f"{d} directions for {size} weights; at most as many as weights"
    if basis.split and d < learner.replicas:
        yield "basis.dimensions", f"{d} directions for {learner.replicas} workers; at least one each"
    elif basis.split and d % learner.replicas:
        yield "basis.dimensions", f"{d} directions for {learner.replicas} workers; as many for each: give a multiple"
    if isinstance(learner, Fpd) and basis.redraw:
        yield "basis.redraw", "kind: fpd never redraws; leave it out, or give kind: rbd"
    if basis.antithetic and d % 2:
        yield "basis.dimensions", f"{d} directions cannot be pairs; give an even number"
    special = "learn" if basis.learn else "distribution" if basis.distribution == "gradients" else ""
    if special:
        given = ("compartments", "redraw", "per", "antithetic", "keep", "normalize", "split")
        usual = Basis(redraw=None if isinstance(learner, Fpd) else 1)
        for key in given:
            if getattr(basis, key) != getattr(usual, key):
                yield f"basis.{key}", f"does not go with basis.{special}; leave one of them out"
    if basis.learn and basis.distribution in ("hadamard", "gradients"):
        yield "basis.learn", f"{basis.distribution} directions are not drawn one by one; give another distribution"
    if special and (isinstance(learner, Nes) or learner.replicas > 1):
        yield f"basis.{special}", "is for one worker of kind rbd or fpd: others do not know its directions"
    yield from _compartments(learner, tensors, d)


def _compartments(learner: Union[Rbd, Fpd, Nes], tensors: Sequence[Tensor], d: int) -> Iterator[Finding]:
    wanted = learner.basis.compartments
    if not isinstance(wanted, Compartments):
        wanted = Compartments(by="layer")
    needs = {"size": "size", "dynamic": "compression"}
    for by, key in needs.items():
        given = getattr(wanted, key) is not None
        if given != (wanted.by == by):
            yield f"basis.compartments.{key}", f"goes with by: {by}, and that needs it; give both or neither"
    if wanted.layers > 1 and wanted.by != "layer":
        yield "basis.compartments.layers", "goes with by: layer"
    if wanted.exponent != 1.0 and wanted.by != "dynamic":
        yield "basis.compartments.exponent", "goes with by: dynamic"
    if wanted.by == "dynamic" and (wanted.share != "size" or learner.basis.split):
        yield "basis.compartments", "by: dynamic says itself how many directions there are; leave share and split out"
    if not tensors:
        return
    parts = 1 if learner.basis.compartments == "none" else len(ranges_of(wanted, tensors, tensors[-1].stop))
    if learner.basis.split:
        d //= learner.replicas
    if wanted.share != "each" and wanted.by != "dynamic" and d < parts:
        yield "basis.dimensions", f"{d} directions for {parts} compartments; at least one each"


def _kept(learner: Union[Rbd, Fpd, Nes], tensors: Sequence[Tensor]) -> Iterator[Finding]:
    basis, size = learner.basis, tensors[-1].stop if tensors else 0
    needed = 4 * size * (learner.basis.dimensions or 250)
    if basis.keep and basis.redraw == 1 and not isinstance(learner, Nes):
        yield "basis.keep", "directions are redrawn for every update: there is nothing to keep; raise basis.redraw"
    if basis.keep and needed > KEPT_BYTES:
        yield "basis.keep", f"the matrix takes {needed / 2**30:.1f} GiB; at most {KEPT_BYTES >> 30} is kept"


def _coordinates(learner: Union[Rbd, Fpd, Nes]) -> Iterator[Finding]:
    given, exchange = learner.coordinates, learner.exchange
    if (given.keep == "top") != (given.count is not None):
        yield "coordinates.count", "goes with keep: top, and that needs it; give both or neither"
    if (given.keep in ("best", "lowest")) != (given.fraction is not None):
        yield "coordinates.fraction", "goes with keep: best or lowest, and these need it; give both or neither"
    if given.keep != "all" and exchange.precision == "sign":
        yield "coordinates.keep", "a sign cannot be 0; give exchange.precision: int4 or finer"
    inside = given.continuous > 1 or given.reset != 1
    if inside and (has_rounds(learner) or exchange.residual != "none" or isinstance(learner, Nes)):
        yield "coordinates", "continuous and reset are for plain steps: residual: none, every: 1, kind: rbd or fpd"
    if given.reset % given.continuous and given.reset != 1:
        yield (
            "coordinates.reset",
            f"{given.reset} falls between two updates, {given.continuous} steps apart; a multiple",
        )
    if inside and (learner.basis.learn or learner.basis.distribution == "gradients"):
        yield "coordinates", "continuous and reset need directions that stay what they are"
