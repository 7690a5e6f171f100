"""A learner's records and log lines on their way to the recorder.

Consumes: records, and what the learner logs. Produces: parcels, one at a time, sent again until they are written.
Waits for: nothing, but at the end (`finish`). Unblocked by: an acknowledgement or a time limit.
While the recorder writes nothing (a full disk, its death), records wait here; beyond `RECORDS_KEPT` they are thinned
out evenly, and counted. Training does not notice.
"""

import time
from collections import deque
from typing import Any, Optional

import ray
from loguru import logger

from actors.recorder import Parcel
from learners.records import Kind, Record

PARCEL_SECONDS = 0.5
"""How long records wait at most before they leave for the recorder."""
RECORDS_KEPT = 10_000
"""Records that may wait, of some kB each."""
LINES_KEPT = 1_000
"""Log lines that may wait; the oldest go first."""
FORMAT = "{time:YYYY-MM-DD HH:mm:ss.SSS} | {level: <7} | {message}"


class Outgoing:
    """What one incarnation of a learner has to write down.

    Args:
        recorder: its handle.
    """

    def __init__(self, learner: str, incarnation: int, recorder: Any) -> None:
        self._learner, self._incarnation, self._recorder = learner, incarnation, recorder
        #: the step that this incarnation goes on from
        self.start = 0
        self._waiting: list[tuple[Record, bool]] = []  # with whether TensorBoard gets it
        self._added, self._stride = 0, 1  # since the last parcel was made; of so many records one is kept
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._sequence = 0
        self._parcel: Optional[Parcel] = None  # not known to be written
        self._outcome: Optional[ray.ObjectRef] = None  # of its last sending; None once that has failed
        self._last = time.monotonic()
        #: records given up while nothing could be written
        self.dropped = 0
        #: records taken so far; how many of these are written or given up
        self.taken = self.settled = 0
        self._sent = 0  # of `taken`, with the parcel that is on its way
        #: a logger whose lines go into the learner's file in the run folder
        self.log = logger.bind(machworks_learner=(learner, incarnation))
        # a sink of our own, by its number: the host's program may have others
        self._sink = logger.add(
            lambda message: self._lines.append(str(message)),
            format=FORMAT,
            filter=lambda record: record["extra"].get("machworks_learner") == (learner, incarnation),
        )

    @property
    def unwritten(self) -> int:
        """Records that are not known to be on disk."""
        return len(self._waiting) + (len(self._parcel.records) if self._parcel else 0)

    def add(self, record: Record, *, plotted: bool) -> None:
        """Take a record; `plotted` says whether TensorBoard gets it too."""
        self.taken += 1
        self._added += 1
        if self._added % self._stride and record.kind != "final":
            self.dropped += 1
            return
        self._waiting.append((record, plotted))
        if len(self._waiting) > RECORDS_KEPT:
            kept = [one for i, one in enumerate(self._waiting) if i % 2 or one[0].kind == "final"]
            self.dropped += len(self._waiting) - len(kept)
            self._waiting, self._stride = kept, 2 * self._stride

    def note(
        self,
        step: int,
        kind: Kind,
        values: dict[str, float],
        applied: tuple[tuple[str, int, int], ...] = (),
        *,
        plotted: bool = True,
    ) -> None:
        """Take what is known after `step` steps, now; the rest as in `Record` and `add`."""
        record = Record(self._learner, self._incarnation, step, time.time(), kind, values, applied)
        self.add(record, plotted=plotted)

    def send_if_due(self) -> None:
        """Never waits: what the recorder has not written stays here."""
        if time.monotonic() - self._last >= PARCEL_SECONDS:
            self._collect(0.0)
            self._send()

    def finish(self, seconds: float) -> bool:
        """Send all, and wait until it is written, or that long; whether it is."""
        deadline = time.monotonic() + seconds
        while True:
            self._send()
            self._collect(max(0.0, deadline - time.monotonic()))
            written = not (self._parcel or self._waiting or self._lines)
            if written or time.monotonic() >= deadline:
                logger.remove(self._sink)
                return written
            if self._parcel:  # refused: the disk may take it in a moment
                time.sleep(min(PARCEL_SECONDS, max(0.0, deadline - time.monotonic())))

    def _send(self) -> None:
        """Send the parcel that was refused, or make one of what waits, if none is on its way."""
        if self._outcome is not None:
            return
        self._last = time.monotonic()
        if self._parcel is None and (self._waiting or self._lines):
            records = tuple(record for record, _ in self._waiting)
            plotted = tuple(index for index, (_, chosen) in enumerate(self._waiting) if chosen)
            lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
            about = (self._learner, self._incarnation, self._sequence)
            self._parcel = Parcel(*about, records, plotted, lines, self.start)
            self._waiting, self._added, self._stride = [], 0, 1
            self._sequence += 1
            self._sent = self.taken
        if self._parcel is not None:
            self._outcome = self._recorder.append.remote(self._parcel)

    def _collect(self, timeout: float) -> None:
        if self._outcome is None or not ray.wait([self._outcome], timeout=timeout)[0]:
            return
        try:
            ray.get(self._outcome)
            self._parcel, self.settled = None, self._sent
        except ray.exceptions.RayError:
            pass  # the recorder has told the driver why, or is dead: the parcel goes again
        self._outcome = None
