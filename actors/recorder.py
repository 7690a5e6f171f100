"""The recorder: the one process that writes a run's records, logs and TensorBoard files, beside the driver.

Consumes: parcels of records from learners, in any order of learners, each learner's own one after the other.
Produces: `records/<learner>.jsonl`, `logs/<learner>.log`, `tensorboard/<learner>/`; an acknowledgement once written.
Waits for: the disk only. Unblocked by: nothing else. Greatest delay: a parcel is written before it is acknowledged.
A disk that refuses: the parcel is refused as a whole, its sender keeps it and sends it again; see `Recorder.look`.
Its own death: a new one reads in the records how far they go, since every parcel's lines end with a seal, and takes
away what has none; senders send it again.
"""

import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import ray
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from learners.records import Record, Seal, lines

LAYOUT = {
    "Machworks": {
        "child against synthetic: accuracy on validation": ["Multiline", ["validation/accuracy/.*"]],
        "child against synthetic: loss on validation": ["Multiline", ["validation/loss/.*"]],
        "distillation error": ["Multiline", ["(train|validation)/distillation"]],
        "staleness in child steps": ["Multiline", ["staleness/.*"]],
        "fall-backs on the synthetic input, share of steps": ["Multiline", ["exchange/fallback_share"]],
        "refused, lost, late, dropped": ["Multiline", ["exchange/(refused|unreadable|lost|late|dropped).*"]],
        "bytes, inline and through the object store": ["Multiline", ["bytes/.*"]],
        "steps per second": ["Multiline", ["speed/steps_per_second"]],
        "where a learner's time goes, seconds": ["Multiline", ["seconds/.*"]],
    }
}
"""What TensorBoard's custom scalars page shows: the figures of asynchrony where people look."""


class Parcel(msgspec.Struct, frozen=True):
    """What a learner sends at a time."""

    learner: str
    incarnation: int
    sequence: int  #: counts this incarnation's parcels from 0; one that comes again is acknowledged, not written
    records: tuple[Record, ...]
    plotted: tuple[int, ...]  #: which of the records TensorBoard gets
    log: tuple[str, ...]  #: lines


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
        self._written: dict[tuple[str, int], int] = {}
        self._latest: dict[str, dict[str, float]] = {}
        self._fault = ""
        for path in (self._folder / "records").glob("*.jsonl"):
            self._recover(path)

    def describe(self, picture: Any, hyperparameters: dict[str, dict[str, Any]], text: str) -> None:
        """Write what is known before the first step: layout, topology as a picture [H, W, 3], hyper-parameters."""
        parts = [
            summary.custom_scalars(LAYOUT),
            summary.image("topology", picture, dataformats="HWC"),
            summary.text("run file", f"```yaml\n{text}\n```"),
        ]
        contents = self._events("topology", 0, [_event(part, 0, time.time()) for part in parts])
        shown = {"test/accuracy/child": 0.0, "test/accuracy/synthetic": 0.0}
        for learner, values in hyperparameters.items():
            parts = summary.hparams(values, shown)
            contents |= self._events(learner, 0, [_event(part, 0, time.time()) for part in parts])
        self._write(contents)

    def begin(self, learner: str, incarnation: int, step: int) -> None:
        """An incarnation goes on from `step`: later records of former ones are taken back, here and in TensorBoard.

        Raises:
            OSError: the disk is full or read-only.
        """
        name = f"records/{learner}.jsonl"
        path = self._folder / name
        if path.is_file():
            kept = [
                line for line, content in lines(path.read_bytes()) if isinstance(content, Seal) or content.step <= step
            ]
            partial = path.with_suffix(".partial")
            partial.write_bytes(b"".join(kept))
            self._forget(name)
            partial.replace(path)
        self._latest.pop(learner, None)
        # TensorBoard drops what it has read of later steps when it meets this
        started = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START), wall_time=time.time())
        self._write(self._events(learner, incarnation, [started]))

    def append(self, parcel: Parcel) -> None:
        """Write a parcel, once; returns when it is written.

        Raises:
            OSError: the disk is full or read-only: nothing of the parcel counts, and it may be sent again.
        """
        key = (parcel.learner, parcel.incarnation)
        if parcel.sequence <= self._written.get(key, -1):
            return
        sealed = [*parcel.records, Seal(parcel.sequence, parcel.learner, parcel.incarnation)]
        written = b"".join(msgspec.json.encode(line) + b"\n" for line in sealed)
        plotted = [parcel.records[index] for index in parcel.plotted]
        contents = {
            f"records/{parcel.learner}.jsonl": written,
            f"logs/{parcel.learner}.log": "".join(parcel.log).encode(),
            **self._events(*key, [_event(_scalars(r.values), r.step, r.time) for r in plotted]),
        }
        self._write({name: content for name, content in contents.items() if content})
        for record in parcel.records:
            self._latest.setdefault(record.learner, {}).update(record.values, step=record.step)
        self._written[key] = parcel.sequence

    def look(self) -> Look:
        """The newest figures, and what is wrong."""
        return Look(self._latest, self._fault)

    def close(self) -> None:
        """Sync and close every file."""
        while self._files:
            _, descriptor = self._files.popitem()
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _recover(self, path: Path) -> None:
        """Find out what a former recorder has written of a learner, and cut off what it had not finished."""
        whole, step, incarnation = 0, 0, 0
        end = 0
        latest: dict[str, float] = {}
        for line, content in lines(path.read_bytes()):
            end += len(line)
            if isinstance(content, Seal):
                whole, incarnation = end, content.incarnation
                self._written[content.learner, content.incarnation] = content.seal
            else:
                step = content.step
                latest.update(content.values, step=step)
        with path.open("r+b") as file:
            file.truncate(whole)
        self._latest[path.stem] = latest
        # TensorBoard's file may be a parcel ahead: what it has beyond the records will come again
        started = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START), wall_time=time.time())
        self._write(self._events(path.stem, incarnation, [started]))

    # -- files

    def _forget(self, name: str) -> None:
        """Close a file that is about to be another one."""
        if name in self._files:
            os.close(self._files.pop(name))
        self._ends.pop(name, None)

    def _events(self, learner: str, incarnation: int, events: Iterable[Event]) -> dict[str, bytes]:
        """TensorBoard's file of this incarnation and what is to be added to it."""
        # readers want seconds and host in the name; the rest tells apart who opens one in the same second
        fresh = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{incarnation:03}.{secrets.token_hex(4)}"
        name = self._boards.setdefault((learner, incarnation), f"tensorboard/{learner}/{fresh}")
        first = [] if self._ends.get(name) else [Event(wall_time=time.time(), file_version="brain.Event:2")]
        return {name: b"".join(map(_framed, [*first, *events]))}

    def _write(self, contents: Mapping[str, bytes]) -> None:
        """Add to all of these files or to none: the next write overwrites what a failed one has left."""
        try:
            ends = {name: self._put(name, content) for name, content in contents.items()}
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"
            raise
        self._ends |= ends
        self._fault = ""

    def _put(self, name: str, content: bytes) -> int:
        """Write behind what counts of a file; returns where it ends then."""
        if name not in self._files:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._ends[name] = os.fstat(self._files[name]).st_size
        end = self._ends[name]
        while content:
            count = os.pwrite(self._files[name], content, end)
            content, end = content[count:], end + count
        return end


def _scalars(values: Mapping[str, float]) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])


def _event(content: Summary, step: int, at: float) -> Event:
    return Event(summary=content, step=step, wall_time=at)


def _framed(event: Event) -> bytes:
    """An event as TensorBoard's files hold it: length, its checksum, content, its checksum."""
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc32c(length)) + content + struct.pack("<I", masked_crc32c(content))


RecorderActor = ray.remote(num_cpus=0, max_restarts=-1)(Recorder)
