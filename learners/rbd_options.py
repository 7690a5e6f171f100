"""What a user may set of random bases descent and of what it is compared with, as typed values.

Light on purpose, as `learners.options` is. A field that may be None has a default that depends on others: `filled`
puts it in, as `shared/reference` measured it; everything that descends takes filled options.

    filled      no None is left
    refusals    combinations that make no sense
    arithmetic  exact or float, and why

Letters: D weights, d directions, K workers (replicas), H steps of a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Optional, TypeVar, Union

from msgspec import Meta, field
from msgspec.structs import replace

from learners import compartments as parted
from learners.layout import Tensor
from learners.options import Count, NotNegative, Options, Positive

Precision = Literal["float32", "int16", "int8", "int4", "sign"]
Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Finding = tuple[str, str]
KEPT_BYTES = 2**30
"""Most memory of matrices that are kept."""


# ---------------------------------------------------------------- directions


class Compartments(Options, frozen=True):
    """Which weights share directions, where a word is not enough."""

    by: Annotated[
        Literal["size", "layer", "type", "dynamic"],
        Meta(
            description="size: so many weights each, across the borders of layers; layer: one per layer or several; "
            "type: kernels, and the rest; dynamic: one per layer, with as many directions as a compression factor says"
        ),
    ]
    size: Annotated[Optional[Count], Meta(description="by size: weights of a compartment")] = None
    layers: Annotated[int, Meta(ge=1, description="by layer: layers of a compartment")] = 1
    compression: Annotated[
        Optional[Positive], Meta(description="dynamic: weights per direction, D_l = compression x d_l^exponent")
    ] = None
    exponent: Annotated[
        float, Meta(ge=1.0, description="dynamic: 1 compresses layers alike; 1.2 the larger ones more")
    ] = 1.0
    share: Annotated[
        Literal["size", "equal", "each"],
        Meta(
            description="how `dimensions` are shared out: by size, evenly, or as many for each compartment; none gets "
            "more than it has weights"
        ),
    ] = "size"


class Learn(Options, frozen=True):
    """Base learning: some directions are redrawn, the others stay."""

    redraw: Annotated[
        Literal["small", "large"],
        Meta(description="which: those along which the weights have moved least since the last time, or most"),
    ] = "small"
    fraction: Annotated[float, Meta(gt=0.0, le=1.0, description="share of the directions that is redrawn")] = 0.5
    every: Annotated[int, Meta(ge=1, description="updates between two times")] = 1


class Basis(Options, frozen=True):
    """The directions."""

    dimensions: Annotated[
        Optional[Count], Meta(description="d; default 1000 with the residual applied locally, else 250")
    ] = None
    distribution: Annotated[
        Literal["rademacher", "hadamard", "uniform", "normal", "lognormal", "gradients"],
        Meta(
            description="of the entries, each with mean 0 and variance 1; hadamard costs the same for any d; "
            "gradients: the last d gradients, orthonormal, in place of random directions"
        ),
    ] = "rademacher"
    redraw: Annotated[
        Optional[Count], Meta(description="updates that share directions; default 1; kind: fpd never redraws")
    ] = None
    per: Annotated[
        Literal["worker", "group"], Meta(description="whether each worker has its own, or all share them in a round")
    ] = "worker"
    compartments: Annotated[
        Union[Literal["none", "layer", "type"], Compartments],
        Meta(description="none: all weights share directions; layer, type: short for {by: layer}, {by: type}"),
    ] = "none"
    normalize: Annotated[
        Literal["constant", "column", "none"],
        Meta(description="by sqrt(D), by the norm of each column, or not at all (then the rate must hold 1/D)"),
    ] = "constant"
    antithetic: Annotated[bool, Meta(description="half of the directions are the others' negatives")] = False
    keep: Annotated[bool, Meta(description="keep the matrix in memory while it is not redrawn (small networks)")] = (
        False
    )
    learn: Annotated[Optional[Learn], Meta(description="redraw some directions only")] = None
    split: Annotated[bool, Meta(description="`dimensions` are those of all workers together: each has d / K")] = False


# ---------------------------------------------------------------- coordinates


class Coordinates(Options, frozen=True):
    """What happens to coordinates before they are sent."""

    continuous: Annotated[
        int, Meta(ge=1, description="steps that are taken within one basis, in coordinates, before they are sent")
    ] = 1
    reset: Annotated[
        int,
        Meta(
            ge=0,
            description="steps after which coordinates start again from 0, at an update; 0 is never: they then act as "
            "a heavy ball of momentum 1, the gradient taken ahead",
        ),
    ] = 1
    transform: Annotated[
        Literal["none", "ranks", "minmax"],
        Meta(
            description="ranks: centred ranks in place of values; minmax: values between -1 and 1; both keep the root "
            "mean square, so that a rate means the same"
        ),
    ] = "none"
    keep: Annotated[
        Literal["all", "top", "best", "lowest"],
        Meta(description="top: the `count` largest |c|; best, lowest: the `fraction` with largest, smallest |c|"),
    ] = "all"
    count: Annotated[Optional[Count], Meta(description="of keep: top, per compartment")] = None
    fraction: Annotated[Optional[Share], Meta(description="of keep: best or lowest")] = None


# ---------------------------------------------------------------- update


class Plain(Options, frozen=True):
    """Where and when a gradient step is taken in place of one along directions."""

    layer: Annotated[Optional[int], Meta(ge=0, description="number of a layer that takes gradient steps")] = None
    others: Annotated[bool, Meta(description="all layers but `layer` take them, rather than it alone")] = False
    first: Annotated[int, Meta(ge=0, description="steps at the beginning")] = 0
    last: Annotated[int, Meta(ge=0, description="steps at the end")] = 0
    rate: Annotated[float, Meta(gt=0.0, description="of these steps")] = 0.1


class Correlation(Options, frozen=True):
    """What depends on the cosine between the update and the way that was wanted."""

    plain_below: Annotated[
        Optional[float], Meta(ge=-1.0, le=1.0, description="a gradient step is taken where the cosine is below")
    ] = None
    scale: Annotated[bool, Meta(description="the update is multiplied by the cosine")] = False
    surgeon: Annotated[
        Optional[float], Meta(ge=-1.0, le=1.0, description="only tensors whose own cosine is above are updated")
    ] = None


class Step(Options, frozen=True):
    """How far an update goes."""

    rate: Annotated[
        Optional[Positive],
        Meta(
            description="plain and leaky: of theta <- theta - rate / D E E^T g; with local steps: of these. Default: "
            "plain min(6, D / 4d), in a group min(8, 0.35 D / (K d (1 + staleness))); leaky (batch / 32)^(1/3); local "
            "steps 0.1; nes 0.001"
        ),
    ] = None
    schedule: Annotated[
        Optional[Literal["constant", "linear", "cosine", "piecewise", "exponential"]],
        Meta(description="of the rate; default linear, and constant with local steps"),
    ] = None
    warmup: Annotated[int, Meta(ge=0, description="steps in which the rate rises from 0 along a line")] = 0
    at: Annotated[tuple[Share, ...], Meta(description="piecewise: shares of the run after which the rate changes")] = ()
    factor: Annotated[
        float, Meta(gt=0.0, le=1.0, description="piecewise: of each change; exponential: what is left at the end")
    ] = 0.1
    weight: Annotated[
        Optional[Positive],
        Meta(
            description="w: all go w times the way that a message says; default 2.5 with the residual applied locally"
        ),
    ] = None
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0, description="on the weights, after w")] = 0.0
    nesterov: Annotated[bool, Meta(description="Nesterov's form of it")] = False
    plain: Plain = Plain()
    correlation: Correlation = Correlation()
    on_nan: Annotated[
        Literal["stop", "skip"], Meta(description="a loss or gradient that is not finite: stop, or pass over the round")
    ] = "stop"


# ---------------------------------------------------------------- exchange


class Group(Options, frozen=True):
    """How workers go together."""

    mode: Annotated[Literal["async", "sync"], Meta(description="nobody waits, or all wait for all in each round")] = (
        "async"
    )
    max_staleness: Annotated[
        int,
        Meta(ge=0, description="updates that may have come in and not been applied before a worker must apply them"),
    ] = 16
    same_data: Annotated[bool, Meta(description="all workers train on the same batches")] = False


class Exchange(Group, frozen=True):
    """What travels, and how often."""

    every: Annotated[
        Optional[Count], Meta(description="H: local steps of a round; default 10 with the residual applied locally")
    ] = None
    residual: Annotated[
        Optional[Literal["none", "leaky", "local"]],
        Meta(
            description="what directions missed: forgotten; added to the next gradient, times `leak`; or kept in the "
            "worker's own weights until it has been shared. Default for rbd: local"
        ),
    ] = None
    leak: Annotated[float, Meta(gt=0.0, le=1.0, description="rho of residual: leaky")] = 0.99
    precision: Annotated[
        Optional[Precision], Meta(description="of coordinates on the wire; default sign with a residual, else int8")
    ] = None
    combine: Annotated[Literal["sum", "mean"], Meta(description="whether workers' updates add up or are averaged")] = (
        "sum"
    )
    bits: Annotated[int, Meta(ge=16, le=28, description="s: weights lie on a grid of 2^-s around their start")] = 26


class Offspring(Options, frozen=True):
    """How NES looks around."""

    sigma: Annotated[float, Meta(gt=0.0, description="how far an offspring is from the weights, per entry")] = 0.01
    batches: Annotated[
        Literal["own", "shared"], Meta(description="whether each offspring sees a batch of its own or all the same one")
    ] = "own"


# ---------------------------------------------------------------- kinds


class Learner(Options, frozen=True):
    """What all kinds have."""

    network: Annotated[
        str, Meta(pattern=r"^(dense|base_conv|[\w.]+:\w+)$", description="dense | base_conv | module:function (Keras)")
    ] = "dense"
    replicas: Annotated[int, Meta(ge=1, description="K, the workers")] = 1
    batch_size: Annotated[int, Meta(ge=1, description="rows a step")] = 32
    steps: Annotated[int, Meta(ge=1, description="training steps of each worker")] = 1000
    update: Step = Step()
    resources: Annotated[dict[str, NotNegative], Meta(description="what the host of each worker must have")] = field(
        default_factory=dict
    )


class Rbd(Learner, frozen=True, tag_field="kind", tag="rbd"):
    """Random bases descent: steps along directions that are drawn anew."""

    basis: Basis = Basis()
    coordinates: Coordinates = Coordinates()
    exchange: Exchange = Exchange()


class Fpd(Rbd, frozen=True, tag_field="kind", tag="fpd"):
    """Fixed projection descent: as rbd, and never redrawn."""


class Nes(Rbd, frozen=True, tag_field="kind", tag="nes"):
    """Natural evolution strategies: coordinates from losses alone."""

    offspring: Offspring = Offspring()


class Sgd(Learner, frozen=True, tag_field="kind", tag="sgd"):
    """Gradients as float32, all of them, every step."""

    exchange: Group = Group()


class Local(Learner, frozen=True, tag_field="kind", tag="local"):
    """Local SGD, and DiLoCo with `update: {momentum: 0.9, nesterov: true}`: whole weights every H steps."""

    exchange: Exchange = Exchange()


AnyLearner = Union[Rbd, Fpd, Nes, Sgd, Local]
Kind = TypeVar("Kind", Rbd, Fpd, Nes, Sgd, Local)


def has_rounds(learner: AnyLearner) -> bool:
    """Whether a worker takes steps of its own, at weights of its own, between two updates."""
    if isinstance(learner, (Sgd, Nes)):
        return False
    exchange = learner.exchange
    return isinstance(learner, Local) or exchange.residual == "local" or (exchange.every or 1) > 1


# ---------------------------------------------------------------- defaults


def filled(learner: Kind, size: int, staleness: int = 0) -> Kind:
    """With the defaults that the reference page advises.

    Args:
        size: D.
        staleness: rounds by which updates are late, as measured or expected.
    """
    if isinstance(learner, Sgd):
        step = learner.update
        return replace(learner, update=replace(step, rate=step.rate or 0.1, schedule=step.schedule or "linear"))
    learner = replace(learner, exchange=_exchange(learner))
    if not isinstance(learner, Local):
        d = learner.basis.dimensions or (1000 if learner.exchange.residual == "local" else 250)
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


def _exchange(learner: Union[Rbd, Fpd, Nes, Local]) -> Exchange:
    given = learner.exchange
    residual = given.residual or ("local" if type(learner) is Rbd else "none")
    every = 50 if isinstance(learner, Local) else 10 if residual == "local" else 1
    precision: Precision = "sign" if residual != "none" and not isinstance(learner, Local) else "int8"
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
        ranges = _ranges(basis.compartments, tensors, size)
        found = parted.compartments(ranges, d, wanted.share if wanted else "size")
    if basis.antithetic:
        found = [part._replace(dimensions=max(2, part.dimensions - part.dimensions % 2)) for part in found]
    return found


def _ranges(wanted: Union[str, Compartments], tensors: Sequence[Tensor], size: int) -> list[parted.Ranges]:
    by = wanted if isinstance(wanted, str) else wanted.by
    if by == "layer":
        return parted.by_layer(tensors, 1 if isinstance(wanted, str) else wanted.layers)
    if by == "type":
        return parted.by_type(tensors)
    if by == "size" and isinstance(wanted, Compartments):
        return parted.sized(size, wanted.size or size)
    return parted.whole(size)


# ---------------------------------------------------------------- exact or float


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
    if learner.basis.keep and learner.basis.distribution not in ("rademacher", "hadamard"):
        yield "basis.keep: sums of real entries depend on the machine's BLAS"


# ---------------------------------------------------------------- refusals


def refusals(learner: AnyLearner, tensors: Sequence[Tensor]) -> list[Finding]:
    """(key path, message) for all that makes no sense together; of filled options."""
    found = list(_steps(learner, tensors))
    if not isinstance(learner, Sgd):
        found += _exchanges(learner)
    if isinstance(learner, (Rbd, Fpd, Nes)):
        found += [*_bases(learner, tensors), *_kept(learner, tensors), *_coordinates(learner)]
    return found


def _steps(learner: AnyLearner, tensors: Sequence[Tensor]) -> Iterator[Finding]:
    step, plain = learner.update, learner.update.plain
    if bool(step.at) != (step.schedule == "piecewise"):
        yield "update.at", "shares of the run go with schedule: piecewise, and that needs some; give both or neither"
    if step.nesterov and not step.momentum:
        yield "update.nesterov", "there is no momentum; give update.momentum too"
    if plain.others and plain.layer is None:
        yield "update.plain.others", "no layer is named; give update.plain.layer too"
    if plain.layer is not None and plain.layer > tensors[-1].layer:
        yield "update.plain.layer", f"{plain.layer} was given; the network's layers are 0 .. {tensors[-1].layer}"
    if plain.first + plain.last > learner.steps:
        yield (
            "update.plain",
            f"first and last are {plain.first + plain.last} steps of {learner.steps}; that is kind: sgd",
        )
    special = plain != Plain(rate=plain.rate) or step.correlation != Correlation()
    if special and not isinstance(learner, (Rbd, Fpd)):
        yield "update", "plain and correlation are of kinds that know a gradient and leave it: rbd and fpd"
    if isinstance(learner, Sgd) and step.weight is not None:
        yield "update.weight", "kind: sgd averages gradients; change update.rate"
    mode, reason = arithmetic(learner)
    if mode == "float" and learner.exchange.mode == "async" and learner.replicas > 1:
        yield "exchange.mode", f"async replicas need exact sums, and there are none ({reason}); give mode: sync"


def _exchanges(learner: Union[Rbd, Fpd, Nes, Local]) -> Iterator[Finding]:
    exchange = learner.exchange
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
    basis, size, d = learner.basis, tensors[-1].stop, learner.basis.dimensions or 250
    if d > size:
        yield "basis.dimensions", f"{d} directions for {size} weights; at most as many as weights"
    if basis.split and d < learner.replicas:
        yield "basis.dimensions", f"{d} directions for {learner.replicas} workers; at least one each"
    if isinstance(learner, Fpd) and basis.redraw:
        yield "basis.redraw", "kind: fpd never redraws; leave it out, or give kind: rbd"
    if basis.antithetic and d % 2:
        yield "basis.dimensions", f"{d} directions cannot be pairs; give an even number"
    special = "learn" if basis.learn else "distribution" if basis.distribution == "gradients" else ""
    if special:
        given = ("compartments", "redraw", "per", "antithetic", "keep", "normalize", "split")
        usual = Basis(redraw=None if isinstance(learner, Fpd) else 1)
        for field in given:
            if getattr(basis, field) != getattr(usual, field):
                yield f"basis.{field}", f"does not go with basis.{special}; leave one of them out"
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
    for by, field in needs.items():
        given = getattr(wanted, field) is not None
        if given != (wanted.by == by):
            yield f"basis.compartments.{field}", f"goes with by: {by}, and that needs it; give both or neither"
    if wanted.layers > 1 and wanted.by != "layer":
        yield "basis.compartments.layers", "goes with by: layer"
    if wanted.exponent != 1.0 and wanted.by != "dynamic":
        yield "basis.compartments.exponent", "goes with by: dynamic"
    if wanted.by == "dynamic" and (wanted.share != "size" or learner.basis.split):
        yield "basis.compartments", "by: dynamic says itself how many directions there are; leave share and split out"
    parts = 1 if learner.basis.compartments == "none" else len(_ranges(wanted, tensors, tensors[-1].stop))
    if learner.basis.split:
        d //= learner.replicas
    if wanted.share != "each" and wanted.by != "dynamic" and d < parts:
        yield "basis.dimensions", f"{d} directions for {parts} compartments; at least one each"


def _kept(learner: Union[Rbd, Fpd, Nes], tensors: Sequence[Tensor]) -> Iterator[Finding]:
    basis, needed = learner.basis, 4 * tensors[-1].stop * (learner.basis.dimensions or 250)
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
