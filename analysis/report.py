"""`machworks analyse`: every picture that a run has something to show for, and why the others were left out."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from analysis import table
from analysis.instruments import INSTRUMENTS
from analysis.pictures import Part, save
from analysis.views import VIEWS
from learners.watching import Probe

NAMES = (*VIEWS, *INSTRUMENTS)


@dataclass
class Report:
    """What came of it."""

    ends: tuple[str, ...]  #: where each learner's records end
    written: dict[str, list[Path]] = field(default_factory=dict)  #: picture -> its files
    left_out: dict[str, str] = field(default_factory=dict)  #: picture -> why


def analyse(
    run: Path,
    out: Optional[Path] = None,
    what: Sequence[str] = (),
    probe: Callable[[], Sequence[Probe]] = lambda: (),
) -> Report:
    """Draw what is asked for (all, if nothing is) of a run folder, finished or live, into `out` (RUN/analysis).

    Args:
        probe: gives the learners as the instruments look at them; called only if one is asked for. A ValueError of
            its says why there are none.

    Raises:
        ValueError: an unknown picture, no run folder, or nothing recorded yet.
    """
    for name in what:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            raise ValueError(
                f"analyse: {name!r} is not a picture"
                + (f"; did you mean {near[0]!r}?" if near else "")
                + f" There are: {', '.join(NAMES)}"
            )
    found = table.read(run)
    report, asked = Report(found.ends), [name for name in NAMES if not what or name in what]
    for name in (name for name in asked if name in VIEWS):
        _written(report, out or run / "analysis", name, VIEWS[name].title, VIEWS[name].needs, VIEWS[name].look(found))
    measured = [name for name in asked if name in INSTRUMENTS]
    try:
        probes = probe() if measured else ()
    except ValueError as error:
        report.left_out |= dict.fromkeys(measured, str(error))
        return report
    for name in measured:
        one = INSTRUMENTS[name]
        _written(report, out or run / "analysis", name, one.title, one.needs, one.look(probes))
    return report


def _written(report: Report, folder: Path, name: str, title: str, needs: str, parts: Sequence[Part]) -> None:
    if parts:
        report.written[name] = save(folder, name, title, parts)
    else:
        report.left_out[name] = f"nothing to show; it needs {needs}"
