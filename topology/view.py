"""What a run looks like on a terminal: a live table or plain lines, and the summary at the end."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import compress
from typing import Any, Optional

from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table

from learners.options import group_of, member
from topology.plan import size

Live = Mapping[str, Mapping[str, float]]
LINES_EVERY = 5.0
"""Seconds between two plain lines of a learner."""


class View:
    """Shows a run while it goes on: a table that renews itself on a terminal, lines every few seconds elsewhere.

    Args:
        steps: that each learner will take.
        quiet: whether standard output is reserved (for JSON): everything then goes to standard error.
    """

    def __init__(self, steps: Mapping[str, int], *, plain: bool, quiet: bool) -> None:
        self._steps = dict(steps)
        stream: Any = _Unheard(sys.stderr if quiet else sys.stdout)
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._table = self._console.is_terminal and not plain and not quiet
        self._live: Optional[RichLive] = None
        self._last = 0.0

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tell(self, line: str) -> None:
        """One line for an event."""
        self._console.print(line, markup=False)

    def show(self, live: Live) -> None:
        """The newest figures."""
        for name in live.keys() - self._steps.keys():  # a worker that came later does what the first of its group does
            self._steps[name] = self._steps.get(member(group_of(name), 0), 0)
        if self._table:
            self._renew(live)
        elif live and time.monotonic() - self._last >= LINES_EVERY:
            self._last = time.monotonic()
            rows = [_row(name, live[name], steps) for name, steps in self._steps.items() if name in live]
            titles, *rows = _kept(_COLUMNS, rows)
            for row in rows:
                self.tell("  ".join(f"{title} {cell}" for title, cell in zip(titles, row, strict=True)))

    def _renew(self, live: Live) -> None:
        table = _table(_COLUMNS, [_row(name, live.get(name, {}), steps) for name, steps in self._steps.items()])
        if self._live is None:
            self._live = RichLive(table, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)


class _Unheard:
    """A stream that may go: its reader, its terminal, the room on its disk. The run goes on and keeps its log."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As of a file; what can't be said is not said."""
        with self._giving_up():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As of a file."""
        with self._giving_up():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            silence(self._stream)


def silence(stream: Any) -> None:
    """What is written to a stream from now on, and what it still holds, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # no file of the system
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


_COLUMNS = (
    "learner", "step", "steps/s", "accuracy", "synthetic", "staleness", "fall-backs", "sent", "received", "updates"
)  # fmt: skip


def _row(name: str, figures: Mapping[str, float], steps: int) -> tuple[str, ...]:
    """Accuracies are on validation rows; staleness in steps of the child, of the newest embedding used, of workers that
    go together in updates; updates in bytes, as they go to each other worker.

    A learner that has done its steps answers its parents: its bytes go on.
    """
    done = figures.get("step", 0) >= steps
    return (
        name,
        f"{figures.get('step', 0):.0f}/{steps}",
        "done" if done else _figure(figures, ".1f", "speed/steps_per_second"),
        _figure(figures, ".1%", *_accuracies("validation")),
        _figure(figures, ".1%", "validation/accuracy/synthetic"),
        _figure(figures, ".0f", "staleness/embedding", "staleness/updates"),
        _figure(figures, ".0f", "exchange/fallbacks"),
        *(_bytes(figures, f"bytes/{way}_inline", f"bytes/{way}_store", f"bytes/{way}") for way in ("sent", "received")),
        _bytes(figures, "bytes/updates"),
    )


def _accuracies(split: str) -> tuple[str, str]:
    """Of a learner that asks children, of one that is alone."""
    return f"{split}/accuracy/child", f"{split}/accuracy"


def _figure(figures: Mapping[str, float], form: str, *keys: str) -> str:
    """The first of these figures that there is."""
    return next((format(figures[key], form) for key in keys if key in figures), _NONE)


def _bytes(figures: Mapping[str, float], *keys: str) -> str:
    found = [figures[key] for key in keys if key in figures]
    return size(sum(found)) if found else _NONE


_NONE = "-"


def _kept(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Titles and rows without the columns that say nothing of any learner."""
    says = [any(row[i] != _NONE for row in rows) for i in range(len(titles))]
    return [tuple(compress(cells, says)) for cells in (titles, *rows)]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    head, *kept = _kept(titles, rows)
    table = Table(box=None, pad_edge=False)
    for title in head:
        table.add_column(title, no_wrap=title in ("learner", "step"))  # on a narrow terminal the others give way
    for row in kept:
        table.add_row(*row)
    return table


_SUMMARY = (
    "learner", "status", "steps", "steps/s", "test", "test, synthetic", "fall-backs", "sent inline", "sent by store",
    "updates", "sent", "received", "restarts", "digest",
)  # fmt: skip


def summary(outcome: Mapping[str, Any]) -> Table:
    """The end of a run as a table, from its JSON form."""
    rows = []
    for name, reached in outcome["learners"].items():
        accuracies, bytes_ = reached["accuracies"], reached["bytes"]
        rows.append(
            (
                name,
                reached["status"],
                str(reached["steps"]),
                f"{reached['steps'] / reached['seconds']:.1f}" if reached["seconds"] else _NONE,
                _figure(accuracies, ".2%", *_accuracies("test")),
                _figure(accuracies, ".2%", "test/accuracy/synthetic"),
                _NONE if "updates" in bytes_ else str(reached["fallbacks"]),
                *(_NONE if "updates" in bytes_ else size(bytes_.get(f"sent {way}", 0)) for way in ("inline", "store")),
                *(_bytes(bytes_, way) for way in ("updates", "sent", "received")),
                str(reached["restarts"]),
                reached.get("digest") or _NONE,
            )
        )
    return _table(_SUMMARY, rows)


def printed(what: Any, *, error: bool = False) -> None:
    """Print a rich renderable or text; where nobody watches, tables are as wide as they need to be."""
    stream = sys.stderr if error else sys.stdout
    console = Console(file=stream, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200
    with console.capture() as rendered:  # on a broken pipe the console itself would end the process
        console.print(what, markup=False) if isinstance(what, str) else console.print(what)
    stream.write(rendered.get())
