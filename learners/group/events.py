"""What can happen to a member of a group of replicas, and what it can be told to do: plain values.

`learners.group.rules` turns events into instructions; an actor makes the events and performs the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from learners.group.parcels import Parcel, Sent, Whose
from learners.rbd.clocks import Clock, Taken
from learners.rbd.replica import Update

# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Made:
    """The worker has finished a round, and applied its own update."""

    update: Sent
    at: float  #: seconds on the receiver's monotonic clock, as in all events


@dataclass(frozen=True)
class Ready:
    """The worker could begin its next round; an `Apply` follows, at once unless the group is synchronous."""

    at: float


@dataclass(frozen=True)
class Arrived:
    """A parcel of a neighbour is here."""

    parcel: Parcel
    at: float


@dataclass(frozen=True)
class Opened:
    """The supervisor says: this neighbour is there, in this incarnation, and belongs to the group."""

    node: int
    incarnation: int
    at: float


@dataclass(frozen=True)
class Gone:
    """The supervisor says: nothing reaches this neighbour now."""

    node: int
    at: float


@dataclass(frozen=True)
class Joined:
    """The supervisor says: this worker is one of those for whom all wait; only a synchronous group needs to know."""

    sender: int
    incarnation: int
    first: int  #: the round of its update number 0: one that nobody has begun
    at: float


@dataclass(frozen=True)
class Ending:
    """The supervisor says: this incarnation is over. No more is taken of it, but by the log; a `Holding` follows.

    It asks again until the log holds all that the living say they hold, and then has it close the incarnation.
    """

    whose: Whose
    at: float


@dataclass(frozen=True)
class Close:
    """The supervisor says to who keeps the log: what there is of this incarnation is all that will ever count."""

    whose: Whose
    at: float


@dataclass(frozen=True)
class Found:
    """What the log has of what a `Look` asked for."""

    to: int
    updates: tuple[Sent, ...]
    at: float


@dataclass(frozen=True)
class Logged:
    """The log has all of this clock, as safely as is wanted; for who keeps it, after a `Keep`."""

    clock: Clock
    at: float


@dataclass(frozen=True)
class Done:
    """The worker makes no more updates."""

    at: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: float


Event = Union[Made, Ready, Arrived, Opened, Gone, Joined, Ending, Close, Found, Logged, Done, Tick]

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Send:
    """To be sent in one call. Whether it arrives is found out by clocks."""

    to: int
    parcel: Parcel


@dataclass(frozen=True)
class Apply:
    """To be applied together, maybe none; then the next round may begin."""

    updates: tuple[Update, ...]
    staleness: tuple[
        int, ...
    ]  #: of each: updates applied here that its sender had not; of sets that differ, an estimate


@dataclass(frozen=True)
class Keep:
    """To be appended to the log, in this order; `Logged` says that it has been."""

    updates: tuple[Sent, ...]


@dataclass(frozen=True)
class KeepClosed:
    """To be appended to the log: this incarnation has ended with these."""

    whose: Whose
    taken: Taken


@dataclass(frozen=True)
class Look:
    """This neighbour lacks updates that are no longer in memory: the log has them. A `Found` follows, if any are."""

    to: int
    has: Clock  #: all but these


@dataclass(frozen=True)
class Holding:
    """Answer to an `Ending`."""

    whose: Whose
    taken: Taken


@dataclass(frozen=True)
class Accuse:
    """An update of this incarnation is not one that a member makes; it must be closed."""

    whose: Whose
    reason: str


@dataclass(frozen=True)
class Discard:
    """This member holds what the group does not: it must rejoin as a new incarnation, from snapshot and log."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """The log has all that this worker has made: it may go."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until`, unless something comes."""

    until: float


Instruction = Union[Send, Apply, Keep, KeepClosed, Look, Holding, Accuse, Discard, Leave, Wait]
