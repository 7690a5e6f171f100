"""What a learner writes down: one value per moment, at full resolution."""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, Optional, Union

import msgspec

Kind = Literal["train", "evaluate", "attribute", "mechanics", "final"]


def file_name(learner: str) -> str:
    """What files of a learner are called: a worker of a group is worker/0, its files worker.0."""
    return learner.replace("/", ".")


def learner_of(file_name: str) -> str:
    """The learner whose files are called so: no name that a user may choose has a dot."""
    return file_name.replace(".", "/")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Numbers of one learner at one step."""

    learner: str
    incarnation: int
    step: int  #: steps done
    time: float  #: seconds since 1970 on the learner's host
    kind: Kind  #: train: of that step; evaluate, attribute: on held-out rows; mechanics: laws; final: of whole sets
    values: dict[str, float]  #: what is not finite is null on the disk, and NaN when it is read
    #: parents' gradients in that step: sender, its incarnation, its sequence number; none of them comes twice
    applied: tuple[tuple[str, int, int], ...] = ()


class _Written(Record, frozen=True, omit_defaults=True):
    """A record as JSON has it, where what is no finite number is null."""

    values: dict[str, Optional[float]]  # type: ignore[assignment]

    def read(self) -> Record:
        """With NaN for null."""
        values = {key: math.nan if value is None else value for key, value in self.values.items()}
        return Record(self.learner, self.incarnation, self.step, self.time, self.kind, values, self.applied)


class Seal(msgspec.Struct, frozen=True):
    """Ends what was written at one time: lines that no seal follows are not known to be whole."""

    seal: int  #: sequence of the parcel; -1: written before the incarnation's first
    learner: str
    incarnation: int
    ends: dict[str, int] = {}  #: bytes that count of each other file that was written with it


def lines(content: bytes) -> Iterator[tuple[bytes, Union[Record, Seal]]]:
    """Each whole line of a learner's records and what it says; ends before one that a kill has cut."""
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        try:
            yield line, _read(line)
        except msgspec.DecodeError:
            return


def _read(line: bytes) -> Union[Record, Seal]:
    if line.startswith(b'{"seal"'):
        return msgspec.json.decode(line, type=Seal)
    try:
        return msgspec.json.decode(line, type=Record)
    except msgspec.ValidationError:  # a null, which is rare
        return msgspec.json.decode(line, type=_Written).read()


class Evaluation:
    """Means over held-out rows that are evaluated piece by piece."""

    def __init__(self, pieces: int) -> None:
        self._missing, self._rows, self._sums = pieces, 0, None  # type: tuple[int, int, dict[str, float] | None]

    def add(self, rows: int, means: Mapping[str, float]) -> None:
        """Take in one piece. A figure that one piece lacks (no child answered) is lacking as a whole."""
        self._missing -= 1
        self._rows += rows
        if self._sums is None:
            self._sums = dict.fromkeys(means, 0.0)
        self._sums = {key: total + rows * means[key] for key, total in self._sums.items() if key in means}

    @property
    def complete(self) -> bool:
        """Whether every piece has come."""
        return self._missing == 0

    @property
    def means(self) -> dict[str, float]:
        """Of what every piece had, over the rows of all."""
        return {key: total / self._rows for key, total in (self._sums or {}).items()}
