"""How many steps each round of a worker has, that what it sends keeps to a budget of bytes a second."""

import time
from collections.abc import Callable
from typing import Optional

from learners.rbd.budget import bytes_a_second, steps_until
from learners.rbd.options import STEPS_A_SECOND, AnyLearner, Sgd

CREDIT_SECONDS = 1.0
"""Of a budget, that can be made up for at most."""


def budget_of(options: AnyLearner) -> float:
    """Bytes a second that each worker sends at most; 0: as many as it takes."""
    text = "" if isinstance(options, Sgd) else options.exchange.budget
    return bytes_a_second(text) if text else 0.0


class Pace:
    """How many steps each round has, that what a worker sends keeps to a budget.

    Args:
        budget: bytes a second.
        cost: bytes of an update, with all headers.
    """

    def __init__(self, budget: float, cost: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._cost, self._clock = budget, cost, clock
        self._since: Optional[float] = None  # when it began to count
        self._sent = 0  # bytes that were sent before
        self._last = (0.0, 0)  # when the last round began, and its steps
        self._speed = STEPS_A_SECOND

    def steps(self, sent: int, left: int) -> int:
        """Of the round that begins now.

        Args:
            sent: bytes so far.
            left: steps that are left.
        """
        now = self._clock()
        if self._since is None:
            self._since, self._sent = now, sent
        elif now > self._last[0]:
            self._speed += 0.2 * (self._last[1] / (now - self._last[0]) - self._speed)
        unused = self._budget * (now - self._since) - (sent - self._sent)
        if unused > self._budget * CREDIT_SECONDS:  # after a pause there is no burst
            self._since += unused / self._budget - CREDIT_SECONDS
        found = steps_until(self._budget, sent - self._sent, self._cost, now - self._since, self._speed)
        self._last = (now, min(found, left))
        return self._last[1]
