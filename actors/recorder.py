"""The recorder: the one process that writes a run's records, logs and TensorBoard files, beside the driver.

Consumes: parcels of records from learners, in any order of learners, each learner's own in order.
Produces: `records/<learner>.jsonl`, `logs/<learner>.log`, `tensorboard/<learner>/`; an acknowledgement once on disk.
Waits for: the disk only. Unblocked by: nothing else. Greatest delay: a parcel is flushed before it is acknowledged.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from learners.records import Record

LAYOUT = {
    "Machworks": {
        "child against synthetic: accuracy on validation": ["Multiline", ["validation/accuracy/.*"]],
        "child against synthetic: loss on validation": ["Multiline", ["validation/loss/.*"]],
        "distillation error": ["Multiline", ["(train|validation)/distillation"]],
        "staleness in child steps": ["Multiline", ["staleness/.*"]],
        "fall-backs on the synthetic input, share of steps": ["Multiline", ["exchange/fallback_share"]],
        "refused, lost, late, dropped": ["Multiline", ["exchange/(refused|lost|late|dropped).*"]],
        "bytes, inline and through the object store": ["Multiline", ["bytes/.*"]],
        "steps per second": ["Multiline", ["speed/steps_per_second"]],
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


class Recorder:
    """Plain class behind `RecorderActor`.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._writers: dict[tuple[str, int], EventsWriter] = {}
        self._files: dict[str, Any] = {}
        self._written: dict[tuple[str, int], int] = {}
        self._latest: dict[str, dict[str, float]] = {}
        self._warned = False
        for name in ("records", "logs", "tensorboard"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)

    def describe(self, picture: Any, hyperparameters: dict[str, dict[str, Any]], text: str) -> None:
        """Write what is known before the first step: layout, topology as a picture [H, W, 3], hyper-parameters."""
        writer = self._writer("topology", 0)
        self._event(writer, summary.custom_scalars(LAYOUT), 0)
        self._event(writer, summary.image("topology", picture, dataformats="HWC"), 0)
        self._event(writer, summary.text("run file", f"```yaml\n{text}\n```"), 0)
        writer.flush()
        for learner, values in hyperparameters.items():
            for part in summary.hparams(values, {"test/accuracy/child": 0.0, "test/accuracy/synthetic": 0.0}):
                self._event(self._writer(learner, 0), part, 0)
            self._writer(learner, 0).flush()

    def append(self, parcel: Parcel) -> int:
        """Write a parcel, once; returns its sequence when it is flushed. A full disk is reported by the error."""
        key = (parcel.learner, parcel.incarnation)
        if parcel.sequence <= self._written.get(key, -1):
            return parcel.sequence
        records = self._file(f"records/{parcel.learner}.jsonl")
        records.write(b"".join(msgspec.json.encode(record) + b"\n" for record in parcel.records))
        records.flush()
        if parcel.log:
            log = self._file(f"logs/{parcel.learner}.log")
            log.write("".join(parcel.log).encode())
            log.flush()
        writer = self._writer(*key)
        for index in parcel.plotted:
            record = parcel.records[index]
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in record.values.items()]
            self._event(writer, Summary(value=values), record.step, record.time)
        writer.flush()
        for record in parcel.records:
            self._latest.setdefault(record.learner, {}).update(record.values, step=record.step)
        self._written[key] = parcel.sequence
        return parcel.sequence

    def latest(self) -> dict[str, dict[str, float]]:
        """The newest value of every figure, per learner."""
        return self._latest

    def close(self) -> None:
        """Sync and close every file."""
        for writer in self._writers.values():
            writer.close()
        for file in self._files.values():
            os.fsync(file.fileno())
            file.close()

    def _writer(self, learner: str, incarnation: int) -> EventsWriter:
        key = (learner, incarnation)
        if key not in self._writers:
            folder = self._folder / "tensorboard" / learner
            folder.mkdir(parents=True, exist_ok=True)
            # file names are per second and host: the incarnation and our process tell two in one second apart
            suffix = f".{incarnation}.{os.getpid()}"
            self._writers[key] = EventsWriter(str(folder / "events"), suffix)
        return self._writers[key]

    def _file(self, name: str) -> Any:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("ab")
        return self._files[name]

    @staticmethod
    def _event(writer: EventsWriter, content: Summary, step: int, at: float | None = None) -> None:
        writer.write_event(Event(summary=content, step=step, wall_time=time.time() if at is None else at))


RecorderActor = ray.remote(num_cpus=0, max_restarts=0)(Recorder)
