"""Where a learner's time goes: every moment of its loop is booked to one heading, so the sums add up to the whole."""

import time

HEADINGS = ("train", "embed", "evaluate", "record", "messages", "save", "wait")
"""train: the step, with its data; embed: answers for training; evaluate: own held-out rows, attribution, and answers
for the parents' held-out rows; record: what is written down; messages: rules and sending; save: copies of the state."""


class Account:
    """Seconds by heading, counted from its making."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(HEADINGS, 0.0)
        self._last = time.perf_counter()

    def book(self, heading: str, *, evaluation: float = 0.0) -> None:
        """Put the time since the last call under `heading`, but for the share of it that served an evaluation."""
        now = time.perf_counter()
        self.seconds[heading] += (1.0 - evaluation) * (now - self._last)
        self.seconds["evaluate"] += evaluation * (now - self._last)
        self._last = now
