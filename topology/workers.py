"""What is known of the workers of a run (every kind but mach) before anything starts: defaults, faults, sizes.

All of it follows from the options, from the shape of the data, which is known of named sets before they are read, and
from the networks of the user's, which must be built (`topology.own`).
Light on purpose: no TensorFlow, no Ray, no compiled kernels. Letters: D weights, d directions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Optional

from msgspec.structs import replace

from learners.layout import Network, network
from learners.options import Topology
from learners.rbd.coordinates import payload_bytes
from learners.rbd.defaults import filled, layout, round_steps
from learners.rbd.options import AnyLearner, Local, Rbd, Sgd
from learners.rbd.refusals import arithmetic, refusals
from topology.check import Finding, Unfit

Example = tuple[int, ...]
Networks = Mapping[str, Network]
NONE: Networks = MappingProxyType({})


def completed(topology: Topology, example: Example, classes: int, own: Networks = NONE) -> Topology:
    """With the defaults of every worker put in.

    Args:
        example, classes: of the data set: shape of an example, number of classes.
        own: the networks of the user's (`own.networks`), by learner.

    Raises:
        Unfit: options that make no sense together or with this data.
    """
    if found := list(faults(topology, example, classes, own)):
        raise Unfit(found)
    made = {
        name: filled(learner, of(name, learner, example, classes, own).size)
        for name, learner in topology.workers.items()
    }
    return replace(topology, learners={**topology.learners, **made})


def of(name: str, learner: AnyLearner, example: Example, classes: int, own: Networks = NONE) -> Network:
    """The network of a worker; ValueError where data and network do not go together."""
    return own[name] if learner.has_own_network else network(learner.network, example, classes)


def faults(
    topology: Topology, example: Optional[Example], classes: int, own: Optional[Networks] = None
) -> Iterator[Finding]:
    """(key path, message) for all that makes no sense together, as far as data and networks are known.

    Args:
        example: None where the data's shape is not known.
        own: None where the user's networks are not.
    """
    for name, learner in topology.workers.items():
        made = None
        try:
            if own is not None if learner.has_own_network else example is not None:
                made = of(name, learner, example or (), classes, own or NONE)
        except ValueError as error:
            yield f"learners.{name}.network", str(error).removeprefix("network: ")
            continue
        learner = filled(learner, made.size if made else 1)  # only a rate depends on the size
        found = [*refusals(learner, made.tensors if made else ()), *_rounds(learner)]
        yield from ((f"learners.{name}.{path}", message) for path, message in found)


def _rounds(learner: AnyLearner) -> Iterator[Finding]:
    """A run is whole rounds: what is between two updates is not known to others, nor saved."""
    steps = round_steps(learner)
    if not isinstance(learner, Sgd) and learner.exchange.budget:
        return  # rounds are as long as it says, and the last one as is left
    if learner.steps % steps:
        below = learner.steps - learner.steps % steps
        near = " or ".join(str(count) for count in (below, below + steps) if count)
        yield "steps", f"{learner.steps} are not whole rounds of {steps} steps each; {near} are"


# ---------------------------------------------------------------- sizes


@dataclass(frozen=True)
class Update:
    """What a worker says at a time."""

    learner: str
    #: d, in all compartments together; of whole weights or gradients D
    coordinates: int
    precision: str
    #: training steps between two updates
    every: int
    #: bytes of an update, without header
    size: int
    #: exact or float: whether replicas hold integers, and why
    arithmetic: str
    why: str
    #: workers that go together
    replicas: int = 1


def update(name: str, learner: AnyLearner, made: Network) -> Update:
    """What a worker with filled options says at a time. Single gradient steps, which take 4 bytes a weight, apart."""
    mode, why = arithmetic(learner)
    if isinstance(learner, Sgd):
        dimensions, precision, size = [made.size], "float32", _patch(made.size)
    else:
        precision = learner.exchange.precision or "float32"
        dimensions = _dimensions(learner, made)
        size = payload_bytes(dimensions, precision) + _patches(learner, made)
    return Update(name, sum(dimensions), precision, round_steps(learner), size, mode, why, learner.replicas)


def _dimensions(learner: Rbd | Local, made: Network) -> list[int]:
    if isinstance(learner, Local):
        return [made.size]
    if learner.basis.distribution == "gradients" or learner.basis.learn:
        return [learner.basis.dimensions or 1]
    return [part.dimensions for part in layout(learner, made.tensors)]


def _patches(learner: AnyLearner, made: Network) -> int:
    """Bytes of the layers that take gradient steps."""
    plain = learner.update.plain
    layers = [t for t in made.tensors if plain.layer is not None and (t.layer == plain.layer) != plain.others]
    return sum(_patch(tensor.stop - tensor.start) for tensor in layers)


def _patch(weights: int) -> int:
    return 8 + 4 * weights


def memory(learner: AnyLearner, made: Network) -> int:
    """Bytes of a worker's state: weights, what it has not shared, kept directions; of filled options."""
    exact = arithmetic(learner)[0] == "exact"
    each = 8 if exact else 8 if learner.update.momentum else 4  # theta_0 and A; theta and velocity
    if not isinstance(learner, Sgd):
        each += {"local": 8 if exact else 4, "leaky": 4}.get(learner.exchange.residual or "", 0)
    if isinstance(learner, Rbd) and (learner.basis.keep or learner.basis.distribution == "gradients"):
        each += 4 * (learner.basis.dimensions or 1)
    return each * made.size
