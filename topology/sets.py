"""Checkpoint sets, as the supervisor sees them: when one is asked for, of whom, and what a learner goes on from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

from actors import checkpoint
from topology.figures import Fault
from topology.members import Member
from topology.outcome import words

LOOK_SECONDS = 2.0


class Sets:
    """The checkpoint sets of one run.

    Args:
        keeper: its handle.
        folder: of the sets.
        every: steps of any learner between two sets; 0: only when asked.
    """

    def __init__(self, ray: Any, keeper: Any, folder: Path, every: int, tell: Callable[[str], None]) -> None:
        self._ray, self._keeper, self._folder, self._every = ray, keeper, folder, every
        self._fault = Fault(
            tell,
            "no checkpoint set can be written: {}; training goes on, and the sets before it count",
            "checkpoint sets are written again",
        )
        self._number = checkpoint.last_number(folder)  # of the set that was asked for last
        self._at: dict[str, int] = {}  # step of each learner then
        self._kept: Any = None

    def find(self, name: str) -> tuple[Optional[bytes], int]:
        """What a learner goes on from, and the step: from the newest complete set, or from nothing if none has it."""
        found, _ = checkpoint.newest(self._folder)
        state, self._at[name] = None, 0
        if found is not None and name in found.steps:
            try:
                state, self._at[name] = checkpoint.read(found, name), found.steps[name]
            except FileNotFoundError:  # removed as an old one meanwhile: there is a newer one
                return self.find(name)
        return state, self._at[name]

    def ask_if_due(self, members: Mapping[str, Member]) -> None:
        """Ask for the next set, if a learner has come far enough since the last one."""
        ahead = max((one.step - self._at.get(one.name, 0) for one in members.values() if one.open), default=0)
        if self._every and ahead >= self._every:
            self.ask(members)

    def ask(self, members: Mapping[str, Member]) -> None:
        """Ask for the next set: of everyone who can be asked; others are in it as they were in the one before."""
        asked = [one for one in members.values() if one.open or (one.state == "ended" and not self._has(one))]
        if not asked:
            return
        self._number += 1
        names = {one.name for one in asked}
        self._keeper.begin.remote(self._number, tuple(names), tuple(members.keys() - names))
        for one in asked:
            self._at[one.name] = one.step
            one.actor.save.remote(self._number)

    def without(self, name: str) -> None:
        """This incarnation of a learner is over: no set waits for it."""
        self._keeper.without.remote(name)

    def look(self) -> None:
        """Ask the keeper how far it is, and tell when it begins or ceases to fail."""
        try:
            self._kept = self._ray.get(self._keeper.look.remote(), timeout=LOOK_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            return  # a slow disk
        except self._ray.exceptions.RayError as error:  # Ray starts it again
            self._fault.note(f"the keeper: {words(error)}")
            return
        self._fault.note(self._kept.fault)

    def settled(self, members: Mapping[str, Member]) -> bool:
        """Whether the last set is complete or given up; a keeper that has died meanwhile is asked for another."""
        if self._kept is None or self.complete:
            return self.complete
        if self._kept.begun < self._number:
            self.ask(members)
            return False
        return self._number not in self._kept.open

    @property
    def complete(self) -> bool:
        """Whether what was asked for last is complete."""
        return self._number < 0 or (self._kept is not None and self._kept.newest >= self._number)

    def _has(self, member: Member) -> bool:
        """Whether the newest complete set holds an ended learner as it ended."""
        return self._kept is not None and self._kept.steps.get(member.name) == member.step
