"""What a user may set of random bases descent and of what it is compared with, as typed values.

Light on purpose, as `learners.options` is. A field that may be None has a default that depends on others, which
`learners.rbd.defaults.filled` puts in. What makes no sense together is told by `learners.rbd.refusals`.

Letters: D weights, d directions, K workers (replicas), H steps of a round.
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from msgspec import Meta, field

from learners.fields import Count, NotNegative, Options, Positive
from learners.footprint import CPUS

Precision = Literal["float32", "int16", "int8", "int4", "sign"]
Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Cosine = Annotated[float, Meta(ge=-1.0, le=1.0)]
Number = Annotated[int, Meta(ge=0)]
Bandwidth = Annotated[str, Meta(pattern=r"^(?!0+(\.0*)?[^.\d])\d+(\.\d+)?(B|kB|MB)/s$", description="as 2kB/s")]


STEPS_A_SECOND = 500.0
"""Of one worker, for the plan and for the choice of d from a budget: half a processor and the dense network on 28 x 28
images. A run measures its own."""


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

    layer: Annotated[Optional[Number], Meta(description="number of a layer that takes gradient steps")] = None
    others: Annotated[bool, Meta(description="all layers but `layer` take them, rather than it alone")] = False
    first: Annotated[int, Meta(ge=0, description="steps at the beginning")] = 0
    last: Annotated[int, Meta(ge=0, description="steps at the end")] = 0
    rate: Annotated[float, Meta(gt=0.0, description="of these steps")] = 0.1


class Correlation(Options, frozen=True):
    """What depends on the cosine between the update and the way that was wanted."""

    plain_below: Annotated[Optional[Cosine], Meta(description="a gradient step is taken where the cosine is below")] = (
        None
    )
    scale: Annotated[bool, Meta(description="the update is multiplied by the cosine")] = False
    surgeon: Annotated[Optional[Cosine], Meta(description="only tensors whose own cosine is above are updated")] = None


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
    held_back: Annotated[
        int,
        Meta(
            ge=0,
            description="rounds that what has come waits before it is applied, max_staleness updates at most: to try "
            "out what slow links cost",
        ),
    ] = 0
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
    budget: Annotated[
        Optional[Bandwidth],
        Meta(description="2kB/s: what each worker sends at most, with headers; d follows from it, and H in each round"),
    ] = None
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
    resources: Annotated[
        dict[str, NotNegative],
        Meta(description="what the host of each worker must have: cpus (default 0.5), gpus, and any custom resource"),
    ] = field(default_factory=dict)

    @property
    def cpus(self) -> float:
        """CPUs asked for, or the default."""
        return self.resources.get("cpus", CPUS)

    @property
    def has_own_network(self) -> bool:
        """Whether the network is a function of the user's."""
        return ":" in self.network


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


def has_rounds(learner: AnyLearner) -> bool:
    """Whether a worker takes steps of its own, at weights of its own, between two updates."""
    if isinstance(learner, (Sgd, Nes)):
        return False
    exchange = learner.exchange
    return isinstance(learner, Local) or exchange.residual == "local" or (exchange.every or 1) > 1
