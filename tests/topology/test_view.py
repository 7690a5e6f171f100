"""What a run looks like on a terminal."""

import os
import sys

import pytest
from rich.console import Console

from topology.view import View


@pytest.fixture
def row(capsys):
    """The plain line of one learner, cell by title."""

    def shown(steps, **figures):
        with View({"top": steps}, plain=True, quiet=False) as view:
            view.show({"top": figures})
        cells = (cell.rsplit(" ", 1) for cell in capsys.readouterr().out.strip().split("  "))
        return dict(cells)

    return shown


def test_a_learner_that_has_done_its_steps_has_no_speed(row):
    assert row(10, **{"step": 9, "speed/steps_per_second": 7.0})["steps/s"] == "7.0"
    assert row(10, **{"step": 10, "speed/steps_per_second": 7.0})["steps/s"] == "done"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_still_shows_who_is_where(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with View({"bottom": 100_000}, plain=False, quiet=False) as view:
        view._table = True
        view._console = Console(force_terminal=True, width=width, color_system=None)
        view.show({"bottom": {"step": 99_999, "bytes/sent_inline": 2e6}})
    assert "bottom" in (out := capsys.readouterr().out) and "99999/100000" in out


@pytest.mark.parametrize("gone", ["closed by its reader", "on a full disk"])
def test_a_run_goes_on_when_nobody_can_read_what_it_says(monkeypatch, gone):
    reading, writing = os.pipe()
    os.close(reading)
    if gone == "on a full disk":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with View({"top": 10}, plain=True, quiet=False) as view:
            for number in range(3):
                view.tell(f"line {number}")
                view.show({"top": {"step": number}})
        stream.write("nor does what comes later")
        stream.flush()
