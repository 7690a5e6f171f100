"""The graph of a run: for a terminal, as Mermaid, as DOT, and as a picture.

Parents stand above their children; an arrow goes from who asks to who is asked. Along it embeddings come up and, unless
`exchange.gradients` is false, gradients go down.
"""

import itertools
from typing import TYPE_CHECKING, Any

from learners.options import Mach, Topology, kind_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def text(topology: Topology) -> str:
    """A tree from the learners that nobody asks down to those that ask nobody."""
    lines: list[str] = []
    drawn: set[str] = set()

    def add(name: str, head: str, below: str) -> None:
        again = name in drawn
        drawn.add(name)
        lines.append(f"{head}{name}  {'drawn above' if again else ', '.join(_facts(topology, name))}")
        children = () if again else topology.children_of(name)
        for i, child in enumerate(children):
            last = i == len(children) - 1
            add(child, f"{below}{'└─ ' if last else '├─ '}", f"{below}{'   ' if last else '│  '}")

    for name in topology.learners:
        if not topology.parents_of(name):
            add(name, "", "")
    return "\n".join(lines)


def mermaid(topology: Topology) -> str:
    """A Mermaid flowchart; nodes are numbered, because names such as `end` mean something to Mermaid."""
    number = {name: f"n{i}" for i, name in enumerate(topology.learners)}
    nodes = [
        f'    {number[name]}["<b>{name}</b><br>{"<br>".join(_facts(topology, name))}"]' for name in topology.learners
    ]
    edges = [f'    {number[up]} -->|"{_label(topology, up, down)}"| {number[down]}' for up, down in _edges(topology)]
    return "\n".join(("flowchart TD", *nodes, *edges)) + "\n"


def dot(topology: Topology) -> str:
    """A Graphviz digraph."""
    nodes = [
        '  "{}" [label="{}"];'.format(name, "\\n".join((name, *_facts(topology, name)))) for name in topology.learners
    ]
    edges = [f'  "{up}" -> "{down}" [label="{_label(topology, up, down)}"];' for up, down in _edges(topology)]
    head = (
        f'digraph "{topology.name}" {{',
        "  rankdir=TB;",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
    )
    return "\n".join((*head, *nodes, *edges, "}")) + "\n"


def picture(topology: Topology) -> "NDArray[np.uint8]":
    """The graph as pixels [H, W, 3]."""
    import numpy as np

    canvas = _canvas(topology)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def png(topology: Topology) -> bytes:
    """The graph as a PNG file."""
    from io import BytesIO

    out = BytesIO()
    _canvas(topology).print_png(out)
    return out.getvalue()


def levels(topology: Topology) -> list[list[str]]:
    """The learners by their distance from the top: every learner is below all of its parents."""
    depth = dict.fromkeys(topology.learners, 0)
    for _ in depth:  # a path has no more links than there are learners, because loops are refused
        for up, down in _edges(topology):
            depth[down] = max(depth[down], depth[up] + 1)
    return [[name for name in depth if depth[name] == level] for level in range(max(depth.values()) + 1)]


def _edges(topology: Topology) -> list[tuple[str, str]]:
    return [(up, down) for up in topology.learners for down in topology.children_of(up)]


def _facts(topology: Topology, name: str) -> list[str]:
    learner = topology.learners[name]
    if isinstance(learner, Mach):
        facts = [f"hidden {' x '.join(map(str, learner.hidden))}", f"embedding {learner.embedding}"]
    else:
        together = f", {learner.replicas} replicas" if learner.replicas > 1 else ""
        facts = [f"{kind_of(learner)} on {learner.network}{together}"]
    facts.append(f"{learner.steps} steps of {learner.batch_size}")
    wanted = ", ".join(f"{resource} {amount:g}" for resource, amount in learner.resources.items())
    return [*facts, wanted] if wanted else facts


def _label(topology: Topology, up: str, down: str) -> str:
    back = "gradients down" if topology.machs[up].exchange.gradients else "no gradients"
    return f"{topology.machs[down].embedding} wide up, {back}"


#: inches: of a box, of the gap that a link leaves on its way past a row, and between them
_WIDTH, _HEIGHT, _GAP, _ACROSS, _DOWN = 2.1, 1.0, 0.8, 0.35, 0.85
_INK, _LINE, _FILL = "#1f2933", "#52606d", "#e4eef7"

#: (x, y) of a box's or a gap's centre, by (parent, child, row) for gaps and (name,) for boxes
_Places = dict[tuple[Any, ...], tuple[float, float]]


def _canvas(topology: Topology) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _slots(topology)
    width = max(4.0, *(sum(map(_across, row)) + _ACROSS for row in rows))
    height = len(rows) * (_HEIGHT + _DOWN) - _DOWN + 0.9
    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    axes.text(width / 2, height - 0.3, topology.name, ha="center", va="center", fontsize=12, weight="bold", color=_INK)
    places = _places(rows, width, height)
    for up, down in _edges(topology):
        between = sorted((slot for slot in places if slot[:2] == (up, down)), key=lambda slot: slot[2])
        way = [places[(up,)], *(places[slot] for slot in between), places[(down,)]]
        _arrow(axes, way, _label(topology, up, down).replace(", ", "\n"))
    for name in topology.learners:
        _box(axes, *places[(name,)], name, _facts(topology, name))
    return canvas


def _slots(topology: Topology) -> list[list[tuple[Any, ...]]]:
    """Rows of boxes and gaps, each row in the order of what is above it, so that few links cross."""
    rows: list[list[tuple[Any, ...]]] = [[(name,) for name in row] for row in levels(topology)]
    depth = {slot[0]: i for i, row in enumerate(rows) for slot in row}
    parents: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {(name,): [] for name in topology.learners}
    for up, down in _edges(topology):
        last: tuple[Any, ...] = (up,)
        for i in range(depth[up] + 1, depth[down]):
            rows[i].append((up, down, i))
            parents[(up, down, i)] = [last]
            last = (up, down, i)
        parents[(down,)].append(last)
    for above, row in itertools.pairwise(rows):
        order = {slot: (i + 0.5) / len(above) for i, slot in enumerate(above)}
        row.sort(key=lambda slot: sum(order[up] for up in parents[slot] if up in order) / len(parents[slot]))
    return rows


def _across(slot: tuple[Any, ...]) -> float:
    return (_WIDTH if len(slot) == 1 else _GAP) + _ACROSS


def _places(rows: list[list[tuple[Any, ...]]], width: float, height: float) -> _Places:
    places: _Places = {}
    for i, row in enumerate(rows):
        x = (width - sum(map(_across, row))) / 2
        for slot in row:
            places[slot] = (x + _across(slot) / 2, height - 0.6 - _HEIGHT / 2 - i * (_HEIGHT + _DOWN))
            x += _across(slot)
    return places


def _box(axes: Any, x: float, y: float, name: str, facts: list[str]) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    style = "round,pad=0,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch(corner, _WIDTH, _HEIGHT, style, facecolor=_FILL, edgecolor=_LINE, lw=1.2, zorder=3))
    top = y + 0.17 * len(facts) / 2
    axes.text(x, top, _cut(name, 22), ha="center", va="center", fontsize=10.5, weight="bold", color=_INK, zorder=4)
    for i, fact in enumerate(facts):
        y = top - 0.22 - i * 0.17
        axes.text(x, y, _cut(fact, 34), ha="center", va="center", fontsize=7.5, color=_INK, zorder=4)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _arrow(axes: Any, way: list[tuple[float, float]], label: str) -> None:
    """A line from the parent's box, straight down through every gap, to the child's box."""
    ends = [(way[0][0], way[0][1] - _HEIGHT / 2)]
    for x, y in way[1:]:
        ends += [(x, y + _HEIGHT / 2), (x, y - _HEIGHT / 2)]
    ends.pop()
    axes.plot(*zip(*ends[:-1], strict=True), color=_LINE, lw=1.3, zorder=2)
    head = {"arrowstyle": "-|>", "color": _LINE, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", ends[-1], ends[-2], arrowprops=head, zorder=2)
    (x0, y0), (x1, y1) = ends[1:3] if len(way) > 2 else ends
    x, y = x0 + 0.55 * (x1 - x0), y0 + 0.55 * (y1 - y0)
    under = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    axes.text(x, y, label, ha="center", va="center", fontsize=7, color=_LINE, zorder=5, bbox=under)
