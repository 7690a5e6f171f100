"""A run folder's records as arrays, finished or live: every record that is whole counts, and none that is not.

What is not finite is NaN. A kill at any byte leaves whole lines and at most one that is cut; nothing is locked, and
nothing is written here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from learners.records import Record, learner_of, lines

Numbers = NDArray[np.float64]
ACCURACIES = tuple(f"{split}/accuracy{way}" for split in ("test", "validation") for way in ("", "/child", "/synthetic"))
"""Where a learner's accuracy is found: on the test set if it is known, with the child rather than without."""


class Series(NamedTuple):
    """One figure of one learner, by step."""

    steps: Numbers  #: steps done, ascending, each once
    values: Numbers


@dataclass(frozen=True)
class Learner:
    """What one learner wrote."""

    name: str
    figures: dict[str, Series]  #: by name, such as validation/accuracy/child
    times: Series  #: seconds since 1970 at which each step was done
    #: bytes by way, as `sent_inline`, when it had ended: who answers goes on after its last step; empty before
    bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The last one that is recorded; 0 where there is none."""
        return int(self.times.steps[-1]) if len(self.times.steps) else 0

    def last(self, figure: str) -> float:
        """The newest value; NaN where the figure was never recorded."""
        return float(self.figures[figure].values[-1]) if figure in self.figures else float("nan")

    @property
    def asks(self) -> bool:
        """Whether it has children, and so another way to go without them."""
        return "exchange/fallback_share" in self.figures

    def under(self, heading: str) -> dict[str, Series]:
        """The figures below a heading: `correlation` has `all`, `dense_0/kernel`, ..."""
        return {name[len(heading) + 1 :]: s for name, s in self.figures.items() if name.startswith(f"{heading}/")}


class Nothing(ValueError):
    """A run of which nothing is recorded."""


@dataclass(frozen=True)
class Run:
    """A run folder as it is at this moment."""

    folder: Path
    learners: tuple[Learner, ...]  #: by name
    ends: tuple[str, ...]  #: where each learner's records end, a line each


def read(folder: Path) -> Run:
    """The records of a run.

    Raises:
        ValueError: this is no run folder, or nothing has been recorded (`Nothing`).
    """
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder}: not a run folder: it has no run.json")
    outcome = _outcome(folder / "run.json")
    learners, ends = [], []
    for path in sorted((folder / "records").glob("*.jsonl")):
        content = path.read_bytes()
        counted = list(lines(content))
        learner = _learner(learner_of(path.stem), (one for _, one in counted if isinstance(one, Record)), outcome)
        left_out = len(content) - sum(len(line) for line, _ in counted)
        learners.append(learner)
        ends.append(f"{learner.name}: records end at step {learner.step}" + (_cut(path, left_out) if left_out else ""))
    if not any(learner.figures for learner in learners):
        raise Nothing(f"{folder}: nothing is recorded: no learner has taken a step")
    return Run(folder, tuple(learners), tuple(ends))


def _outcome(manifest: Path) -> Mapping[str, Any]:
    """What each learner came to, by name, of a run that has ended; nothing where that can't be read."""
    try:
        return dict((json.loads(manifest.read_text()).get("outcome") or {}).get("learners") or {})
    except (ValueError, AttributeError):
        return {}


def _cut(path: Path, left_out: int) -> str:
    return f"; {left_out:,} bytes of {path.name} behind its last whole record are left out (cut by a kill, or damaged)"


def _learner(name: str, records: Iterable[Record], outcome: Mapping[str, Any]) -> Learner:
    columns: dict[str, tuple[list[int], list[float]]] = {"": ([], [])}
    for record in records:
        when = (("", record.time),) if record.kind == "train" else ()  # evaluations are written later than their steps
        for figure, value in (*when, *record.values.items()):
            steps, values = columns.setdefault(figure, ([], []))
            steps.append(record.step)
            values.append(value)
    series = {figure: _series(*column) for figure, column in columns.items()}
    counted = {way.replace(" ", "_"): float(count) for way, count in outcome.get(name, {}).get("bytes", {}).items()}
    return Learner(name, {figure: one for figure, one in series.items() if figure}, series[""], counted)


def _series(steps: list[int], values: list[float]) -> Series:
    """By step; of a step that is there twice, what was written last."""
    backwards, first = np.unique(np.array(steps[::-1], np.float64), return_index=True)
    return Series(backwards, np.array(values[::-1], np.float64)[first])


def thinned(series: Series, points: int) -> Series:
    """Means of as many neighbours as it takes to have at most `points`, each at the mean of their steps.

    Neighbours whose values are all NaN stay NaN; else those that are not count.
    """
    each = -(-len(series.steps) // points)
    if each <= 1:
        return series
    return Series(*(np.array([_mean(part) for part in _parts(one, each)]) for one in series))


def sampled(series: Series, points: int) -> Series:
    """Every n-th of it and the last, at most `points` and one: for what counts up, and must end where it ends."""
    each, last = -(-len(series.steps) // points), len(series.steps) - 1
    kept = np.unique([*range(0, last, each), last]) if each > 1 else np.arange(last + 1)
    return Series(series.steps[kept], series.values[kept])


def speed(times: Series, points: int, seconds: float) -> Series:
    """Steps per second between neighbours that are `seconds` apart or more, each in the middle of their steps.

    At most so many points; where all of it is shorter than `seconds`, one for the whole.
    """
    if len(times.steps) < 2 or times.values[-1] <= times.values[0]:
        return Series(times.steps[:0], times.values[:0])
    apart = max(seconds, float(times.values[-1] - times.values[0]) / points)
    kept = [0]
    for i, now in enumerate(times.values):
        if now - times.values[kept[-1]] >= apart:
            kept.append(i)
    if len(kept) == 1:
        kept.append(len(times.steps) - 1)
    steps, passed = times.steps[kept], np.diff(times.values[kept])
    return Series((steps[1:] + steps[:-1]) / 2, np.diff(steps) / passed)


def _parts(values: Numbers, each: int) -> Iterator[Numbers]:
    return (values[i : i + each] for i in range(0, len(values), each))


def _mean(values: Numbers) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def parquet(run: Run, path: Path) -> None:
    """All records as one tidy table: learner, step, time (seconds since 1970), figure, value.

    What is not finite is null. In the order of learners, then figures, then steps.
    """
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter

    schema = arrow.schema(
        [
            ("learner", arrow.dictionary(arrow.int32(), arrow.string())),
            ("figure", arrow.dictionary(arrow.int32(), arrow.string())),
            ("step", arrow.int64()),
            ("time", arrow.float64()),
            ("value", arrow.float64()),
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with ParquetWriter(path, schema, compression="zstd") as file:
        for learner in run.learners:
            for figure, (steps, values) in learner.figures.items():
                times, count = np.interp(steps, *learner.times), len(steps)
                words = [arrow.array([word] * count).dictionary_encode() for word in (learner.name, figure)]
                columns = [*words, steps.astype(np.int64), times, arrow.array(values, from_pandas=True)]
                file.write_table(arrow.table(columns, schema=schema))
