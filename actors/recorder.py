"""The recorder: the one process that writes a run's records, logs and TensorBoard files, beside the driver.

Consumes: parcels of records from learners, in any order of learners, each learner's own one after the other.
Produces: `records/<learner>.jsonl`, `logs/<learner>.log`, `tensorboard/<learner>/`; an acknowledgement once written.
Waits for: the disk only. Unblocked by: nothing else. Greatest delay: a parcel is written before it is acknowledged.
A disk that refuses: the parcel is refused as a whole, its sender keeps it and sends it again; see `Recorder.look`.
Its own death: a new one reads in the records how far they and the files beside them go, since every parcel's lines end
with a seal, written last; it takes away what has none, and senders send it again.
A learner's death: its next incarnation says in its parcels which step it goes on from. With the first of them, records
of former incarnations beyond that step are taken back, and what those still send counts no more.
"""

import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import ray
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from learners.records import Record, Seal, file_name, learner_of, lines

LAYOUT = {
    "Machworks": {
        "child against synthetic: accuracy on validation": ["Multiline", ["validation/accuracy/.*"]],
        "child against synthetic: loss on validation": ["Multiline", ["validation/loss/.*"]],
        "distillation error": ["Multiline", ["(train|validation)/distillation"]],
        "staleness in child steps": ["Multiline", ["staleness/.*"]],
        "fall-backs on the synthetic input, share of steps": ["Multiline", ["exchange/fallback_share"]],
        "refused, lost, late, dropped": ["Multiline", ["exchange/(refused|unreadable|lost|late|dropped).*"]],
        "bytes, inline and through the object store, or of updates": ["Multiline", ["bytes/.*"]],
        "steps per second": ["Multiline", ["speed/steps_per_second"]],
        "where a learner's time goes, seconds": ["Multiline", ["seconds/.*"]],
    },
}
"""What TensorBoard's custom scalars page shows: the figures of asynchrony where people look."""
MECHANICS = {
    "Mechanics": {
        "charges against theory, greatest residual of a unit": ["Multiline", ["mechanics/.*/residual"]],
        "identity of the gradient, residual": ["Multiline", ["mechanics/.*/identity"]],
        "alarms so far": ["Multiline", ["mechanics/alarms"]],
    },
}
"""The same for runs that watch their laws."""
WORKERS = {
    "Random bases": {
        "accuracy, of batches and on validation": ["Multiline", ["(train|validation)/accuracy$"]],
        "loss, of batches and on validation": ["Multiline", ["(train|validation)/loss$"]],
        "cosine between an update and what was wanted": ["Multiline", ["update/correlation"]],
        "cosine between an update and the gradient, by tensor": ["Multiline", ["^correlation/.*"]],
        "length of updates as a share of the weights, by tensor": ["Multiline", ["^moved/.*"]],
        "length of updates, root mean square of coordinates": ["Multiline", ["update/(norm|coordinate_rms)"]],
        "of a group: staleness and lag in updates": ["Multiline", ["staleness/updates", "group/lag"]],
        "of a group: lost, repeated, refused": ["Multiline", ["group/(lost|repeated|refused)"]],
    },
}
"""The same for runs that have workers of random bases."""


class Parcel(msgspec.Struct, frozen=True):
    """What a learner sends at a time."""

    learner: str
    incarnation: int
    sequence: int  #: counts this incarnation's parcels from 0; one that comes again is acknowledged, not written
    records: tuple[Record, ...]
    plotted: tuple[int, ...]  #: which of the records TensorBoard gets
    log: tuple[str, ...]  #: lines
    start: int = 0  #: the step that this incarnation goes on from


class Look(msgspec.Struct, frozen=True):
    """What the recorder knows of a run that goes on."""

    latest: dict[str, dict[str, float]]  #: the newest value of every figure, per learner
    fault: str  #: why nothing can be written now; "" while all is well


class Recorder:
    """Plain class behind `RecorderActor`.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._files: dict[str, int] = {}  # open descriptors, by name
        self._ends: dict[str, int] = {}  # bytes of each file that count
        self._boards: dict[tuple[str, int], str] = {}  # TensorBoard's file of a learner's incarnation
        self._written: dict[tuple[str, int], int] = {}  # the last parcel of a learner's incarnation
        self._newest: dict[str, int] = {}  # incarnation of a learner that has written
        self._latest: dict[str, dict[str, float]] = {}
        self._fault = ""
        for path in (self._folder / "records").glob("*.jsonl"):
            self._recover(path)

    @ray.method(max_task_retries=-1)
    def describe(self, picture: Any, hyperparameters: dict[str, dict[str, Any]], text: str, laws: bool = False) -> None:
        """Write what is known before the first step: layout, topology as a picture [H, W, 3], hyper-parameters.

        `laws`: whether charges are watched.
        """
        workers = {learner for learner, values in hyperparameters.items() if values.get("kind", "mach") != "mach"}
        parts = [
            summary.custom_scalars({**LAYOUT, **(WORKERS if workers else {}), **(MECHANICS if laws else {})}),
            summary.image("topology", picture, dataformats="HWC"),
            summary.text("run file", f"```yaml\n{text}\n```"),
        ]
        with self._noting_faults():
            self._write(self._events("topology", 0, [_event(part, 0, time.time()) for part in parts]))
            for learner, values in hyperparameters.items():
                ways = ("",) if learner in workers else ("/child", "/synthetic")
                shown = {f"test/accuracy{way}": 0.0 for way in ways}
                events = [_event(part, 0, time.time()) for part in summary.hparams(values, shown)]
                self._write_sealed(learner, 0, -1, (), self._events(learner, 0, events))

    def append(self, parcel: Parcel) -> None:
        """Write a parcel, once; returns when it is written.

        Raises:
            OSError: the disk is full or read-only: nothing of the parcel counts, and it may be sent again.
        """
        learner, key = parcel.learner, (parcel.learner, parcel.incarnation)
        newest = self._newest.get(learner, 0)
        if parcel.incarnation < newest or parcel.sequence <= self._written.get(key, -1):
            return
        plotted = [parcel.records[index] for index in parcel.plotted]
        events = [_event(_scalars(r.values), r.step, r.time) for r in plotted]
        with self._noting_faults():
            if parcel.incarnation > newest:
                self._take_back(learner, parcel.start)
                events.insert(0, _started(parcel.start))
            beside = {f"logs/{file_name(learner)}.log": "".join(parcel.log).encode(), **self._events(*key, events)}
            self._write_sealed(*key, parcel.sequence, parcel.records, beside)
        self._written[key], self._newest[learner] = parcel.sequence, parcel.incarnation
        for record in parcel.records:
            self._latest.setdefault(learner, {}).update(record.values, step=record.step)

    def look(self) -> Look:
        """The newest figures, and what is wrong."""
        return Look(self._latest, self._fault)

    @ray.method(max_task_retries=-1)
    def close(self) -> None:
        """Sync and close every file."""
        while self._files:
            _, descriptor = self._files.popitem()
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # -- what former recorders and incarnations have left

    def _recover(self, path: Path) -> None:
        """Find out what a former recorder has written of a learner, and cut off what no seal follows."""
        learner, whole, read, newest = learner_of(path.stem), 0, 0, 0
        ends = {f"logs/{file_name(learner)}.log": 0}
        ends |= {str(p.relative_to(self._folder)): 0 for p in (self._folder / "tensorboard" / learner).glob("*")}
        values: dict[str, float] = {"step": 0}
        unsealed: list[Record] = []
        for line, content in lines(path.read_bytes()):
            read += len(line)
            if isinstance(content, Record):
                unsealed.append(content)
                continue
            whole, newest = read, max(newest, content.incarnation)
            ends |= content.ends
            self._written[learner, content.incarnation] = content.seal
            for record in unsealed:
                values.update(record.values, step=max(record.step, values["step"]))
            unsealed.clear()
        for name, end in {**ends, f"records/{file_name(learner)}.jsonl": whole}.items():
            self._cut(self._folder / name, end)
        self._latest[learner], self._newest[learner] = values, newest
        with suppress(OSError):  # for a reader that has seen what was cut off; not worth a recorder
            self._write(self._events(learner, newest, [_started(int(values["step"]))]))

    def _take_back(self, learner: str, start: int) -> None:
        """Remove records of later steps than `start`."""
        name = f"records/{file_name(learner)}.jsonl"
        path = self._folder / name
        if path.is_file():
            counts = path.read_bytes()[: self._open(name)]
            kept = [line for line, one in lines(counts) if isinstance(one, Seal) or one.step <= start]
            partial = path.with_suffix(".partial")
            partial.write_bytes(b"".join(kept))
            self._forget(name)
            partial.replace(path)
        self._latest.pop(learner, None)

    @staticmethod
    def _cut(path: Path, end: int) -> None:
        if path.is_file() and path.stat().st_size > end:
            os.truncate(path, end)

    # -- files

    def _forget(self, name: str) -> None:
        """Close a file that is about to be another one."""
        if name in self._files:
            os.close(self._files.pop(name))
        self._ends.pop(name, None)

    def _events(self, learner: str, incarnation: int, events: Iterable[Event]) -> dict[str, bytes]:
        """TensorBoard's file of this incarnation and what is to be added to it."""
        # readers want seconds and host in the name, and take files in its order; the rest tells apart and puts in
        # order who opens one in the same second
        order = f"{time.time_ns():020}.{incarnation:03}.{secrets.token_hex(4)}"
        fresh = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{order}"
        name = self._boards.setdefault((learner, incarnation), f"tensorboard/{learner}/{fresh}")
        first = [] if self._ends.get(name) else [Event(wall_time=time.time(), file_version="brain.Event:2")]
        return {name: b"".join(map(_framed, [*first, *events]))}

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """What goes wrong in the block is what `look` says, until a block goes well."""
        try:
            yield
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"
            raise
        self._fault = ""

    def _write_sealed(
        self,
        learner: str,
        incarnation: int,
        sequence: int,
        records: tuple[Record, ...],
        beside: Mapping[str, bytes],
    ) -> None:
        """Write records and what goes with them, and last the seal that makes all of it count."""
        beside = {name: content for name, content in beside.items() if content}
        ends = {name: self._open(name) + len(content) for name, content in beside.items()}
        written = [*records, Seal(sequence, learner, incarnation, ends)]
        content = b"".join(msgspec.json.encode(one) + b"\n" for one in written)
        self._write({**beside, f"records/{file_name(learner)}.jsonl": content})

    def _write(self, contents: Mapping[str, bytes]) -> None:
        """Add to all of these files or to none, in this order: the next write overwrites what a failed one has left."""
        self._ends |= {name: self._put(name, content) for name, content in contents.items()}

    def _open(self, name: str) -> int:
        """Open a file if it is not; returns where what counts of it ends."""
        if name not in self._files:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._ends[name] = os.fstat(self._files[name]).st_size
        return self._ends[name]

    def _put(self, name: str, content: bytes) -> int:
        """Write behind what counts of a file; returns where it ends then."""
        end = self._open(name)
        while content:
            count = os.pwrite(self._files[name], content, end)
            content, end = content[count:], end + count
        return end


def _scalars(values: Mapping[str, float]) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])


def _event(content: Summary, step: int, at: float) -> Event:
    return Event(summary=content, step=step, wall_time=at)


def _started(step: int) -> Event:
    """TensorBoard drops what it has read of later steps than `step` when it meets this."""
    return Event(step=step + 1, session_log=SessionLog(status=SessionLog.START), wall_time=time.time())


def _framed(event: Event) -> bytes:
    """An event as TensorBoard's files hold it: length, its checksum, content, its checksum."""
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc32c(length)) + content + struct.pack("<I", masked_crc32c(content))


RecorderActor = ray.remote(num_cpus=0, max_restarts=-1)(Recorder)
