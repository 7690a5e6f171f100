"""From bytes a second to what a worker sends: `exchange.budget`.

A worker with a residual of its own may take any number of steps before it says what came of them, so that number is
what keeps to a budget, round by round, whatever a step takes (`steps_until`). What all must share is chosen before: the
number of directions, of a sign each. As the study found, the coordinates that are sent in all decide, so few bytes are
spent on headers where there are few, and rounds get no longer than they must.

Letters: d directions, H steps of a round.
"""

from __future__ import annotations

from typing import NamedTuple

from learners.rbd.coordinates import payload_bytes
from learners.rbd.options import STEPS_A_SECOND

HEADERS = 50
"""Bytes of an update that leaves by itself, beside its coordinates."""
CLOCK = 120
"""Bytes of a parcel with clocks of some workers."""
CLOCK_SHARE = 0.05
"""Of the budget, for clocks."""
USUAL_STEPS, MOST_STEPS = 10, 1000
FEW, USUAL, MANY = 250, 1000, 16_000
_UNITS = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6}


class Chosen(NamedTuple):
    """What a budget comes to."""

    dimensions: int
    every: int  #: steps of a round, at `STEPS_A_SECOND`; a run adapts it
    beat: float  #: seconds between two clocks


def bytes_a_second(text: str) -> float:
    """Of `2kB/s`."""
    unit = next(unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit))
    return float(text.removesuffix(unit)) * _UNITS[unit]


def chosen(budget: float, size: int) -> Chosen:
    """What keeps to `budget`, bytes a second that one worker sends, for a network of `size` weights.

    Up to some 35 bytes a step 1,000 directions, every so often as the budget says (250, where that were more than 200
    steps apart); beyond, more directions every 10 steps.
    """
    each = (1.0 - CLOCK_SHARE) * budget / STEPS_A_SECOND
    d = 8 * int(USUAL_STEPS * each - HEADERS - 1)
    if d < USUAL:
        d = USUAL if _cost(USUAL) <= 200 * each else FEW
    d = min(d, MANY, size)
    every = min(MOST_STEPS, max(USUAL_STEPS if d > USUAL else 1, round(_cost(d) / each)))
    return Chosen(d, every, max(0.3, CLOCK / (CLOCK_SHARE * budget)))


def _cost(d: int) -> int:
    return HEADERS + payload_bytes([d], "sign")


def steps_until(budget: float, sent: float, cost: float, seconds: float, steps_a_second: float) -> int:
    """Steps of the next round: at its end `budget` has allowed what was sent and what the round will send.

    Args:
        sent, seconds: bytes so far, and in how long.
        cost: bytes of the next update, with its headers.
    """
    due = (sent + cost) / budget - seconds
    return min(MOST_STEPS, max(1, round(due * steps_a_second)))
