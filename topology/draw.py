"""The graph of a run: for a terminal, as Mermaid, as DOT, and as a picture.

Parents stand above their children; an arrow goes from who asks to who is asked. Along it embeddings come up and, unless
`exchange.gradients` is false, gradients go down.
"""

from typing import TYPE_CHECKING, Any

from learners.options import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def text(topology: Topology) -> str:
    """A tree from the learners that nobody asks down to those that ask nobody."""
    lines: list[str] = []
    drawn: set[str] = set()

    def add(name: str, head: str, below: str) -> None:
        again = name in drawn and bool(topology.children_of(name))
        lines.append(
            f"{head}{name}  {', '.join(_facts(topology, name))}{'  (its children are above)' if again else ''}"
        )
        drawn.add(name)
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
    facts = [
        f"hidden {' x '.join(map(str, learner.hidden))}",
        f"embedding {learner.embedding}",
        f"{learner.steps} steps of {learner.batch_size}",
    ]
    wanted = ", ".join(f"{resource} {amount:g}" for resource, amount in learner.resources.items())
    return [*facts, wanted] if wanted else facts


def _label(topology: Topology, up: str, down: str) -> str:
    back = "gradients down" if topology.learners[up].exchange.gradients else "no gradients"
    return f"{topology.learners[down].embedding} wide up, {back}"


#: inches: of a box, and between boxes
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 2.3, 1.0, 0.5, 0.75
_INK, _LINE, _FILL = "#1f2933", "#52606d", "#e4eef7"


def _canvas(topology: Topology) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = levels(topology)
    widest = max(map(len, rows))
    width = max(widest * (_WIDTH + _ACROSS) + _ACROSS, 4.0)
    height = len(rows) * (_HEIGHT + _DOWN) + 0.4
    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    axes.text(width / 2, height - 0.3, topology.name, ha="center", va="center", fontsize=12, weight="bold", color=_INK)
    place = {}
    for i, row in enumerate(rows):
        left = (width - len(row) * (_WIDTH + _ACROSS)) / 2
        for j, name in enumerate(row):
            place[name] = (left + (j + 0.5) * (_WIDTH + _ACROSS), height - 0.6 - _HEIGHT / 2 - i * (_HEIGHT + _DOWN))
    depth = {name: i for i, row in enumerate(rows) for name in row}
    for up, down in _edges(topology):
        _arrow(axes, place[up], place[down], depth[down] - depth[up] > 1, _label(topology, up, down))
    for name, (x, y) in place.items():
        _box(axes, x, y, name, _facts(topology, name))
    return canvas


def _box(axes: Any, x: float, y: float, name: str, facts: list[str]) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    style = "round,pad=0,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch(corner, _WIDTH, _HEIGHT, style, facecolor=_FILL, edgecolor=_LINE, lw=1.2, zorder=3))
    shown = name if len(name) <= 24 else name[:23] + "…"
    axes.text(x, y + 0.32, shown, ha="center", va="center", fontsize=10.5, weight="bold", color=_INK, zorder=4)
    for i, fact in enumerate(facts[:4]):
        axes.text(x, y + 0.1 - i * 0.17, fact[:36], ha="center", va="center", fontsize=7.5, color=_INK, zorder=4)


def _arrow(axes: Any, above: tuple[float, float], below: tuple[float, float], long: bool, label: str) -> None:
    from matplotlib.patches import FancyArrowPatch

    start, end = (above[0], above[1] - _HEIGHT / 2), (below[0], below[1] + _HEIGHT / 2)
    bend = "arc3,rad=0.35" if long else "arc3"  # around the boxes between
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=12, color=_LINE, lw=1.3, connectionstyle=bend, zorder=2
        )
    )
    if not long:
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        under = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.text(x, y, label, ha="center", va="center", fontsize=7, color=_LINE, zorder=5, bbox=under)
