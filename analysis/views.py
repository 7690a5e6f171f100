"""Which of a run's figures make which picture. A view of a run in which it has nothing to show is empty.

Staleness and fall-backs are there with Mach learners, correlation and coordinates with random bases: views look for
the figures, not for the kind of learner.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from analysis.pictures import Line, Panel, Part, Row, Sheet
from analysis.table import ACCURACIES, Learner, Run, Series, sampled, speed, thinned

POINTS = 500
"""Of a line; more are averaged."""
SPEED_POINTS, SPEED_SECONDS = 100, 0.5
"""Of a line of speed: how many at most, and over how long each is counted at least."""
STEPS = "training, steps done"
SECONDS = "time since the first record of the run, seconds"
SHARE = "accuracy, share of rows"
FAULTS = ("lost", "late", "refused", "dropped", "clipped")


class View(NamedTuple):
    """One picture of `machworks analyse`."""

    title: str
    needs: str  #: what must be recorded, in words
    look: Callable[[Run], Sequence[Part]]


# ---------------------------------------------------------------- learning


def curves(run: Run) -> Sequence[Part]:
    """Accuracy and loss on held-out rows, with the child and with the synthetic input, and the training loss."""
    panels = [
        _panel(run, "accuracy on validation rows", SHARE, "validation/accuracy"),
        _panel(run, "loss on validation rows", "mean cross-entropy, nats", "validation/loss"),
        _panel(run, "accuracy on training batches", SHARE, "train/accuracy"),
        _panel(run, "loss on training batches", "mean cross-entropy, nats", "train/loss"),
    ]
    return [panel for panel in panels if panel.lines]


def clock(run: Run) -> Sequence[Part]:
    """Accuracy against the clock: what asynchrony is for."""
    begun, lines = begin(run), []
    for colour, learner in enumerate(run.learners):
        for figure, series in learner.figures.items():
            if figure.startswith("validation/accuracy"):
                way = figure.removeprefix("validation/accuracy").replace("/", ", ")
                shown = thinned(series, POINTS)
                times = np.interp(shown.steps, *learner.times) - begun
                lines.append(
                    Line(learner.name + way, times, shown.values, colour, "beside" if "synth" in way else "measured")
                )
    panel = Panel("accuracy on validation rows", SECONDS, SHARE, tuple(lines))
    return [panel] if lines else []


def progress(run: Run) -> Sequence[Part]:
    """Steps against the clock: who is faster, who stood still."""
    begun, steps, speeds = begin(run), [], []
    for colour, learner in enumerate(run.learners):
        taken = sampled(learner.times, POINTS)
        steps.append(Line(learner.name, taken.values - begun, taken.steps, colour))
        gone = speed(learner.times, SPEED_POINTS, SPEED_SECONDS)
        speeds += [Line(learner.name, gone.steps, gone.values, colour)] if len(gone.steps) else []
    panels = [
        Panel("steps against time", SECONDS, STEPS, tuple(steps)),
        Panel(f"speed, over {SPEED_SECONDS:g} s or more", STEPS, "speed, steps per second", tuple(speeds)),
    ]
    return [panel for panel in panels if panel.lines]


def attribution(run: Run) -> Sequence[Part]:
    """What a learner's own inputs and its children's embeddings are worth to it."""
    shares = _panel(run, "integrated gradients", "worth, share of all attributions", "integrated_gradients")
    scores = _panel(run, "pruning score", "change of the loss if it were removed, nats", "pruning")
    return [panel for panel in (shares, scores) if panel.lines]


# ---------------------------------------------------------------- exchange


def exchange(run: Run) -> Sequence[Part]:
    """Asynchrony: how old what arrives is, and how often nothing does."""
    panels = [
        _panel(run, "staleness of what is used", "age, steps of its sender or receiver", "staleness"),
        _counted(run, "fall-backs on the synthetic input", "share of all steps so far", ("fallback_share",)),
        _counted(run, "gradients of parents that were applied", "gradients, count so far", ("applied",)),
        _counted(run, "messages lost, late, refused, dropped or clipped", "messages, count so far", FAULTS),
    ]
    return [panel for panel in panels if panel.lines]


def communication(run: Run) -> Sequence[Part]:
    """What each learner sent and received, and what that was worth."""
    columns: tuple[tuple[str, Callable[[Learner], float]], ...] = (
        ("steps", lambda one: one.step),
        ("sent inline, B", lambda one: _bytes(one, "sent_inline")),
        ("sent by store, B", lambda one: _bytes(one, "sent_store")),
        ("received inline, B", lambda one: _bytes(one, "received_inline")),
        ("received by store, B", lambda one: _bytes(one, "received_store")),
        ("payload of updates, B", lambda one: _bytes(one, "updates")),
        ("sent per step, B", _sent_per_step),
        ("compression, times", lambda one: _mean(one, "update/compression")),
        ("answers used, %", _used),
        ("gradients applied", lambda one: one.last("exchange/applied")),
        ("accuracy, %", _accuracy),
    )
    table = [[value(learner) for _, value in columns] for learner in run.learners]
    known = [i for i in range(len(columns)) if not all(np.isnan(row[i]) for row in table)]
    if not any("B" in columns[i][0] for i in known):
        return []
    rows: tuple[Row, ...] = tuple(
        (learner.name, *(row[i] for i in known)) for learner, row in zip(run.learners, table, strict=True)
    )
    return [Sheet("", ("learner", *(columns[i][0] for i in known)), rows)]


def _bytes(learner: Learner, way: str) -> float:
    """All of them where the learner has ended, else as of its last record."""
    return learner.bytes.get(way, learner.last(f"bytes/{way}"))


def _sent_per_step(learner: Learner) -> float:
    ways = (_bytes(learner, way) for way in ("sent_inline", "sent_store", "updates"))
    known = [count for count in ways if not np.isnan(count)]
    return sum(known) / learner.step if known and learner.step else float("nan")


def _used(learner: Learner) -> float:
    return 100.0 * (1.0 - learner.last("exchange/fallback_share"))


def _accuracy(learner: Learner) -> float:
    return next((100.0 * learner.last(figure) for figure in ACCURACIES if figure in learner.figures), float("nan"))


def _mean(learner: Learner, figure: str) -> float:
    return float(np.nanmean(learner.figures[figure].values)) if figure in learner.figures else float("nan")


# ---------------------------------------------------------------- random bases


def correlation(run: Run) -> Sequence[Part]:
    """The cosine between the way down and the gradient, by tensor; one panel per learner."""
    return _by_learner(run, "correlation", "update and gradient", "cosine; 1 is straight down")


def coordinates(run: Run) -> Sequence[Part]:
    """How the coordinates are distributed, and what rounding does to them."""
    names = {
        "rms": ("root mean square", "coordinate, units of weight", True),
        "mean": ("mean", "coordinate, units of weight", False),
        "kurtosis": ("kurtosis (3: normal)", "ratio, fourth moment / variance squared", False),
        "positive": ("sign balance", "above 0, share of the coordinates", False),
        "error": ("what shaping and rounding changed", "ratio, |c - sent| / |c|", False),
        "zero": ("sent as 0", "zeros, share of the coordinates", False),
        "clipped": ("at the limit of their type", "clipped, share of the coordinates", False),
    }
    panels = [
        _panel(run, title, unit, f"coordinates/{name}")._replace(log_y=log)
        for name, (title, unit, log) in names.items()
    ]
    return [panel for panel in panels if panel.lines]


def updates(run: Run) -> Sequence[Part]:
    """How far a round moves the weights beside their size, and that size; one panel each per learner."""
    moved = _by_learner(run, "moved", "length of the update", "ratio, |update| / |weights|")
    weights = _by_learner(run, "weights", "size of the weights", "root mean square, units of weight")
    return [panel._replace(log_y=True) for pair in zip(moved, weights, strict=True) for panel in pair]


# ---------------------------------------------------------------- common


def begin(run: Run) -> float:
    """When the first record was made, seconds since 1970."""
    return min(float(learner.times.values[0]) for learner in run.learners if learner.step)


def _by_learner(run: Run, heading: str, title: str, unit: str) -> list[Panel]:
    """A panel for each learner that has figures below a heading, by tensor; `all` first, in its own colour."""
    found = []
    for learner in run.learners:
        tensors = learner.under(heading)
        lines = [_line(name, series, i + ("all" not in tensors)) for i, (name, series) in enumerate(tensors.items())]
        if lines:
            found.append(Panel(f"{title}: {learner.name}", STEPS, unit, tuple(lines)))
    return found


def _panel(run: Run, title: str, unit: str, figure: str) -> Panel:
    """A figure of all learners, and those one level below it (.../child, .../synthetic); these differ in style.

    A learner without children has one way only, and its name says enough.
    """
    lines = []
    for colour, learner in enumerate(run.learners):
        if figure in learner.figures:
            lines.append(_line(learner.name, learner.figures[figure], colour))
        ways = sorted(learner.under(figure).items())
        for i, (way, series) in enumerate(ways):
            label = f"{learner.name}, {way}" if learner.asks or len(ways) > 1 else learner.name
            lines.append(_line(label, series, colour, "beside" if i % 2 else "measured"))
    return Panel(title, _averaged(lines, run, figure), unit, tuple(lines))


def _counted(run: Run, title: str, unit: str, names: tuple[str, ...]) -> Panel:
    """What the exchange has counted so far, where it is not 0."""
    found = [
        (i, one.name, name, one.figures.get(f"exchange/{name}")) for i, one in enumerate(run.learners) for name in names
    ]
    counted = [entry for entry in found if entry[3] is not None and entry[3].values[-1] > 0]
    lines = []
    for n, (i, learner, name, series) in enumerate(counted):
        assert series is not None
        label, colour = (learner, i) if len(names) == 1 else (f"{learner}, {name}", n)
        lines.append(Line(label, *sampled(series, POINTS), colour))
    return Panel(title, STEPS, unit, tuple(lines))


def _line(name: str, series: Series, colour: int, style: str = "measured") -> Line:
    shown = thinned(series, POINTS)
    return Line(name, shown.steps, shown.values, colour, style)


def _averaged(lines: list[Line], run: Run, figure: str) -> str:
    """The name of the axis of steps; it says where points are means."""
    most = max(
        (len(s.steps) for one in run.learners for name, s in one.figures.items() if name.startswith(figure)), default=0
    )
    return f"{STEPS} (a point is the mean of up to {-(-most // POINTS)})" if lines and most > POINTS else STEPS


VIEWS = {
    "curves": View("Learning curves", "accuracies and losses", curves),
    "clock": View("Accuracy against time", "accuracies on validation rows", clock),
    "progress": View("Progress", "steps", progress),
    "exchange": View("Exchange between learners", "staleness and fall-backs: a chain of Mach learners", exchange),
    "communication": View("Communication", "bytes", communication),
    "attribution": View("Attribution", "attributions (record: attribution)", attribution),
    "correlation": View("Correlation of updates with the gradient", "correlations: random bases", correlation),
    "coordinates": View("Coordinates", "coordinates: random bases", coordinates),
    "updates": View("Updates and weights", "update magnitudes: random bases", updates),
}
