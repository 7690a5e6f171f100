"""`machworks analyse` and `compare`: every picture that runs have something to show for, and why others were left out.

Each picture is written as PNG and SVG with its numbers as CSV; all records as `records.parquet`; and everything on one
page, `report.html`.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from analysis import page, table
from analysis.instruments import INSTRUMENTS
from analysis.page import Page, Shown
from analysis.pictures import Part, save
from analysis.together import differences, joined, labels
from analysis.views import VIEWS
from learners.watching import Probe

NAMES = (*VIEWS, *INSTRUMENTS)


@dataclass
class Report:
    """What came of it."""

    folder: Path  #: where it is
    ends: tuple[str, ...]  #: where each learner's records end
    written: dict[str, list[Path]] = field(default_factory=dict)  #: picture -> its files
    left_out: dict[str, str] = field(default_factory=dict)  #: picture -> why
    shown: list[Shown] = field(default_factory=list)

    @property
    def records(self) -> Path:
        """Where the table of all records is."""
        return self.folder / "records.parquet"

    @property
    def page(self) -> Path:
        """Where all of it is on one page."""
        return self.folder / "report.html"

    def take(self, name: str, title: str, needs: str, parts: Sequence[Part]) -> None:
        """Write a picture, or note why there is none."""
        if not parts:
            self.left_out[name] = f"nothing to show; it needs {needs}"
            return
        self.written[name] = save(self.folder, name, title, parts)
        _, svg, numbers = self.written[name]
        self.shown.append(Shown(title, svg, numbers))


def analyse(
    run: Path,
    out: Optional[Path] = None,
    what: Sequence[str] = (),
    probe: Callable[[], Sequence[Probe]] = lambda: (),
    *,
    state: str = "",
    graph: Optional[bytes] = None,
) -> Report:
    """Draw what is asked for (all, if nothing is) of a run folder, finished or live, into `out` (RUN/analysis).

    Args:
        probe: gives the learners as the instruments look at them; called only if one is asked for. A ValueError of
            its says why there are none.
        state: of the run, in a word.
        graph: who asks whom, as PNG.

    Raises:
        ValueError: an unknown picture, no run folder, or nothing recorded yet.
    """
    _known("analyse", what, NAMES)
    found = table.read(run)
    report = Report(out or run / "analysis", found.ends)
    _look(report, found, what)
    _measure(report, [name for name in INSTRUMENTS if not what or name in what], probe)
    content = page.manifest(run)
    _finish(
        report,
        found,
        Page(
            f"{content.get('name', 'run')}: {run.resolve().name}",
            page.facts(content, state),
            graph,
            page.summary(content),
            (*page.said(content), *found.ends),
        ),
    )
    return report


def compare(runs: Sequence[Path], out: Path, what: Sequence[str] = ()) -> Report:
    """The same pictures of several runs together, and in what their files differ, into `out`.

    Raises:
        ValueError: an unknown picture; a folder that is no run's, or in which nothing is recorded yet.
    """
    _known("compare", what, tuple(VIEWS))
    folders = dict(zip(labels(runs), runs, strict=True))
    together = joined({label: table.read(run) for label, run in folders.items()}, out)
    report = Report(out, together.ends)
    _look(report, together, what)
    contents = {label: page.manifest(run) for label, run in folders.items()}
    sheets = [one._replace(title=f"Learners of {label}") for label, c in contents.items() for one in page.summary(c)]
    said = [f"{label}: {line}" for label, content in contents.items() for line in page.said(content)]
    facts = {label: str(run.resolve()) for label, run in folders.items()}
    made = Page("Comparison", facts, None, sheets, (*said, *report.ends), texts=differences(folders))
    _finish(report, together, made)
    return report


def _known(command: str, what: Sequence[str], names: Sequence[str]) -> None:
    for name in what:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ValueError(
                f"{command}: {name!r} is not a picture"
                + (f"; did you mean {near[0]!r}?" if near else "")
                + f" There are: {', '.join(names)}"
            )


def _look(report: Report, run: table.Run, what: Sequence[str]) -> None:
    for name, view in VIEWS.items():
        if not what or name in what:
            report.take(name, view.title, view.needs, view.look(run))


def _measure(report: Report, names: Sequence[str], probe: Callable[[], Sequence[Probe]]) -> None:
    try:
        probes = probe() if names else ()
    except ValueError as error:
        report.left_out |= dict.fromkeys(names, str(error))
        return
    for name in names:
        one = INSTRUMENTS[name]
        report.take(name, one.title, one.needs, one.look(probes))


def _finish(report: Report, run: table.Run, made: Page) -> None:
    table.parquet(run, report.records)
    page.write(replace(made, pictures=report.shown, left_out=report.left_out), report.page)
