"""Several runs as one, so that every view of a run is one of several."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase

from analysis.table import Run, Series
from analysis.views import begin


def labels(folders: Sequence[Path]) -> list[str]:
    """A letter for each run, as legends have little room.

    Raises:
        ValueError: there are fewer than two, one is given twice, or there are more than letters.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("compare: a run is given twice; give different ones")
    if not 2 <= len(folders) <= len(ascii_uppercase):
        raise ValueError(f"compare: {len(folders)} runs; give 2 to {len(ascii_uppercase)}")
    return list(ascii_uppercase[: len(folders)])


def joined(runs: Mapping[str, Run], folder: Path) -> Run:
    """One run with the learners of all, named `label: learner`; each run's clock begins at 0."""
    learners = tuple(
        replace(one, name=f"{label}: {one.name}", times=Series(one.times.steps, one.times.values - begin(run)))
        for label, run in runs.items()
        for one in run.learners
    )
    return Run(folder, learners, tuple(f"{label}: {line}" for label, run in runs.items() for line in run.ends))


def differences(folders: Mapping[str, Path]) -> dict[str, str]:
    """In what the file of each run, with all defaults in it, differs from the first one's."""
    (first, base), *others = [(label, _file(folder)) for label, folder in folders.items()]
    found = {}
    for label, lines in others:
        changed = "\n".join(difflib.unified_diff(base, lines, first, label, lineterm="", n=2))
        found[f"What {label} changes in {first}"] = changed or "nothing: the files are the same"
    return found


def _file(folder: Path) -> list[str]:
    try:
        return (folder / "chain.yaml").read_text().splitlines()
    except OSError:
        return []
