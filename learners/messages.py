"""What travels between learners, what can happen to one, and what it can be told to do: plain values.

`learners.exchange` turns events into instructions; an actor makes the events and performs the instructions.
Letters: B rows of a batch, E width of an embedding, F features.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray

# ---------------------------------------------------------------- messages


@dataclass(frozen=True)
class Rows:
    """A batch by reference: both sides hold the data."""

    data: str  #: fingerprint of the split that the numbers count in
    numbers: NDArray[np.int32]  #: [B] row numbers

    @property
    def size(self) -> int:
        """B."""
        return len(self.numbers)


@dataclass(frozen=True)
class Features:
    """A batch by value, where the asked side does not hold the data."""

    values: NDArray[np.generic]  #: [B, F] in the data set's own type, unscaled

    @property
    def size(self) -> int:
        """B."""
        return len(self.values)


Batch = Union[Rows, Features]


@dataclass(frozen=True)
class Message:
    """What every message carries."""

    sender: str
    incarnation: int  #: grows by one with every restart of the sender
    sequence: int  #: counts this sender's messages to this receiver in this incarnation, from 0


@dataclass(frozen=True)
class Ask(Message):
    """A parent wants the embedding of a batch."""

    batch: Batch


@dataclass(frozen=True)
class Answer(Message):
    """The embedding that was asked for."""

    ask: int  #: sequence of the `Ask`
    version: int  #: the sender's steps when the embedding was computed
    embedding: NDArray[np.float32]  #: [B, E]; on the wire maybe of another type
    scale: float = 1.0  #: what numbers on the wire are to be multiplied by


@dataclass(frozen=True)
class Gradient(Message):
    """The derivative of a parent's loss by the embedding that it was given."""

    version: int  #: of the answer it belongs to, in steps of the receiver
    batch: Batch
    gradient: NDArray[np.float32]  #: [B, E]; on the wire maybe of another type
    scale: float = 1.0  #: what numbers on the wire are to be multiplied by


@dataclass(frozen=True)
class Ended(Message):
    """The sender has done its steps and asks no more."""


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Arrived:
    """A message of a neighbour is here."""

    message: Message
    at: float  #: seconds on the receiver's monotonic clock, as in all events


@dataclass(frozen=True)
class Ready:
    """The learner could take its step number `step` now."""

    step: int
    at: float


@dataclass(frozen=True)
class Trained:
    """A step is done; `gradients` are those for the children whose embeddings it used."""

    step: int
    gradients: Mapping[str, NDArray[np.float32]]  #: [B, E of the child]
    at: float


@dataclass(frozen=True)
class Embedded:
    """The asks of an `Embed` have been computed, in that order."""

    asks: tuple[Ask, ...]
    embeddings: tuple[NDArray[np.float32], ...]
    version: int
    at: float


@dataclass(frozen=True)
class Want:
    """The learner wants its children's embeddings of held-out rows; a `Got` with the same key follows."""

    key: Hashable
    batch: Batch
    at: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: float


@dataclass(frozen=True)
class Done:
    """The learner wants nothing more from its children; it still answers its parents."""

    at: float


@dataclass(frozen=True)
class Closed:
    """The supervisor says: this incarnation has ended; nothing of it counts from now on."""

    name: str
    incarnation: int
    forever: bool  #: whether no other one follows
    at: float


@dataclass(frozen=True)
class Opened:
    """The supervisor says: a new incarnation of this neighbour is there and can be asked."""

    name: str
    incarnation: int
    at: float


Event = Union[Arrived, Ready, Trained, Embedded, Want, Tick, Done, Closed, Opened]


# ---------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Send:
    """To be sent in one call."""

    to: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Embed:
    """To be computed together, with the synthetic input, and handed back as `Embedded`."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Train:
    """Take this step; a child without an answer is replaced by the synthetic input."""

    step: int
    batch: int  #: number of the batch; every batch is used once, but not in the order of the steps
    answers: Mapping[str, Optional[Answer]]
    gradients: tuple[Gradient, ...]  #: at most one per parent, oldest first


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until`, unless a message comes."""

    until: float


@dataclass(frozen=True)
class Got:
    """What came of a `Want`. One at a time: more may follow the next event."""

    key: Hashable
    answers: Mapping[str, Optional[Answer]]


@dataclass(frozen=True)
class Accuse:
    """Contents of one kind from this sender were refused three times in a row."""

    sender: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class Leave:
    """Nobody needs this learner any more."""


Instruction = Union[Send, Embed, Train, Wait, Got, Accuse, Leave]
