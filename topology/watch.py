"""One run from the start of its learners to their end: the supervisor.

Consumes: a `Crew`, which makes the actors. Produces: an `Outcome`, and the end of every actor, whatever happens.
Waits for: learners that load, with a limit; then for a learner's end, half a second at a time.
Unblocked by: a learner's end or death, an interrupt (a second one ends all at once).

    loading -> running -> ended (-> gone)
       ^          |  dead, silent, diverged or accused: its neighbours are told that this incarnation is closed
       |          v
       +---- started again from the newest complete checkpoint set, as a new incarnation, `restarts` times; then failed
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from actors.common import Diverged
from learners.options import Topology, group_of
from topology import outcome
from topology.cluster import hosts
from topology.crew import Crew
from topology.figures import Figures, Live
from topology.groups import Group
from topology.members import Member, seen
from topology.outcome import words
from topology.scaling import Wishes, lacking, refusal
from topology.sets import Sets

READY_SECONDS, READY_SECONDS_EACH = 120.0, 30.0
"""How long learners may take to load and compile: in all, and for each of them (a small host does one at a time)."""
LOADING_SECONDS = 5.0
"""How often it is looked whether they take too long."""
FINISH_SECONDS, STOP_SECONDS, CLOSE_SECONDS = 60.0, 4.0, 2.0
"""How long the last set may take; the same, with the learners' ends, after an interrupt; and the recorder's files."""
POLL_SECONDS = 0.5


class NotReady(RuntimeError):
    """A learner could not be started."""


class Watch:
    """Supervises one run.

    Args:
        crew: makes the actors.
        folder: of the run.
        tell: gets a line for every event worth one.
        show: gets the newest figures, twice a second.
        incarnation: of the learners that are started first; above 0 they go on from the newest checkpoint set.
    """

    def __init__(
        self,
        ray: Any,
        topology: Topology,
        crew: Callable[[], Crew],
        folder: Path,
        tell: Callable[[str], None],
        show: Callable[[Live], None],
        incarnation: int = 0,
    ) -> None:
        self._ray, self._topology, self._make, self._folder = ray, topology, crew, folder
        self._tell, self._show, self._first = tell, show, incarnation
        self._outcome = outcome.Outcome(folder)
        self._crew: Optional[Crew] = None
        self._members: dict[str, Member] = {}
        self._groups: dict[str, Group] = {}
        self._retiring: set[str] = set()
        self._wishes = Wishes(folder)
        self._listened = time.monotonic()

    def to_the_end(self) -> outcome.Outcome:
        """Start the learners, watch them, end everything; the outcome says what came of it."""
        began = time.monotonic()
        try:
            self._train()
        except KeyboardInterrupt:
            self._outcome.status = outcome.INTERRUPTED
            with suppress(KeyboardInterrupt):
                self._tell("interrupted: the learners write down what they have (once more ends at once)")
                self._stop()
        except Exception as error:  # a fault of Ray or of ours must end the run in words, with nothing left behind
            self._problem(str(error) if isinstance(error, NotReady) else f"the run has ended: {words(error)}")
        with _undisturbed():
            self._close()
            self._outcome.seconds = time.monotonic() - began
            self._write_down()
        return self._outcome

    # -- the run

    def _train(self) -> None:
        crew, every = self._make(), self._topology.checkpoint.every
        self._figures = Figures(self._ray, crew.recorder, self._tell)
        self._sets = Sets(self._ray, crew.keeper, self._folder / "checkpoints", every, self._tell)
        self._crew = crew  # from here on there is something to stop
        for name in self._topology.groups:
            self._groups[name] = self._group(name, crew)
        if self._first and self._groups:
            self._figures.look()  # where workers had got to
        for name in self._topology.members:
            self._members[name] = self._start(name, self._first)
        self._tell(f"starting {', '.join(self._members)}: each loads TensorFlow and compiles its step")
        self._await_first()
        for member in self._members.values():
            member.state = "running"
        for group in self._groups.values():
            group.begin()
        for member in self._members.values():
            self._run(member)
        self._tell(f"training {', '.join(self._members)}; run folder {self._folder}")
        # drawing takes half a second: the learners train meanwhile
        description = self._figures.describe(self._topology) if self._first == 0 else self._ray.put(None)
        while not all(member.over for member in self._members.values()):
            self._turn()
        for group in self._groups.values():
            group.verdict(self._outcome)
        self._keep_last()
        with suppress(self._ray.exceptions.RayError, OSError):  # a disk that refuses has been told of
            self._ray.get(description, timeout=CLOSE_SECONDS)

    def _turn(self) -> None:
        """Once round: who has ended or become ready, who is alive, what is new."""
        self._collect()
        self._listen()
        self._figures.look()
        self._sets.look()
        for group in self._groups.values():
            group.turn()
        self._scale_if_asked()
        self._show(self._figures.latest)
        self._sets.ask_if_due(self._members)

    # -- starting

    def _start(self, name: str, incarnation: int) -> Member:
        """Start a learner: the first incarnation from nothing, later ones from the newest complete set."""
        assert self._crew is not None
        state, step = self._sets.find(name) if incarnation else (None, 0)
        group = self._groups.get(group_of(name))
        actor = self._crew.start(name, incarnation, state, *([group.relay.actor] if group else []))
        if group:
            step = int(self._figures.latest.get(name, {}).get("step", 0))
        elif incarnation:
            self._tell(f"{name} goes on from step {step}" + ("" if state else ": no checkpoint set has it"))
        return Member(name, incarnation, actor, actor.ready.remote(), time.monotonic(), step)

    def _group(self, name: str, crew: Crew) -> Group:
        about = (self._ray, name, self._topology, crew, self._members, self._lost, self._tell, self._first > 0)
        group = Group(*about, outcome.manifest(self._folder).get("offsets", {}))
        try:
            group.await_relay()
        except self._ray.exceptions.RayError as error:
            raise NotReady(f"learners.{name}: its relay could not start: {words(error)}") from error
        return group

    def _await_first(self) -> None:
        """All must be there before the first step: a figure per step means nothing while others still compile."""
        limit = READY_SECONDS + READY_SECONDS_EACH * len(self._members)
        deadline = time.monotonic() + limit
        waiting = {member.answer: member.name for member in self._members.values()}
        while waiting:
            done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=LOADING_SECONDS)
            for reference in done:
                name = waiting.pop(reference)
                try:
                    place, rest = self._ray.get(reference), ", ".join(waiting.values())
                    self._tell(f"{name} is {place}" + (f"; loading: {rest}" if rest else ""))
                except self._ray.exceptions.RayError as error:
                    raise NotReady(f"learners.{name} could not start: {words(error)}") from error
            if waiting and time.monotonic() > deadline:
                raise NotReady(f"learners {', '.join(waiting.values())}: not ready within {limit:.0f} s")

    def _run(self, member: Member) -> None:
        group = self._groups.get(group_of(member.name))
        around = self._topology.around(member.name)
        near = group.place(member) if group else [seen(self._members[name]) for name in around]
        member.state, member.answer, member.beaten = "running", member.actor.run.remote(near), time.monotonic()

    # -- ends, deaths, returns

    def _collect(self) -> None:
        """Take in who has ended or is ready again."""
        waited = {member.answer: member for member in self._members.values() if not member.over}
        done, _ = self._ray.wait(list(waited), num_returns=len(waited), timeout=POLL_SECONDS)
        for reference in done:
            member = waited[reference]
            try:
                said = self._ray.get(reference)
            except Exception as error:  # whatever ended a learner is told, and the others go on
                hopeless = isinstance(getattr(error, "cause", None), Diverged)  # the same rate would do it again
                self._lost(member, words(error), hopeless=hopeless)
                continue
            if member.state == "loading":
                self._returned(member, said)
            else:
                self._ended(member, said)

    def _ended(self, member: Member, summary: Any) -> None:
        member.state, member.step = "ended", summary.steps
        reached = self._reached(member, summary)
        self._tell(f"{member.name} has ended" + (f": {reached.missing}" if reached.missing else ""))
        if summary.unwritten:
            self._problem(f"learners.{member.name}: its last {summary.unwritten} records could not be written")
        self._tell_closed(member, forever=True)
        if member.name in self._retiring:
            self._outcome.learners[member.name] = replace(reached, status="retired")
            self._retired(member)

    def _reached(self, member: Member, summary: Any) -> outcome.Reached:
        seen, children = self._figures.latest.get(member.name, {}), self._topology.children_of(member.name)
        reached = outcome.ended(summary, seen, member.restarts, children)
        self._outcome.learners[member.name] = reached
        return reached

    def _lost(self, member: Member, why: str, *, hopeless: bool = False) -> None:
        """This incarnation is over: nobody counts on it, and another follows, if it may."""
        group = self._groups.get(group_of(member.name))
        if member.name in self._retiring:
            self._retired(member)
            return
        if group and not group.restores:
            hopeless, why = True, f"{why}; its group sums in float32, which no log gives back"
        again = member.restarts < self._topology.supervise.restarts and not hopeless
        self._tell_closed(member, forever=not again)
        self._ray.kill(member.actor)
        if group:
            group.lost(member)
        self._sets.without(member.name)
        text = why if f"learners.{member.name}:" in why else f"learners.{member.name}: {why}"
        if not again:
            member.state = "failed"
            self._figures.look()  # what it reached since the last round
            seen = self._figures.latest.get(member.name, {})
            self._outcome.learners[member.name] = outcome.last_seen("failed", seen, member.restarts, text)
            self._problem(f"{text}; it has been started again {member.restarts} times" if member.restarts else text)
            return
        self._tell(f"{text}; it is started again ({member.restarts + 1} of {self._topology.supervise.restarts})")
        self._outcome.events.append(text)
        fresh = self._start(member.name, member.incarnation + 1)
        fresh.restarts, fresh.step = member.restarts + 1, max(fresh.step, member.step if group else 0)
        self._members[member.name] = fresh

    def _returned(self, member: Member, place: str) -> None:
        """A learner that was started again has loaded: everybody around it is told, and it goes on."""
        group = self._groups.get(group_of(member.name))
        if group and not group.returns(member):
            return
        self._run(member)
        for name in self._topology.around(member.name):
            if self._members[name].open:
                self._members[name].actor.open.remote(member.name, member.incarnation, member.actor)
        where = "behind what the log has" if group else f"at step {member.step}"
        self._tell(f"{member.name} is back {where}: it is {place}")

    def _tell_closed(self, member: Member, *, forever: bool) -> None:
        for name in self._topology.around(member.name):
            if self._members[name].open:
                self._members[name].actor.close.remote(member.name, member.incarnation, forever)

    # -- more workers, or fewer

    def _scale_if_asked(self) -> None:
        wish = self._wishes.next() if all(group.known for group in self._groups.values()) else None
        if wish is not None:
            refused = refusal(self._topology, wish.group, wish.replicas) or self._scale(wish.group, wish.replicas)
            self._tell(refused or f"{wish.group}: {wish.replicas} workers are wished")
            self._wishes.answer(wish, refused)

    def _scale(self, name: str, replicas: int) -> str:
        """Start and retire as many as it takes; why not, if it can't be."""
        assert self._crew is not None
        group = self._groups[name]
        come, go = group.changes(replicas)
        if come and (lack := lacking(self._topology, name, len(come), hosts(self._ray))):
            return lack
        for one in come:
            group.comes(one)
            before = self._members.get(one)
            self._members[one] = self._start(one, before.incarnation + 1 if before else self._first)
            self._members[one].step = group.offsets[one]
        for member in go:
            self._retiring.add(member.name)
            member.actor.stop.remote()
        kept = outcome.manifest(self._folder)
        more = {
            "replicas": {**kept.get("replicas", {}), name: replicas},
            "offsets": {**kept.get("offsets", {}), **group.offsets},
        }
        outcome.write_manifest(self._folder, self._topology, more)
        return ""

    def _retired(self, member: Member) -> None:
        """Its updates are in the log; no other incarnation follows, unless there shall be more workers again."""
        self._retiring.discard(member.name)
        self._groups[group_of(member.name)].lost(member)
        self._ray.kill(member.actor)
        self._sets.without(member.name)
        member.state = "gone"
        self._tell(f"{member.name} is retired")

    # -- signs of life

    def _listen(self) -> None:
        """Ask every learner that runs or has ended for a sign of life; one that owes it for too long is lost."""
        now, limit = time.monotonic(), self._topology.supervise.silence
        slept, self._listened = now - self._listened > limit / 2, now
        for member in list(self._members.values()):
            if member.state == "loading" and now - member.since > READY_SECONDS:
                self._tell(f"{member.name} is not back yet: it waits for a host with free resources, or still loads")
                member.since = now
            if member.state not in ("running", "ended"):
                continue
            if member.beat is not None and self._ray.wait([member.beat], timeout=0)[0]:
                self._heard(member)
            elif member.beat is None:
                member.beat, member.beaten = member.actor.beat.remote(), now
            elif slept:  # we have not looked for a long time: what it owes may be on its way
                member.beaten = now
            elif now - member.beaten > limit:
                self._silent(member, f"no sign of life for {limit:g} s")

    def _heard(self, member: Member) -> None:
        reference, member.beat = member.beat, None
        try:
            beat = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if member.state == "ended":  # while it runs, the end of `run` says more
                self._silent(member, words(error))
            return
        member.step = beat.step
        self._figures.hear(member.name, beat.bytes)
        if group_of(member.name) in self._groups and beat.standing is not None:
            self._groups[group_of(member.name)].heard(member, beat.standing)
            if self._members[member.name] is not member:
                return
        for name, incarnation, why in beat.accused:
            accused = self._members[name]
            if accused.open and accused.incarnation == incarnation:
                self._lost(accused, f"three messages in a row were refused by {member.name}: {why}")
        if member.open and beat.idle > self._topology.supervise.silence:
            self._lost(member, f"its training has hung for {beat.idle:.0f} s")

    def _silent(self, member: Member, why: str) -> None:
        if member.open:
            self._lost(member, why)
            return
        member.state = "gone"  # its work was done; sets hold it as it was last saved
        self._sets.without(member.name)
        text = f"learners.{member.name}: it had ended, and its process is gone: {why}"
        self._tell(text)
        self._outcome.events.append(text)

    # -- the end

    def _keep_last(self) -> None:
        """A last set that holds what each learner has come to."""
        while True:
            asked = [member.state for member in self._members.values()]
            self._sets.ask(self._members)
            if self._await_sets(FINISH_SECONDS, self._listen):
                return
            if asked == [member.state for member in self._members.values()]:  # else it waited for one that is gone
                self._problem("the last checkpoint set is not complete; the one before it, if there is one, counts")
                return

    def _await_sets(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until the sets that were asked for are complete, or can't be, or that long; whether they are."""
        deadline = time.monotonic() + seconds
        while True:
            self._sets.look()
            if self._sets.settled(self._members) or time.monotonic() > deadline:
                return self._sets.complete
            meanwhile()
            time.sleep(POLL_SECONDS / 10)

    def _stop(self) -> None:
        """The end of every learner's loop, and a set of what there is then: no step that is recorded is lost."""
        if self._crew is None or not self._members:
            return
        deadline = time.monotonic() + STOP_SECONDS
        for member in self._members.values():
            member.actor.stop.remote()
        self._sets.ask(self._members)
        while any(member.open for member in self._members.values()) and time.monotonic() < deadline:
            self._collect_ends(deadline - time.monotonic())
        if not self._await_sets(max(1.0, deadline - time.monotonic())):
            self._tell("the last checkpoint set is not complete; the one before it, if there is one, counts")
        self._figures.look()

    def _collect_ends(self, seconds: float) -> None:
        """As `_collect`, but nobody is started again."""
        running = {member.answer: member for member in self._members.values() if member.open}
        done, _ = self._ray.wait(list(running), num_returns=len(running), timeout=max(0.0, seconds))
        for reference in done:
            member = running[reference]
            member.state = "gone"
            with suppress(Exception):
                summary = self._ray.get(reference)
                member.state = "ended"
                self._reached(member, summary)

    def _close(self) -> None:
        """Close the files, end every actor."""
        if self._crew is None:
            return
        try:
            self._ray.get(self._crew.recorder.close.remote(), timeout=CLOSE_SECONDS)
        except Exception as error:
            self._problem(f"the run folder may be incomplete: {words(error)}")
        for group in self._groups.values():
            with suppress(Exception):
                group.close()
        for actor in (*(one.actor for one in self._members.values()), self._crew.recorder, self._crew.keeper):
            with suppress(Exception):  # Ray itself may be gone
                self._ray.kill(actor)

    def _write_down(self) -> None:
        known, found = self._outcome.learners, {}
        for name in self._members or self._topology.members:
            seen = self._figures.latest.get(name, {}) if self._crew else {}
            restarts = self._members[name].restarts if name in self._members else 0
            found[name] = known.get(name) or outcome.last_seen("stopped" if seen else "not started", seen, restarts)
        self._outcome.learners = found
        newest = max((member.incarnation for member in self._members.values()), default=self._first)
        more = {"state": self._outcome.state, "incarnation": newest, "outcome": self._outcome.as_json()}
        try:
            outcome.write_manifest(self._folder, self._topology, more)
        except OSError as error:
            self._problem(f"{self._folder}/run.json could not be written: {error}")

    def _problem(self, text: str) -> None:
        self._outcome.fault(text)
        self._tell(text)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No interrupt in this block: it is short, and what it leaves undone would stay so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
