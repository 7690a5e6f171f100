"""A group's weights at any moment of a run, rebuilt from its log, and whether they are what was recorded.

Read from the run folder and the data's shape alone, whether the run goes on, has ended or was killed.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Optional

from actors import log, quiet, snapshots
from learners.group.parcels import Holds
from learners.group.replay import Entry, Replay, Replayed, Unlike
from learners.group.sums import Sums
from learners.options import Topology, member
from learners.rbd.clocks import Clock
from topology import parse
from topology.findings import NAMED


@dataclass(frozen=True)
class Found:
    """What a replay of one group has come to."""

    group: str
    records: int  #: of the log, that were read
    updates: int  #: that were applied
    clock: dict[str, int]  #: updates of each worker, all its incarnations together
    digest: str  #: of the weights
    marks: int  #: recorded digests that were compared, and are equal
    late: int  #: recorded digests of clocks that the log does not come to
    seconds: float  #: reading and applying
    ignored: tuple[str, ...]  #: snapshots that could not be read
    fault: str = ""  #: what is wrong: another digest than was recorded, an update that is missing, a damaged record

    def __str__(self) -> str:
        lines = [f"{self.group}: {line}" for line in self.ignored]
        each = ", ".join(f"{name} {count}" for name, count in self.clock.items())
        if self.digest:
            lines.append(
                f"{self.group}: digest {self.digest} after {self.records} records; updates of {each or 'nobody'}; "
                f"{self.updates} applied in {self.seconds:.2f} s"
            )
            late = f", {self.late} of other moments" if self.late else ""
            lines.append(f"{self.group}: {self.marks} recorded digests are equal{late}")
        return "\n".join([*lines, *([f"{self.group}: {self.fault}"] if self.fault else [])])


def replay(run: Path, records: Optional[int] = None, *, from_start: bool = False) -> Iterator[Found]:
    """Each group of a run: the weights after so many records of its log, or all.

    Args:
        records: of the log, from its beginning.
        from_start: whether snapshots are passed over.

    Raises:
        ValueError: there is no group, or one whose sums depend on their order; its data or network can't be had here.
    """
    topology = parse.load(run / "chain.yaml")
    if not topology.groups:
        raise ValueError(f"{run}: no workers go together in it, so there is no log")
    quiet.load()
    for name in topology.groups:
        yield _replayed(run, topology, name, records, from_start)


def _replayed(run: Path, topology: Topology, name: str, records: Optional[int], from_start: bool) -> Found:
    from actors import rbd
    from actors.relay import reader
    from learners.group.alike import unlike
    from learners.rbd.replica import Replica
    from learners.rbd.workers import Method
    from learners.seeds import derive

    beside = Path(json.loads((run / "run.json").read_text()).get("beside", "."))
    options, (example, classes) = topology.workers[name], _shape(topology, beside)
    model = rbd.model_of(name, topology.seed, options, example, classes, beside)
    method = Method(options, model.network.tensors)
    start = rbd.begun(name, topology.seed, method, model).shared
    if not isinstance(start, Replica):
        raise ValueError(f"learners.{name}: its weights are float32: their sums depend on the order, which no log has")
    folder = run / "log" / name
    traits = rbd.traits_of(name, topology.seed, method, model)  # and kernels are compiled now
    header = log.header(folder / log.NAME).traits
    differ = [one for one in unlike(header, traits) if not one.startswith("version of")]
    if differ:
        raise ValueError(f"{folder}: what is built here is not what wrote it: {'; '.join(differ)}")
    began = time.monotonic()
    nothing = snapshots.Snapshot(start, Holds(Clock()), Sums(), 0)
    taken, ignored = (nothing, []) if records is not None or from_start else snapshots.newest(folder, header, start)
    read_sent = reader(options, model.network.tensors, derive(topology.seed, "bases", name))
    replay = Replay(taken.replica, read_sent, holds=taken.holds, sums=taken.sums)
    read, done, fault = _taken(replay, islice(log.entries(folder / log.NAME, taken.end), records), records is None)
    seconds = time.monotonic() - began
    if done is None:
        return Found(name, read, 0, {}, "", 0, 0, seconds, tuple(ignored), fault)
    return Found(
        group=name,
        records=read,
        updates=done.updates,
        clock=_by_worker(name, done.replica.clock),
        digest=f"{done.replica.digest:016x}",
        marks=done.marks,
        late=done.late,
        seconds=seconds,
        ignored=tuple(ignored),
        fault=fault,
    )


def _by_worker(group: str, clock: Clock) -> dict[str, int]:
    found: dict[str, int] = {}
    for (number, _), taken in sorted(clock.taken.items()):
        name = member(group, number)
        found[name] = found.get(name, 0) + taken.below + len(taken.early)
    return found


def _shape(topology: Topology, beside: Path) -> tuple[tuple[int, ...], int]:
    """Shape of an example and number of classes: known of a named set, else the data must be read."""
    from actors import data

    if topology.data.name in NAMED:
        return NAMED[topology.data.name]
    found = data.load(topology.data, folder=beside)
    return found.shape, found.classes


def _taken(replay: Replay, entries: Iterable[Entry], whole: bool) -> tuple[int, Optional[Replayed], str]:
    """How many entries were read, what they come to, and what is wrong with them."""
    read, fault = 0, ""
    try:
        for entry in entries:
            replay.take([entry])
            read += 1
    except log.Damaged as damage:
        fault, whole = str(damage), False
    except ValueError as error:
        return read, None, str(error)
    try:
        return read, replay.done(whole=whole), fault
    except Unlike as error:
        return read, None, str(error)
