"""What a user may set, as typed values: the YAML of a run is decoded into these.

Light on purpose (no TensorFlow, no Ray): the command line reads and checks files before anything heavy loads.
Every field says unit and meaning once, in its description; the published JSON Schema is made from them.
"""

from typing import Annotated, Any, Literal, Optional, Union

from msgspec import Meta, field

from learners.fields import Count, Name, NotNegative, Options
from learners.footprint import CPUS
from learners.rbd.options import AnyLearner

Precision = Literal["float32", "float16", "int8"]


class Optimizer(Options, frozen=True):
    """The update rule of every objective of a learner; each objective keeps its own state."""

    name: Annotated[
        Literal["sgd", "momentum", "nesterov", "adam"],
        Meta(description="sgd; momentum (heavy ball); nesterov; adam"),
    ] = "adam"
    learning_rate: Annotated[float, Meta(gt=0.0, description="rate at the start, before the schedule")] = 1e-3
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        Meta(description="how the rate falls over the learner's steps: not at all, or to 0 along a line or a cosine"),
    ] = "constant"
    warmup: Annotated[int, Meta(ge=0, description="steps in which the rate rises from 0 along a line")] = 0
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0, description="beta of momentum and nesterov")] = 0.9
    beta_1: Annotated[float, Meta(ge=0.0, lt=1.0, description="Adam: decay of the first moment")] = 0.9
    beta_2: Annotated[float, Meta(ge=0.0, lt=1.0, description="Adam: decay of the second moment")] = 0.999
    epsilon: Annotated[float, Meta(gt=0.0, description="Adam: added to the root of the second moment")] = 1e-7
    weight_decay: Annotated[float, Meta(ge=0.0, description="lambda; 0 is none")] = 0.0
    decay: Annotated[
        Literal["coupled", "decoupled"],
        Meta(description="coupled: lambda theta joins the gradient; decoupled: theta shrinks by rate x lambda"),
    ] = "coupled"


class Synthetic(Options, frozen=True):
    """The local model of the children's embeddings."""

    hidden: Annotated[tuple[Count, ...], Meta(description="widths of the hidden layers")] = (512, 512)
    weight: Annotated[float, Meta(ge=0.0, description="weight of the distillation loss (mean squared error)")] = 0.1


class Exchange(Options, frozen=True):
    """Limits of the traffic between a learner, its children and its parents."""

    in_flight: Annotated[
        int, Meta(ge=1, le=64, description="requests kept open at each child while a step is computed")
    ] = 3
    pack: Annotated[
        int, Meta(ge=1, le=64, description="steps whose messages to a child share a call, if steps are short")
    ] = 2
    patience: Annotated[
        float,
        Meta(ge=0.0, description="seconds that a step may wait for an answer before a batch is trained on without"),
    ] = 0.05
    time_limit: Annotated[
        float,
        Meta(gt=0.0, description="seconds after which an unanswered request is lost and its child counts as silent"),
    ] = 2.0
    max_staleness: Annotated[
        int, Meta(ge=0, description="oldest gradient that is applied, in steps of the learner that receives it")
    ] = 100
    clip: Annotated[
        float, Meta(gt=0.0, description="greatest norm of a received gradient; a longer one is shortened")
    ] = 1.0
    gradient_rate: Annotated[
        float, Meta(gt=0.0, description="rate at which received gradients are applied, as a share of the learning rate")
    ] = 0.1
    queue: Annotated[
        int, Meta(ge=1, description="messages of a kind kept per parent; the oldest beyond are dropped")
    ] = 8
    gradients: Annotated[bool, Meta(description="whether gradients are sent to the children")] = True
    precision: Annotated[
        Precision,
        Meta(
            description="how the numbers of embeddings and gradients that this learner sends travel: float32, float16 "
            "or int8, with one scale for each array"
        ),
    ] = "float32"


class Mach(Options, frozen=True, kw_only=True, tag_field="kind", tag="mach"):
    """A Mach learner: encoder, head, and a synthetic input in place of its children."""

    child: Annotated[Optional[Name], Meta(description="the one learner below; short for children: [name]")] = None
    children: Annotated[tuple[Name, ...], Meta(description="learners below, whose embeddings are concatenated")] = ()
    hidden: Annotated[tuple[Count, ...], Meta(min_length=1, description="widths of the encoder's hidden layers")] = (
        512,
        512,
    )
    embedding: Annotated[int, Meta(ge=1, description="width of the embedding that parents receive")] = 128
    dropout: Annotated[
        float, Meta(ge=0.0, lt=1.0, description="rate (share that is dropped) before the embedding layer")
    ] = 0.0
    synthetic: Synthetic = Synthetic()
    batch_size: Annotated[int, Meta(ge=1, description="rows a step")] = 128
    steps: Annotated[int, Meta(ge=1, description="training steps of this learner")] = 1000
    optimizer: Optimizer = Optimizer()
    exchange: Exchange = Exchange()
    resources: Annotated[
        dict[str, NotNegative],
        Meta(
            description="what the host must have: cpus (default 0.5; threads are its whole part, at least 1), gpus, "
            "and any custom resource"
        ),
    ] = field(default_factory=dict)

    @property
    def cpus(self) -> float:
        """CPUs asked for, or the default."""
        return self.resources.get("cpus", CPUS)


Learner = Union[Mach, AnyLearner]


def kind_of(learner: Learner) -> str:
    """What the file calls its kind."""
    return str(learner.__struct_config__.tag)


def member(group: str, number: int) -> str:
    """The name of one of several workers that go together."""
    return f"{group}/{number}"


def group_of(member: str) -> str:
    """What the file calls a learner, or the group that a worker is of."""
    return member.partition("/")[0]


def number_of(member: str) -> int:
    """The number of a worker in its group; 0 of one that is alone."""
    return int(member.partition("/")[2] or 0)


class Data(Options, frozen=True):
    """Which rows are trained on, validated on and tested on."""

    name: Annotated[
        str,
        Meta(description="digits | mnist | fashion_mnist | cifar10, a file.npz, or module:function of yours"),
    ] = "digits"
    path: Annotated[Optional[str], Meta(description="folder that holds the files of a named set")] = None
    validation: Annotated[
        Union[Annotated[int, Meta(ge=1)], Annotated[float, Meta(gt=0.0, lt=1.0)]],
        Meta(description="rows (whole number) or share (below 1) of the training rows set apart for validation"),
    ] = 0.1
    shard: Annotated[
        Literal["none", "by_learner"],
        Meta(description="none: all learners share the training rows; by_learner: each has its own disjoint part"),
    ] = "none"


class Record(Options, frozen=True):
    """What is written while training, and how often."""

    every: Annotated[int, Meta(ge=1, description="steps between two evaluations on validation rows")] = 100
    rows: Annotated[
        int, Meta(ge=1, description="validation rows of one such evaluation (the whole set at the end)")
    ] = 512
    attribution: Annotated[
        int, Meta(ge=0, description="steps between two attributions (pruning score, integrated gradients); 0 is never")
    ] = 500


class Mechanics(Options, frozen=True):
    """Conservation laws of the learners of kind mach, watched while they train."""

    every: Annotated[
        int,
        Meta(
            ge=0,
            description="steps between two comparisons of charges with what the update rule makes of them; "
            "0: nothing is watched",
        ),
    ] = 0


class Checkpoint(Options, frozen=True):
    """When the state of all learners is saved."""

    every: Annotated[
        int, Meta(ge=0, description="steps of any learner between two sets of all; 0: only at the end")
    ] = 1000
    keep: Annotated[int, Meta(ge=1, description="complete sets that are kept")] = 3
    upload: Annotated[
        float, Meta(gt=0.0, description="MB/s at most that a learner sends of its state, beside training")
    ] = 100.0


class Supervise(Options, frozen=True):
    """What is done about learners that die or fall silent."""

    restarts: Annotated[int, Meta(ge=0, description="times that a learner is started again")] = 3
    silence: Annotated[
        float, Meta(gt=0.0, description="seconds without a sign of life after which a learner is started again")
    ] = 10.0


class Topology(Options, frozen=True, kw_only=True):
    """A whole run file, version 1."""

    version: Literal[1]
    name: Name
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="the one seed of the run")] = 0
    data: Data = Data()
    defaults: Annotated[
        dict[str, Any],
        Meta(
            description="values for every learner that does not give its own; kinds other than mach take batch_size, "
            "steps and resources of them"
        ),
    ] = field(default_factory=dict)
    learners: Annotated[dict[Name, Learner], Meta(min_length=1, description="the learners, by name")]
    record: Record = Record()
    mechanics: Mechanics = Mechanics()
    checkpoint: Checkpoint = Checkpoint()
    supervise: Supervise = Supervise()

    @property
    def members(self) -> dict[str, Learner]:
        """What each actor trains, by the actor's name: workers that go together are worker/0, worker/1, ..."""
        made: dict[str, Learner] = {}
        for name, learner in self.learners.items():
            count = self.groups[name].replicas if name in self.groups else 0
            made |= {member(name, i): learner for i in range(count)} or {name: learner}
        return made

    @property
    def groups(self) -> dict[str, AnyLearner]:
        """The workers that there are several of."""
        return {name: worker for name, worker in self.workers.items() if worker.replicas > 1}

    @property
    def machs(self) -> dict[str, Mach]:
        """The learners of kind mach: those that have edges."""
        return {name: learner for name, learner in self.learners.items() if isinstance(learner, Mach)}

    @property
    def workers(self) -> dict[str, AnyLearner]:
        """The learners of all other kinds: random bases, and what they are compared with."""
        return {name: learner for name, learner in self.learners.items() if not isinstance(learner, Mach)}

    def children_of(self, name: str) -> tuple[str, ...]:
        """Names of the learners that `name` asks for embeddings, in the order of concatenation."""
        learner = self.learners[group_of(name)]
        if not isinstance(learner, Mach):
            return ()
        return (learner.child,) if learner.child else learner.children

    def parents_of(self, name: str) -> tuple[str, ...]:
        """Names of the learners that ask `name`, in the order of the file."""
        return tuple(other for other in self.learners if name in self.children_of(other))

    def gradient_rows_of(self, name: str) -> int:
        """Rows of gradients that `name` gets at most in one step: the batches of those parents that send any."""
        above = [self.machs[parent] for parent in self.parents_of(name)]
        return sum(parent.batch_size for parent in above if parent.exchange.gradients)

    def around(self, name: str) -> tuple[str, ...]:
        """Names of its children and parents."""
        return (*self.children_of(name), *self.parents_of(name))
