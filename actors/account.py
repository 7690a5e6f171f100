"""Where a learner's time goes: every moment of its loop is booked to one heading, so the sums add up to the whole."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HEADINGS = ("train", "embed", "evaluate", "record", "messages", "save", "wait")
"""train: the step, with its data; embed: answers for training; evaluate: own held-out rows, attribution, and answers
for the parents' held-out rows; record: what is written down; messages: rules and sending; save: copies of the state."""

ROUND = ("gradient", "project", "expand", "train", "apply", "messages", "wait", "evaluate", "record", "save")
"""Of a worker of random bases. expand: its own update; train: what is left of a round, batches among it; apply: others'
updates; messages: rules, packing and sending; wait: for others, in a synchronous group and at the end."""


class Account:
    """Seconds by heading, counted from its making in the thread of the loop."""

    def __init__(self, headings: tuple[str, ...] = HEADINGS) -> None:
        self.seconds = dict.fromkeys(headings, 0.0)
        self._busy = dict.fromkeys(headings, 0.0)  # the same of a processor, in this thread
        self._last, self._last_busy, self._process = time.perf_counter(), time.thread_time(), time.process_time()
        self._only = ""

    def book(self, heading: str, *, evaluation: float = 0.0) -> None:
        """Put the time since the last call under `heading`, but for the share of it that served an evaluation."""
        now, busy, heading = time.perf_counter(), time.thread_time(), self._only or heading
        for sums, spent in ((self.seconds, now - self._last), (self._busy, busy - self._last_busy)):
            sums[heading] += (1.0 - evaluation) * spent
            sums["evaluate"] += evaluation * spent
        self._last, self._last_busy = now, busy

    @property
    def processor(self) -> dict[str, float]:
        """Seconds of a processor by heading, and in `others` those of all other threads: TensorFlow's and Ray's."""
        others = time.process_time() - self._process - sum(self._busy.values())
        return {**self._busy, "others": max(0.0, others)}

    @contextmanager
    def only(self, heading: str, before: str) -> Iterator[None]:
        """Put all of this block under `heading`, and the time since the last call under `before`."""
        self.book(before)
        self._only = heading
        try:
            yield
            self.book(heading)
        finally:
            self._only = ""


def timed(directions: Any, book: Callable[[str], None]) -> Any:
    """Random directions that book what they take, and "train" for what was before; others as they are."""
    from learners.rbd.directions import Drawn

    if not isinstance(directions, Drawn):
        return directions

    class Timed(Drawn):
        def project(self, *arguments: Any) -> Any:
            book("train")
            found = super().project(*arguments)
            book("project")
            return found

        def expand(self, *arguments: Any) -> Any:
            book("train")
            found = super().expand(*arguments)
            book("expand")
            return found

    return Timed(**vars(directions))
