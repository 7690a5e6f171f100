"""What a run will take, before anything starts: parameters, memory, bytes on each edge, placement, what is lacking.

Pure numbers from a `Topology`, the shape of its data and what the hosts say they have.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from learners.footprint import BYTES, INLINE_LIMIT, SLOTS, inline, threads
from learners.layout import Network
from learners.options import Topology, group_of, kind_of
from learners.rbd.options import STEPS_A_SECOND, Sgd
from topology.placement import Host, Lack, listed, missing, needs_of, placed

if TYPE_CHECKING:
    from rich.console import Group

    from topology.workers import Update

__all__ = ["Edge", "Host", "Lack", "Plan", "Row", "as_json", "missing", "plan", "render", "size", "weights"]

#: bytes of a weight, a moment, an embedding's entry (float32) and of a row's number (int32)
FLOAT, ROW = 4, 4


@dataclass(frozen=True)
class Row:
    """One learner."""

    learner: str
    kind: str
    children: tuple[str, ...]
    batch_size: int
    steps: int
    #: weights of each part
    encoder: int
    head: int
    synthetic: int
    #: weights of a network that is one part
    network: int
    #: bytes of float32 weights and of the optimiser's state for every objective; of a worker's replica and residual
    memory: int
    cpus: float
    threads: int
    #: GPUs and custom resources, by Ray's names
    resources: dict[str, float]
    #: where it fits, if hosts are known; Ray decides
    host: str | None = None

    @property
    def parameters(self) -> int:
        """Weights of all parts."""
        return self.encoder + self.head + self.synthetic + self.network


@dataclass(frozen=True)
class Edge:
    """What a parent and its child exchange in one step of the parent, in bytes of arrays."""

    parent: str
    child: str
    #: parent to child: the rows that are asked for, by number or as features
    request: int
    #: child to parent: their embeddings
    answer: int
    #: parent to child: gradients and, again, the rows they belong to; 0 where none are sent
    gradient: int
    #: of all these, what travels within calls and what goes through the object store
    inline: int
    store: int
    #: what this edge tells the child's host about the parent's data
    reveals: str


@dataclass(frozen=True)
class Plan:
    """What a run will take."""

    name: str
    features: int
    classes: int
    rows: tuple[Row, ...]
    edges: tuple[Edge, ...]
    #: what each worker says at a time
    updates: tuple["Update", ...]
    #: what data leaves which host, in words
    data: str
    #: what may surprise, a line each
    notes: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = field(default=())

    @property
    def parameters(self) -> int:
        """Weights of all learners together."""
        return sum(row.parameters for row in self.rows)

    @property
    def memory(self) -> int:
        """Bytes of all learners together."""
        return sum(row.memory for row in self.rows)


def plan(
    topology: Topology,
    example: Sequence[int],
    classes: int,
    itemsize: int,
    hosts: Sequence[Host] = (),
    inline_limit: int = INLINE_LIMIT,
    own: Optional[Mapping[str, Network]] = None,
    notes: Sequence[str] = (),
) -> Plan:
    """What the run will take.

    Args:
        topology: with the defaults of its workers put in (`workers.completed`).
        example, classes: of the data set: shape of an example, number of classes.
        itemsize: bytes of one feature as the data set stores it.
        hosts: of the cluster; without them nothing is said of placement.
        inline_limit: bytes of a message from which its arrays go through the object store.
        own: networks of the user's, by learner.
        notes: what may surprise (`workers.notes`), said at the end.
    """
    from topology import workers

    where, lacks = placed(topology, hosts)
    learners, features = topology.learners, math.prod(example)
    networks = {
        name: workers.of(name, learner, tuple(example), classes, own or {})
        for name, learner in topology.workers.items()
    }
    rows = {name: _mach(topology, name, features, classes) for name in topology.machs} | {
        name: _Weights(network=made.size, memory=workers.memory(topology.workers[name], made))
        for name, made in networks.items()
    }
    edges = [
        _edge(topology, above, below, features * itemsize, inline_limit)
        for above in learners
        for below in topology.children_of(above)
    ]
    return Plan(
        name=topology.name,
        features=features,
        classes=classes,
        rows=tuple(_row(topology, name, rows[group_of(name)], where.get(name)) for name in topology.members),
        edges=tuple(edges),
        updates=tuple(workers.update(name, topology.workers[name], made) for name, made in networks.items()),
        data=" ".join([_data(topology, bool(edges)), *_shared(topology)]),
        notes=tuple(notes),
        lacks=tuple(lacks),
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, sums included; bytes throughout."""
    rows = [{**asdict(row), "parameters": row.parameters} for row in plan.rows]
    return {**asdict(plan), "rows": rows, "parameters": plan.parameters, "memory": plan.memory}


def weights(widths: Sequence[int]) -> int:
    """Weights and biases of dense layers of these widths, input first."""
    return sum((above + 1) * below for above, below in itertools.pairwise(widths))


class _Weights(NamedTuple):
    """Of a learner, as in `Row`."""

    memory: int
    encoder: int = 0
    head: int = 0
    synthetic: int = 0
    network: int = 0


def _mach(topology: Topology, name: str, features: int, classes: int) -> _Weights:
    learner = topology.machs[name]
    children = topology.children_of(name)
    below = sum(topology.machs[child].embedding for child in children)
    encoder = weights((features + below, *learner.hidden, learner.embedding))
    head = weights((learner.embedding, classes))
    synthetic = weights((features, *learner.synthetic.hidden, below)) if children else 0
    graded = encoder if topology.gradient_rows_of(name) else 0
    kept = SLOTS[learner.optimizer.name] * (encoder + head + synthetic + graded)
    return _Weights(FLOAT * (encoder + head + synthetic + kept), encoder, head, synthetic)


def _row(topology: Topology, name: str, weights: _Weights, host: str | None) -> Row:
    learner, needs = topology.members[name], needs_of(topology, name)
    cpus = needs.pop("CPU")
    return Row(
        learner=name,
        kind=kind_of(learner),
        children=topology.children_of(name),
        batch_size=learner.batch_size,
        steps=learner.steps,
        **weights._asdict(),
        cpus=cpus,
        threads=threads(cpus),
        resources=needs,
        host=host,
    )


def _edge(topology: Topology, parent: str, child: str, row_bytes: int, limit: int) -> Edge:
    above, below = topology.machs[parent], topology.machs[child]
    private = topology.data.shard == "by_learner"
    request = above.batch_size * (row_bytes if private else ROW)
    numbers = above.batch_size * below.embedding
    answer = numbers * BYTES[below.exchange.precision]
    gradient = (request, numbers * BYTES[above.exchange.precision]) if above.exchange.gradients else ()
    messages = ((request,), (answer,), gradient)
    ways = [way for sizes in messages for way in zip(sizes, inline(sizes, limit), strict=True)]
    return Edge(
        parent=parent,
        child=child,
        request=request,
        answer=answer,
        gradient=sum(gradient),
        inline=sum(size for size, within in ways if within),
        store=sum(size for size, within in ways if not within),
        reveals="features of the rows asked for" if private else "row numbers",
    )


def _data(topology: Topology, edges: bool) -> str:
    said = [_of_chains(topology, edges)] if topology.machs else []
    if topology.groups:
        said.append("Workers send one another updates, and nothing else: rows and labels stay.")
    if topology.workers.keys() - topology.groups.keys():
        said.append("A worker alone sends nothing: its updates are made and counted as they would go to others.")
    return " ".join(said)


def _of_chains(topology: Topology, edges: bool) -> str:
    if not edges:
        return "No learner asks another." if topology.groups else "No learner asks another: nothing leaves a host."
    if topology.data.shard == "by_learner":
        return (
            "Each learner trains on its own part of the rows. The features of the rows that a parent asks for go to "
            "its child's host; embeddings and gradients come and go. Labels stay."
        )
    return "Every host reads all rows itself. Row numbers, embeddings and gradients travel; features and labels stay."


def _shared(topology: Topology) -> Iterator[str]:
    for name, learner in topology.groups.items():
        what = {"sgd": "Gradients", "local": "Rounded weights"}.get(kind_of(learner), "Coordinates")
        way = f"the relay on the driver's host, which keeps them in log/{name} and passes them on to the others"
        yield f"{what} of {learner.replicas} workers of {name} go to {way}."
        if not isinstance(learner, Sgd) and learner.exchange.budget:
            each = f"steps each are those of a worker with {STEPS_A_SECOND:g} a second"
            yield f"{name} keeps to {learner.exchange.budget} a worker: {each}."


# ---------------------------------------------------------------- for people


def size(count: float) -> str:
    """Bytes for people: `262 kB`, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def _number(count: float) -> str:
    """A number for people: `12.6`, `38,448`."""
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


_STYLE: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "box": None, "header_style": "dim"}


def render(plan: Plan) -> "Group":
    """The plan as tables for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    learners = Table(title=f"Learners of {plan.name}: {plan.features} features, {plan.classes} classes", **_STYLE)
    special = any(row.resources for row in plan.rows)
    known = any(row.host for row in plan.rows)
    for head in ("learner", "asks"):
        learners.add_column(head)
    for head in ("batch", "steps", "weights", "memory", "CPUs", "threads"):
        learners.add_column(head, justify="right")
    for head in ("resources",) * special + ("fits on",) * known:
        learners.add_column(head)
    for row in plan.rows:
        numbers = (f"{row.batch_size}", f"{row.steps}", f"{row.parameters:,}", size(row.memory))
        extra = (listed(row.resources) if row.resources else "-",) * special + (row.host or "none",) * known
        cpus = (f"{row.cpus:g}", f"{row.threads}")
        learners.add_row(row.learner, ", ".join(row.children) or "-", *numbers, *cpus, *extra)
    parts: list[Any] = [learners, Text(f"together {plan.parameters:,} parameters, {size(plan.memory)}\n")]
    if plan.edges:
        edges = Table(title="Bytes of arrays in a step of the parent", **_STYLE)
        edges.add_column("parent -> child")
        for head in ("request", "answer", "gradient", "in calls", "object store"):
            edges.add_column(head, justify="right")
        for edge in plan.edges:
            sizes = (edge.request, edge.answer, edge.gradient, edge.inline, edge.store)
            edges.add_row(f"{edge.parent} -> {edge.child}", *(size(part) if part else "-" for part in sizes))
        parts.append(edges)
    if plan.updates:
        updates = Table(title="Updates of workers, in bytes as they go, or would go, to each other worker", **_STYLE)
        updates.add_column("worker")
        for head in ("replicas", "coordinates", "precision", "steps each", "bytes", "bytes a step"):
            updates.add_column(head, justify="right")
        updates.add_column("sums")
        for one in plan.updates:
            cells = [f"{one.replicas}", f"{one.coordinates:,}", one.precision, f"{one.every}", f"{one.size:,}"]
            updates.add_row(one.learner, *cells, _number(one.size / one.every), f"{one.arithmetic}: {one.why}")
        parts.append(updates)
    parts.append(Text(f"\n{plan.data}"))
    parts += [Text(note) for note in plan.notes]
    parts += [Text(f"LACKING  {lack}", style="bold red") for lack in plan.lacks]
    return Group(*parts)
