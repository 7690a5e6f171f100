"""What a learner takes of its host and of the wire, for the plan, which loads nothing heavy, and for those who run it.

Light on purpose: no TensorFlow, no Ray, and no more than Python 3.8.
"""

from typing import List, Sequence

SLOTS = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2}
"""State tensors that an update rule keeps for each weight, all zero at the start."""

CPUS = 0.5
"""CPUs of a learner that does not say; three fit on two cores."""

INLINE_LIMIT = 96 * 1024
"""Bytes of arrays in a message from which they go through the object store. Ray's own limit for an argument of a call,
100 KiB, counts what is around the arrays too."""

BYTES = {"float32": 4, "float16": 2, "int8": 1}
"""Of a number of an embedding or a gradient, by `exchange.precision`."""


def threads(cpus: float) -> int:
    """Threads of a learner: the whole part of its CPUs, at least one."""
    return max(1, int(cpus))


def inline(sizes: Sequence[int], limit: int = INLINE_LIMIT) -> List[bool]:
    """Which of a message's arrays travel within the call: all, without the largest until the rest is below `limit`."""
    kept, total = [True] * len(sizes), sum(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if total < limit:
            break
        kept[index] = False
        total -= sizes[index]
    return kept
