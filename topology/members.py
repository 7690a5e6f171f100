"""What the supervisor knows of each learner, and what it tells others of it."""

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["loading", "running", "ended", "gone", "failed"]
"""ended: has done what it had to, and its process can still be asked; gone: and can't; failed: for good."""


@dataclass
class Member:
    """One learner of a run, in its newest incarnation."""

    name: str
    incarnation: int
    actor: Any
    answer: Any  #: reference of `ready` while it loads, of `run` while it runs
    since: float  #: when it was started
    step: int  #: the newest that is known of
    restarts: int = 0
    state: State = "loading"
    beat: Any = None  #: reference of the `beat` that it owes; None once it has answered
    beaten: float = 0.0  #: when that was asked for

    @property
    def open(self) -> bool:
        """Whether messages to and from this incarnation count."""
        return self.state == "running"

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ("ended", "gone", "failed")


def seen(member: Member) -> Any:
    """Where a learner is, as one of its neighbours that begins to run is told (a `Neighbour` of actors/mach.py)."""
    from actors.mach import Neighbour

    if member.open:
        return Neighbour(member.name, member.incarnation, member.actor)
    # the incarnation that is still to come will open itself
    last = member.incarnation if member.over else member.incarnation - 1
    return Neighbour(member.name, last, None, member.over)
