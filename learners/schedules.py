"""Schedules of a learning rate. Light on purpose: no TensorFlow, and no more than Python 3.8."""

import math
from typing import Sequence


def rate(
    initial: float,
    schedule: str,
    warmup: int,
    step: int,
    steps: int,
    *,
    at: Sequence[float] = (),
    factor: float = 0.1,
) -> float:
    """Learning rate of step number `step` (from 0) of `steps`: a rise over `warmup` steps, then the schedule.

    With p the share of the steps after the rise that are done:
        constant     initial
        linear       initial (1 - p)
        cosine       initial (1 + cos(pi p)) / 2
        piecewise    initial factor^n, n of the shares `at` being reached
        exponential  initial factor^p
    """
    if step < warmup:
        return initial * (step + 1) / (warmup + 1)
    share = min(1.0, (step - warmup) / max(1, steps - warmup))
    if schedule == "constant":
        return initial
    if schedule == "linear":
        return initial * (1.0 - share)
    if schedule == "cosine":
        return initial * 0.5 * (1.0 + math.cos(math.pi * share))
    if schedule == "piecewise":
        return initial * factor ** sum(share >= one for one in at)
    if schedule == "exponential":
        return float(initial * factor**share)
    raise ValueError(
        f"schedule: {schedule!r} is not a schedule; one of constant, linear, cosine, piecewise, exponential"
    )
