"""What is known of the workers of a run (every kind but mach) before anything starts: defaults, faults, sizes.

All of it follows from the options, from the shape of the data, which is known of named sets before they are read, and
from the networks of the user's, which must be built (`topology.own`).
Light on purpose: no TensorFlow, no Ray, no compiled kernels. Letters: D weights, d directions.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Optional

from msgspec.structs import replace

from learners.layout import Network, network
from learners.options import Topology
from learners.rbd.coordinates import payload_bytes
from learners.rbd.defaults import filled, layout, round_steps
from learners.rbd.options import AnyLearner, Local, Nes, Rbd, Sgd
from learners.rbd.refusals import SECTIONS, arithmetic, refusals
from topology.findings import Finding, Unfit, sound

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
    topology: Topology,
    example: Optional[Example],
    classes: int,
    own: Optional[Networks] = None,
    faulty: Set[str] = frozenset(),
) -> Iterator[Finding]:
    """(key path, message) for all that makes no sense together, as far as data and networks are known.

    Args:
        example: None where the data's shape is not known.
        own: None where the user's networks are not.
        faulty: as `check.check` has it.
    """
    for name, learner in topology.workers.items():
        if not sound(faulty, name):
            continue  # refused already
        made = None
        try:
            if not sound(faulty, name, "network"):
                pass
            elif own is not None if learner.has_own_network else example is not None:
                made = of(name, learner, example or (), classes, own or NONE)
        except ValueError as error:
            yield f"learners.{name}.network", str(error).removeprefix("network: ")
            continue
        learner = filled(learner, made.size if made else 1)  # only a rate depends on the size
        sections = {section for section in SECTIONS if not sound(faulty, name, section)}
        found = refusals(learner, made.tensors if made else (), sections)
        if sections.isdisjoint(("steps", "exchange", "coordinates")):
            found += _rounds(learner)
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


# ---------------------------------------------------------------- what may surprise


def notes(topology: Topology, example: Optional[Example], classes: int, own: Optional[Networks] = None) -> list[str]:
    """What is no fault and may surprise all the same, a line each; the arguments are those of `faults`.

    Args:
        topology: as it was given: with defaults put in, nobody knows any more which they are.
    """
    found = []
    for name, learner in topology.workers.items():
        known = own is not None if learner.has_own_network else example is not None
        made = of(name, learner, example or (), classes, own or NONE) if known else None
        if changed := _other_defaults(learner, made):
            residual = f"exchange.residual: {attrgetter('exchange.residual')(learner)}"
            found.append(f"learners.{name}: {residual} changes what the file leaves out: {'; '.join(changed)}")
        if isinstance(learner, Nes):
            count = evaluations(filled(learner, made.size), made) if made else learner.basis.dimensions or 250
            found.append(
                f"learners.{name}: kind: nes takes {count:,} evaluations of the loss a step, one for each direction, "
                "where other kinds take one gradient: it is far slower"
            )
    return found


_DEPENDENT = (
    "basis.dimensions", "exchange.every", "exchange.precision", "update.rate", "update.schedule", "update.weight",
)  # fmt: skip


def _other_defaults(learner: AnyLearner, made: Optional[Network]) -> list[str]:
    """Defaults of rbd that are others because of the residual that was given: `basis.dimensions 250, not 1,000`."""
    if type(learner) is not Rbd:
        return []
    size = made.size if made else 1
    usual = filled(replace(learner, exchange=replace(learner.exchange, residual=None)), size)
    left_out = [path for path in _DEPENDENT if attrgetter(path)(learner) is None]
    values = [(path, attrgetter(path)(filled(learner, size)), attrgetter(path)(usual)) for path in left_out]
    known = [one for one in values if made or one[0] != "update.rate"]
    return [f"{path} {_said(value)}, not {_said(other)}" for path, value, other in known if value != other]


def _said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


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
    #: of the loss, of the whole network, in a training step; 0 where a gradient is taken instead
    evaluations: int = 0


def update(name: str, learner: AnyLearner, made: Network) -> Update:
    """What a worker with filled options says at a time. Single gradient steps, which take 4 bytes a weight, apart."""
    mode, why = arithmetic(learner)
    if isinstance(learner, Sgd):
        dimensions, precision, size = [made.size], "float32", _patch(made.size)
    else:
        precision = learner.exchange.precision or "float32"
        dimensions = _dimensions(learner, made)
        size = payload_bytes(dimensions, precision) + _patches(learner, made)
    about = (learner.replicas, evaluations(learner, made))
    return Update(name, sum(dimensions), precision, round_steps(learner), size, mode, why, *about)


def evaluations(learner: AnyLearner, made: Network) -> int:
    """Losses that a step takes: nes knows no gradient, and looks along each direction; of filled options."""
    return sum(_dimensions(learner, made)) if isinstance(learner, Nes) else 0


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
