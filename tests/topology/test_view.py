"""What a run looks like on a terminal."""

import pytest

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
