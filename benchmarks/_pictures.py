"""Pictures of figures, into the documentation."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
"""Of those that the README shows."""
COLOURS = ("#1b6ca8", "#c8553d", "#2a9d5c", "#7d4fa8", "#b08900", "#52606d", "#d1679a", "#2aa1a8")
Curve = Sequence[tuple[float, float]]


def lines(
    path: Path,
    title: str,
    curves: Mapping[str, Sequence[Curve]],
    axes: tuple[str, str],
    *,
    logarithmic: bool = False,
    low: float | None = None,
) -> None:
    """Draw all curves of each label in one colour, into a PNG file.

    A curve of one point is a point. `logarithmic` is of the x axis; `low` is where the y axis begins.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=110, facecolor="white", layout="constrained")
    canvas, plot = FigureCanvasAgg(figure), figure.add_subplot()
    styles = itertools.cycle(itertools.product(("-", "--"), COLOURS))
    for (label, several), (line, colour) in zip(curves.items(), styles, strict=False):
        for number, curve in enumerate(several):
            marker = "o" if len(curve) < 12 else ""
            shown = "" if number else label
            plot.plot(*zip(*curve, strict=True), line, color=colour, marker=marker, markersize=4, lw=1.2, label=shown)
    plot.set(title=title, xlabel=axes[0], ylabel=axes[1], xscale="log" if logarithmic else "linear")
    plot.set_ylim(bottom=low)
    plot.grid(alpha=0.25)
    plot.legend(fontsize=8, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_figure(path, metadata={"Software": None})
