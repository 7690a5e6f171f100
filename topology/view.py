"""What a run looks like on a terminal: a live table or plain lines, and the summary at the end."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Optional

from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table

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
        if self._table:
            self._renew(live)
        elif live and time.monotonic() - self._last >= LINES_EVERY:
            self._last = time.monotonic()
            for name in (n for n in self._steps if n in live):
                cells = zip(_COLUMNS, _row(name, live[name], self._steps[name]), strict=True)
                self.tell("  ".join(f"{title} {cell}" for title, cell in cells))

    def _renew(self, live: Live) -> None:
        table = Table(box=None, pad_edge=False)
        for title in _COLUMNS:
            table.add_column(title, no_wrap=title in ("learner", "step"))  # on a narrow terminal the titles give way
        for name, steps in self._steps.items():
            table.add_row(*_row(name, live.get(name, {}), steps))
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


_COLUMNS = ("learner", "step", "steps/s", "accuracy", "synthetic", "staleness", "fall-backs", "sent", "received")


def _row(name: str, figures: Mapping[str, float], steps: int) -> tuple[str, ...]:
    """Accuracies are on validation rows; staleness in steps of the child, of the newest embedding used.

    A learner that has done its steps answers its parents: its bytes go on.
    """
    done = figures.get("step", 0) >= steps
    sent, received = (sum(figures.get(f"bytes/{way}_{by}", 0.0) for by in ("inline", "store")) for way in _WAYS)
    return (
        name,
        f"{figures.get('step', 0):.0f}/{steps}",
        "done" if done else _figure(figures, "speed/steps_per_second", ".1f"),
        _figure(figures, "validation/accuracy/child", ".1%"),
        _figure(figures, "validation/accuracy/synthetic", ".1%"),
        _figure(figures, "staleness/embedding", ".0f"),
        _figure(figures, "exchange/fallbacks", ".0f"),
        size(sent),
        size(received),
    )


_WAYS = ("sent", "received")


def _figure(figures: Mapping[str, float], key: str, form: str) -> str:
    return format(figures[key], form) if key in figures else "-"


def summary(outcome: Mapping[str, Any]) -> Table:
    """The end of a run as a table, from its JSON form."""
    table = Table(
        "learner", "status", "steps", "steps/s", "test, child", "test, synthetic", "fall-backs", "sent inline",
        "sent by store", "restarts", box=None, pad_edge=False,
    )  # fmt: skip
    for name, reached in outcome["learners"].items():
        accuracies, bytes_ = reached["accuracies"], reached["bytes"]
        table.add_row(
            name,
            reached["status"],
            str(reached["steps"]),
            f"{reached['steps'] / reached['seconds']:.1f}" if reached["seconds"] else "-",
            _figure(accuracies, "test/accuracy/child", ".2%"),
            _figure(accuracies, "test/accuracy/synthetic", ".2%"),
            str(reached["fallbacks"]),
            size(bytes_.get("sent inline", 0)),
            size(bytes_.get("sent store", 0)),
            str(reached["restarts"]),
        )
    return table


def printed(what: Any, *, error: bool = False) -> None:
    """Print a rich renderable or text; where nobody watches, tables are as wide as they need to be."""
    stream = sys.stderr if error else sys.stdout
    console = Console(file=stream, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200
    with console.capture() as rendered:  # on a broken pipe the console itself would end the process
        console.print(what, markup=False) if isinstance(what, str) else console.print(what)
    stream.write(rendered.get())
