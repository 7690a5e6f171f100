"""Pictures as values: what is drawn, and in the table beside it, is one and the same. Then the one way to draw them.

No display is needed: figures are made without pyplot.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Row = tuple[Union[str, float], ...]
STYLES = {"measured": "-", "beside": "--", "theory": "--"}
FEW = 12
"""A line of fewer points has them marked: one or two, or one between two that are unknown, would not be seen."""
MANY = 12
"""More lines than that have their legend beside the panel, which it would hide."""


class Line(NamedTuple):
    """One line of a panel."""

    name: str  #: in the legend
    x: Numbers
    y: Numbers
    colour: int = 0  #: lines of one learner share it
    style: str = "measured"  #: one of STYLES; theory is in black


class Panel(NamedTuple):
    """Lines over two axes."""

    title: str
    x: str  #: what the axis shows, with its unit
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    bounds: Optional[tuple[float, float]] = None  #: of y


class Map(NamedTuple):
    """Values over a plane, as colours."""

    title: str
    x: str
    y: str
    colours: str  #: what they show, with its unit
    x_values: Numbers  #: [C]
    y_values: Numbers  #: [R]
    values: Numbers  #: [R, C]
    signed: bool = False  #: whether 0 lies in the middle of the colours


class Sheet(NamedTuple):
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


Part = Union[Panel, Map, Sheet]


def draw(title: str, parts: Sequence[Part]) -> Figure:
    """One figure of several parts, two beside one another."""
    across = min(2, len(parts))
    down = -(-len(parts) // across)
    height = 4.0 * down if not all(isinstance(part, Sheet) for part in parts) else 1.0 + 0.35 * _rows(parts)
    figure = Figure(figsize=(6.4 * across if across > 1 else 9.0, height + 0.5), layout="constrained")
    figure.suptitle(title)
    for place, part in enumerate(parts):
        axes = figure.add_subplot(down, across, place + 1)
        axes.set_title(part.title, fontsize="medium")
        if isinstance(part, Panel):
            _panel(axes, part)
        elif isinstance(part, Map):
            _map(figure, axes, part)
        else:
            _sheet(axes, part)
    return figure


def _rows(parts: Sequence[Part]) -> int:
    return max(len(part.rows) for part in parts if isinstance(part, Sheet))


def _panel(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        axes.plot(
            line.x,
            line.y,
            label=line.name,
            color="black" if line.style == "theory" else f"C{line.colour % 10}",
            linestyle=STYLES[line.style],
            marker="o" if len(line.x) < FEW else "",
            markersize=4,
            fillstyle="none" if line.style == "beside" else "full",
            linewidth=1.2,
        )
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    if panel.bounds:
        axes.set_ylim(*panel.bounds)
    axes.grid(alpha=0.3)
    if len(panel.lines) > MANY:
        axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        axes.legend(fontsize="small")


def _map(figure: Figure, axes: Any, drawn: Map) -> None:
    largest = float(np.nanmax(np.abs(drawn.values)))
    limits = {"vmin": -largest, "vmax": largest, "cmap": "RdBu_r"} if drawn.signed else {"cmap": "viridis"}
    mesh = axes.pcolormesh(drawn.x_values, drawn.y_values, drawn.values, shading="nearest", rasterized=True, **limits)
    if not drawn.signed:
        axes.contour(drawn.x_values, drawn.y_values, drawn.values, levels=10, colors="white", linewidths=0.5)
    axes.set(xlabel=drawn.x, ylabel=drawn.y, aspect="equal")
    figure.colorbar(mesh, ax=axes, label=drawn.colours)


def _sheet(axes: Any, sheet: Sheet) -> None:
    axes.axis("off")
    cells = [[cell(value) for value in row] for row in sheet.rows]
    table = axes.table(cells, colLabels=sheet.columns, loc="center", cellLoc="right")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.auto_set_column_width(list(range(len(sheet.columns))))
    table.scale(1.0, 1.4)


def cell(value: Union[str, float]) -> str:
    """As it stands in a table for people."""
    if isinstance(value, str):
        return value
    if np.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


# ---------------------------------------------------------------- the table beside a picture


def tidy(parts: Sequence[Part]) -> list[Row]:
    """One number a row, with what it is of; a sheet as it stands. The first row names the columns.

    Panels and maps: panel, line, x, y, value. A line's value is its y; a map's is at (x, y), and its line is empty.
    """
    if all(isinstance(part, Sheet) for part in parts):
        (sheet,) = parts
        assert isinstance(sheet, Sheet)
        return [sheet.columns, *sheet.rows]
    rows = [row for part in parts for row in _numbers(part)]
    return [("panel", "line", "x", "y", "value"), *rows]


def _numbers(part: Part) -> Iterator[Row]:
    if isinstance(part, Panel):
        for line in part.lines:
            yield from ((part.title, line.name, float(x), "", float(y)) for x, y in zip(line.x, line.y, strict=True))
    elif isinstance(part, Map):
        for y, row in zip(part.y_values, part.values, strict=True):
            yield from (
                (part.title, "", float(x), float(y), float(value)) for x, value in zip(part.x_values, row, strict=True)
            )


def save(folder: Path, name: str, title: str, parts: Sequence[Part]) -> list[Path]:
    """Write a picture as PNG and SVG and its numbers as CSV; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, paths = draw(title, parts), [folder / f"{name}.{kind}" for kind in ("png", "svg", "csv")]
    for path in paths[:2]:
        figure.savefig(path, dpi=130)
    with paths[2].open("w", newline="") as file:
        csv.writer(file).writerows([["" if cell != cell else cell for cell in row] for row in tidy(parts)])  # NaN
    return paths
