"""The groups of workers of a run, as the supervisor sees them: their relays, their ends, and whether they agree.

Consumes: signs of life of workers and relays. Produces: what they are told of one another; the group's verdict.

    a worker dies   all others are asked what they hold of its incarnation, until the log has all of that; then the log
                    closes it there. Its next incarnation begins behind that, with what the log has.
    a relay dies    its workers train on; the next one begins with the log, and they tell it what it lacks.
    all are done    each worker is told what the log has then, and ends with just that.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Optional

from learners.options import Topology, group_of, member, number_of
from learners.rbd.clocks import Clock, Taken
from learners.rbd.defaults import round_steps
from learners.rbd.options import Exchange
from learners.rbd.refusals import arithmetic
from topology.crew import Crew
from topology.members import Member
from topology.outcome import Outcome, words

Whose = tuple[int, int]

READY_SECONDS = 60.0
"""How long a relay may take to start, with a log to read."""
AGAIN_SECONDS = 0.2
"""Until members are asked again what they hold."""
CLOSE_SECONDS = 2.0
"""How long a log may take to get to the disk at the end."""
ATTEMPTS = 3
"""Relays that may fail one after the other before they have started."""


@dataclass
class Closing:
    """An incarnation that ends."""

    log: Optional[Taken] = None  #: what the log has of it
    others: dict[str, Taken] = field(default_factory=dict)  #: and who else, by name
    asked: float = 0.0  #: when they were asked last


@dataclass
class Relay:
    """One group's relay, in its newest incarnation."""

    incarnation: int
    actor: Any
    answer: Any  #: reference of `ready` while it loads, of `run` while it runs
    since: float  #: when it was started
    running: bool = False
    beat: Any = None
    beaten: float = 0.0


class Group:
    """One group.

    Args:
        members: all members of the run, by name; those that are started again are replaced there.
        lose: called with a worker that must end, and why.
        resumed: whether there has been an earlier run, whose incarnations are all over.
        offsets: of workers that came later.
    """

    def __init__(
        self,
        ray: Any,
        name: str,
        topology: Topology,
        crew: Crew,
        members: Mapping[str, Member],
        lose: Callable[[Member, str], None],
        tell: Callable[[str], None],
        resumed: bool,
        offsets: Mapping[str, int],
    ) -> None:
        self._ray, self.name, self._crew, self._all, self._lose, self._tell = ray, name, crew, members, lose, tell
        self.offsets = dict(offsets)  #: steps of others that workers which came later need not do
        exchange = topology.workers[name].exchange
        self._paced = isinstance(exchange, Exchange) and exchange.budget is not None
        self._steps, self._clock = round_steps(topology.workers[name]), Clock()
        self._silence, self._resumed = topology.supervise.silence, resumed
        self._sync = topology.workers[name].exchange.mode == "sync"
        #: whether a worker that dies can be had again: float sums depend on their order, which the log has not
        self.restores = arithmetic(topology.workers[name])[0] == "exact"
        self._closings: dict[Whose, Closing] = {}
        self._firsts: dict[Whose, int] = {}  # round of the first update of each incarnation; synchronous
        self._done: set[Whose] = set()  # whose updates the log has all, and who makes no more
        self._known: set[Whose] = set()  # who has given a sign of life
        self._told: set[Whose] = set()  # with what to end
        self._failures, self._fault = 0, ""
        self.relay = self._started(0)

    # -- the beginning

    def await_relay(self) -> None:
        """Return once the relay is there.

        Raises:
            RayError: it can't start.
        """
        self._ray.get(self.relay.answer, timeout=READY_SECONDS)
        self._run_relay()

    def begin(self) -> None:
        """All workers have loaded and joined, and are about to run."""
        if self._resumed:
            for whose in self._ray.get(self.relay.actor.open_ends.remote(), timeout=READY_SECONDS):
                self.relay.actor.close.remote(whose)
        if self._sync:
            self._firsts = dict.fromkeys(map(_whose, self._members), 0)
        for one in self._members:
            self._introduce(one)

    def place(self, one: Member) -> Any:
        """Where a worker begins."""
        from actors.membership import Place

        firsts = tuple((*whose, first) for whose, first in self._firsts.items())
        first, offset = self._firsts.get(_whose(one), 0), self.offsets.get(one.name, 0)
        step = one.step if self._paced else None
        return Place(self.relay.incarnation, self.relay.actor, first, firsts, step, offset)

    # -- workers that die and come back

    def lost(self, one: Member) -> None:
        """This incarnation is over."""
        self.relay.actor.gone.remote(number_of(one.name))
        self._closings[_whose(one)] = Closing()

    def returns(self, one: Member) -> bool:
        """Whether a worker that has loaded may begin: what its former incarnation has made is settled then."""
        former = [whose for whose in self._closings if whose[0] == number_of(one.name)]
        if self._sync and former:
            return self._joins(one, former[0])
        if not former:
            self._introduce(one)
        return not former

    def _joins(self, one: Member, former: Whose) -> bool:
        """In a synchronous group all wait for a dead worker's next update, of round r; its successor begins with r + 1.

        Nobody can have begun that one, and nobody will before the closing, which comes last.
        """
        closing = self._closings[former]
        if not self._is_settled(closing):
            return False
        assert closing.log is not None
        self._firsts[_whose(one)] = first = self._firsts[former] + closing.log.below + 1
        asked = [other.actor.joined.remote(*_whose(one), first) for other in self._living if other is not one]
        self._introduce(one)
        self._ray.wait(asked, num_returns=len(asked), timeout=self._silence)
        self._close(former)
        return True

    # -- more of them, or fewer

    def changes(self, replicas: int) -> tuple[list[str], list[Member]]:
        """Who is to come and who is to go, that there are so many."""
        there = {one.name: one for one in self._members if not one.over}
        free = (name for i in count() if (name := member(self.name, i)) not in there)
        return list(islice(free, max(0, replicas - len(there)))), list(there.values())[replicas:]

    @property
    def known(self) -> bool:
        """Whether all have said where they have got to."""
        return all(_whose(one) in self._known for one in self._living)

    def comes(self, name: str) -> None:
        """A worker is about to be started: it goes on where those who are there have got to."""
        reached = min((one.step for one in self._living), default=0) // self._steps
        own = sum(taken.below for whose, taken in self._clock.taken.items() if whose[0] == number_of(name))
        self.offsets[name] = self._steps * max(0, reached - own)

    # -- once round

    def turn(self) -> None:
        """What is due: the relay's life, incarnations to be closed, the end."""
        self._look_after_relay()
        now = time.monotonic()
        for whose, closing in list(self._closings.items()):
            waits = self._sync and member(self.name, whose[0]) in {one.name for one in self._returning}
            if self._is_settled(closing) and not waits:
                self._close(whose)
            elif now - closing.asked > AGAIN_SECONDS:
                closing.asked = now
                for actor in (self.relay.actor, *(one.actor for one in self._living)):
                    actor.ending.remote(whose)
        self._end()

    def heard(self, one: Member, standing: Any) -> None:
        """A worker's sign of life."""
        self._known.add(_whose(one))
        for whose, taken in standing.holding.items():
            if whose in self._closings:
                self._closings[whose].others[one.name] = taken
        self._accused(standing, one.name)
        if standing.done and _whose(one) not in self._done:
            self._done.add(_whose(one))
            self.relay.actor.close.remote(_whose(one))  # nobody need wait for more

    def _accused(self, standing: Any, by: str) -> None:
        for (number, incarnation), why in standing.accused:
            accused = self._all.get(member(self.name, number))
            if accused is not None and accused.open and accused.incarnation == incarnation:
                self._lose(accused, f"an update was refused by {by}: {why}")

    def _is_settled(self, closing: Closing) -> bool:
        """Whether the log has all of it that anybody has."""
        if closing.log is None or not all(one.name in closing.others for one in self._living):
            return False
        return all(next(taken.beyond(closing.log), None) is None for taken in closing.others.values())

    def _close(self, whose: Whose) -> None:
        del self._closings[whose]
        self.relay.actor.close.remote(whose)

    def _end(self) -> None:
        """Once all have made what they make: each is told with what to end."""
        if self._returning or self._closings or not self.relay.running:
            return
        waiting = [one for one in self._living if _whose(one) not in self._told]
        if not waiting or any(_whose(one) not in self._done for one in self._living):
            return
        try:
            _, standing = self._ray.get(self.relay.actor.beat.remote(), timeout=CLOSE_SECONDS)
        except self._ray.exceptions.RayError:
            return
        for one in waiting:
            self._told.add(_whose(one))
            one.actor.finish.remote(standing.clock)

    # -- the relay

    def _started(self, incarnation: int) -> Relay:
        actor = self._crew.relay(self.name, incarnation)
        return Relay(incarnation, actor, actor.ready.remote(), time.monotonic())

    def _run_relay(self) -> None:
        self.relay.answer = self.relay.actor.run.remote()
        self.relay.running, self.relay.beaten, self._failures = True, time.monotonic(), 0

    def _look_after_relay(self) -> None:
        relay = self.relay
        if self._ray.wait([relay.answer], timeout=0)[0]:
            try:
                self._ray.get(relay.answer)
            except Exception as error:
                self._replace(words(error))
            else:
                self._relay_is_back()
            return
        now = time.monotonic()
        if not relay.running:
            if now - relay.since > READY_SECONDS:
                self._replace(f"not ready within {READY_SECONDS:g} s")
        elif relay.beat is None:
            relay.beat, relay.beaten = relay.actor.beat.remote(), now
        elif self._ray.wait([relay.beat], timeout=0)[0]:
            self._hear_relay()
        elif now - relay.beaten > self._silence:
            self._replace(f"no sign of life for {self._silence:g} s")

    def _hear_relay(self) -> None:
        reference, self.relay.beat = self.relay.beat, None
        try:
            idle, standing = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            return  # the end of `run` says more
        self._clock = standing.clock
        for whose, taken in standing.holding.items():
            if whose in self._closings:
                self._closings[whose].log = taken
        self._accused(standing, "the relay")
        if standing.fault and not self._fault:
            self._tell(f"{self.name}: its log can't be written: {standing.fault}; its workers train on by themselves")
        if self._fault and not standing.fault:
            self._tell(f"{self.name}: its log is written again")
        self._fault = standing.fault
        if idle > self._silence:
            self._replace(f"it has hung for {idle:.0f} s")

    def _replace(self, why: str) -> None:
        """The relay is over: the next one goes on with the log."""
        self._failures += 0 if self.relay.running else 1
        if self._failures >= ATTEMPTS:
            raise RuntimeError(f"learners.{self.name}: its relay does not start: {why}")
        self._tell(f"{self.name}: its relay is started again: {why}")
        self._ray.kill(self.relay.actor)
        for one in self._living:
            one.actor.gone.remote()
        self.relay = self._started(self.relay.incarnation + 1)

    def _relay_is_back(self) -> None:
        if self.relay.running:
            return  # it was stopped
        self._run_relay()
        for one in self._living:
            self._introduce(one)
            one.actor.open.remote(self.relay.incarnation, self.relay.actor)
        for whose, first in self._firsts.items():
            self.relay.actor.joined.remote(*whose, first)
        for whose in self._done:
            self.relay.actor.close.remote(whose)
        for closing in self._closings.values():
            closing.log = None
        self._tell(f"{self.name}: its relay is back")

    def _introduce(self, one: Member) -> None:
        self.relay.actor.open.remote(*_whose(one), one.actor)
        if self._sync:
            self.relay.actor.joined.remote(*_whose(one), self._firsts[_whose(one)])

    # -- who there is

    @property
    def _members(self) -> Iterator[Member]:
        return (one for name, one in list(self._all.items()) if group_of(name) == self.name)

    @property
    def _living(self) -> list[Member]:
        return [one for one in self._members if one.open]

    @property
    def _returning(self) -> list[Member]:
        return [one for one in self._members if one.state == "loading"]

    # -- the end

    def verdict(self, outcome: Outcome) -> None:
        """Say whether all replicas have come to the same; a fault of the run if not."""
        reached = {one.name: outcome.learners.get(one.name) for one in self._members}
        ended = {name: one for name, one in reached.items() if one is not None and one.status == "done"}
        digests = {one.digest for one in ended.values()}
        if len(digests) == 1:
            updates = max(one.counts.get("in clock", 0) for one in ended.values())
            self._tell(f"{self.name}: {len(ended)} replicas of {updates} updates: equal digests, {digests.pop()}")
        elif digests:
            each = ", ".join(f"{name} {one.digest}" for name, one in ended.items())
            outcome.fault(f"learners.{self.name}: replicas differ: {each}")
            self._tell(outcome.problems[-1])

    def close(self) -> None:
        """Get the log to the disk, and end the relay."""
        self.relay.actor.stop.remote()
        if self.relay.running and self._ray.wait([self.relay.answer], timeout=CLOSE_SECONDS)[0]:
            self._tell(f"{self.name}: its relay took {self._ray.get(self.relay.answer):.2f} s of a processor")
        self._ray.kill(self.relay.actor)


def _whose(one: Member) -> Whose:
    return number_of(one.name), one.incarnation
