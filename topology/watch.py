"""One run from the start of its learners to their end: the supervisor.

Consumes: a `Crew`, which makes the actors. Produces: an `Outcome`, and the end of every actor, whatever happens.
Waits for: learners that load, with a limit; then for a learner's end, half a second at a time.
Unblocked by: a learner's end or death, an interrupt (a second one ends all at once).

    loading -> running -> ended
       ^          |  dead, silent, diverged or accused: its neighbours are told that this incarnation is closed
       |          v
       +---- started again from the newest complete checkpoint set, as a new incarnation, `restarts` times; then failed
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import msgspec

from actors import checkpoint
from learners.options import Topology
from topology import outcome, parse
from topology.crew import Crew

READY_SECONDS, READY_SECONDS_EACH = 120.0, 30.0
"""How long learners may take to load and compile: in all, and for each of them (a small host does one at a time)."""
LOADING_SECONDS = 5.0
"""How often it is said who still loads."""
STOP_SECONDS, CLOSE_SECONDS = 4.0, 2.0
"""How long learners may take to write down what they have, and recorder and keeper to finish."""
POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0

Live = Mapping[str, Mapping[str, float]]
"""Newest value of every figure, per learner."""


class NotReady(RuntimeError):
    """A learner could not be started."""


@dataclass
class _Learner:
    """What the supervisor knows of one learner."""

    name: str
    incarnation: int
    actor: Any
    loading: Any  #: reference of `ready`; None once it has answered
    since: float  #: when it was started
    running: Any = None  #: reference of `run`; None before, and after its end
    beat: Any = None  #: reference of the last `beat`, None once it has answered
    beaten: float = 0.0  #: when that was asked for
    step: int = 0
    restarts: int = 0
    over: bool = False  #: ended or failed for good


@dataclass
class _Sets:
    """Checkpoint sets: which was asked for last, and at which step of the learner furthest ahead."""

    number: int
    step: int = 0
    told: str = field(default="")


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
        self._tell, self._show = tell, show
        self._first = incarnation
        self._outcome = outcome.Outcome(folder)
        self._crew: Optional[Crew] = None
        self._learners: dict[str, _Learner] = {}
        self._sets = _Sets(checkpoint.last_number(folder / "checkpoints"))
        self._latest: Live = {}
        self._faulty = False

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
            self._problem(str(error) if isinstance(error, NotReady) else f"the run has ended: {_words(error)}")
        with suppress(KeyboardInterrupt):
            self._close()
        self._outcome.seconds = time.monotonic() - began
        self._write_down()
        return self._outcome

    # -- the run

    def _train(self) -> None:
        self._crew = self._make()
        for name in self._topology.learners:
            self._learners[name] = self._start(name, self._first)
        self._tell(f"{len(self._learners)} learners are starting")
        self._sets.step = max(learner.step for learner in self._learners.values())
        self._await_first()
        for learner in self._learners.values():
            self._run(learner)
        self._tell(f"{len(self._learners)} learners are training; run folder {self._folder}")
        description = self._crew.recorder.describe.remote(*_described(self._topology))  # drawing takes half a second
        while not all(learner.over for learner in self._learners.values()):
            self._turn(POLL_SECONDS)
        self._save(self._learners.values())  # the last set holds what each has come to
        self._await_sets(STOP_SECONDS)
        with suppress(self._ray.exceptions.GetTimeoutError, OSError):  # a disk that refuses has been told of
            self._ray.get(description, timeout=CLOSE_SECONDS)

    def _turn(self, seconds: float) -> None:
        """Once round: who has ended or become ready, who is alive, what is new."""
        self._collect(seconds)
        self._listen()
        self._look()
        self._show(self._latest)
        ahead = max((learner.step for learner in self._learners.values() if not learner.over), default=0)
        if self._topology.checkpoint.every and ahead - self._sets.step >= self._topology.checkpoint.every:
            self._sets.step = ahead
            self._save(learner for learner in self._learners.values() if learner.loading is None)

    # -- starting

    def _start(self, name: str, incarnation: int) -> _Learner:
        """Start a learner from the newest complete set, or from nothing if there is none."""
        assert self._crew is not None
        found, ignored = checkpoint.newest(self._folder / "checkpoints")
        if incarnation == 0 or found is None or name not in found.steps:
            state, step = None, 0
        else:
            state, step = checkpoint.read(found, name), found.steps[name]
        if incarnation:
            for line in ignored:
                self._tell_set(line)
            self._must(self._crew.recorder.begin.remote(name, incarnation, step), f"records of {name}")
            self._tell(f"{name} goes on from step {step}" + ("" if state else ": no checkpoint set has it"))
        actor = self._crew.start(name, incarnation, state)
        return _Learner(name, incarnation, actor, actor.ready.remote(), time.monotonic(), step=step)

    def _await_first(self) -> None:
        """All must be there before the first step: a figure per step means nothing while others still compile."""
        limit = READY_SECONDS + READY_SECONDS_EACH * len(self._learners)
        deadline = time.monotonic() + limit
        while waiting := {learner.loading: learner for learner in self._learners.values() if learner.loading}:
            done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=LOADING_SECONDS)
            for reference in done:
                self._must(reference, f"learners.{waiting[reference].name} could not start")
                waiting.pop(reference).loading = None
            if waiting and time.monotonic() > deadline:
                names = ", ".join(learner.name for learner in waiting.values())
                raise NotReady(f"learners {names}: not ready within {limit:.0f} s")
            if waiting:
                self._tell(f"loading: {', '.join(learner.name for learner in waiting.values())}")
        for learner in self._learners.values():
            for other in self._around(learner.name):
                self._must(self._open(learner, other), f"learners.{learner.name} could not be connected")

    @staticmethod
    def _open(learner: _Learner, other: _Learner) -> Any:
        """Tell a learner where a neighbour is, and as which incarnation."""
        return learner.actor.open.remote(other.name, other.incarnation, other.actor)

    def _must(self, reference: Any, otherwise: str) -> None:
        try:
            self._ray.get(reference, timeout=READY_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise NotReady(f"{otherwise}: {_words(error)}") from error

    def _run(self, learner: _Learner) -> None:
        learner.running, learner.beaten = learner.actor.run.remote(), time.monotonic()

    def _around(self, name: str) -> list[_Learner]:
        """Children and parents."""
        near = (*self._topology.children_of(name), *self._topology.parents_of(name))
        return [self._learners[other] for other in near]

    # -- ends, deaths, returns

    def _collect(self, seconds: float) -> None:
        """Take in who has ended or is ready again, waiting that long for the next."""
        waited = {
            reference: learner
            for learner in self._learners.values()
            for reference in (learner.loading, learner.running)
            if reference is not None
        }
        done, _ = self._ray.wait(list(waited), num_returns=len(waited), timeout=seconds)
        for reference in done:
            learner = waited[reference]
            try:
                said = self._ray.get(reference)
            except Exception as error:  # whatever ended a learner is told, and the others go on
                self._lost(learner, _words(error))
                continue
            if reference is learner.loading:
                self._returned(learner)
            else:
                self._ended(learner, said)

    def _ended(self, learner: _Learner, summary: Any) -> None:
        learner.running, learner.over = None, True
        self._outcome.learners[learner.name] = outcome.ended(summary, learner.restarts)
        self._tell(f"{learner.name} has ended")
        if summary.unwritten:
            self._problem(f"learners.{learner.name}: its last {summary.unwritten} records could not be written")
        self._tell_closed(learner, forever=True)

    def _lost(self, learner: _Learner, why: str) -> None:
        """This incarnation is over: nobody counts on it, and another follows, if it may."""
        assert self._crew is not None
        again = learner.restarts < self._topology.supervise.restarts
        self._tell_closed(learner, forever=not again)
        self._ray.kill(learner.actor)
        self._crew.keeper.without.remote(learner.name)
        text = why if f"learners.{learner.name}:" in why else f"learners.{learner.name}: {why}"
        learner.loading = learner.running = None
        if not again:
            learner.over = True
            self._outcome.learners[learner.name] = outcome.last_seen(
                "failed", self._latest.get(learner.name, {}), learner.restarts, text
            )
            self._problem(f"{text}; it has been started again {learner.restarts} times" if learner.restarts else text)
            return
        self._tell(f"{text}; it is started again ({learner.restarts + 1} of {self._topology.supervise.restarts})")
        self._outcome.events.append(text)
        fresh = self._start(learner.name, learner.incarnation + 1)
        fresh.restarts = learner.restarts + 1
        self._learners[learner.name] = fresh

    def _returned(self, learner: _Learner) -> None:
        """A learner that was started again has loaded: everybody around it is told, and it goes on."""
        learner.loading = None
        for other in self._around(learner.name):
            if other.over or other.loading is not None:
                last = other.incarnation if other.over else other.incarnation - 1
                learner.actor.close.remote(other.name, last, other.over)
            else:
                self._open(learner, other)
                self._open(other, learner)
        self._run(learner)
        self._tell(f"{learner.name} is back at step {learner.step}")

    def _tell_closed(self, learner: _Learner, *, forever: bool) -> None:
        for other in self._around(learner.name):
            other.actor.close.remote(learner.name, learner.incarnation, forever)

    def _listen(self) -> None:
        """Ask every running learner for a sign of life; one that owes it for too long is lost."""
        now, limit = time.monotonic(), self._topology.supervise.silence
        for learner in list(self._learners.values()):
            if learner.running is None:
                if learner.loading is not None and now - learner.since > READY_SECONDS:
                    self._tell_set(f"{learner.name} waits for a host: its resources are not free")
                    learner.since = now
                continue
            if learner.beat is not None and self._ray.wait([learner.beat], timeout=0)[0]:
                self._heard(learner)
            elif learner.beat is not None and now - learner.beaten > limit:
                self._lost(learner, f"no sign of life for {limit:g} s")
            elif learner.beat is None:
                learner.beat, learner.beaten = learner.actor.beat.remote(), now

    def _heard(self, learner: _Learner) -> None:
        reference, learner.beat = learner.beat, None
        try:
            beat = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            return  # the end of `run` says more
        learner.step = beat.step
        for name, incarnation, why in beat.accused:
            accused = self._learners[name]
            if accused.running is not None and accused.incarnation == incarnation:
                self._lost(accused, f"three messages in a row were refused by {learner.name}: {why}")
        if beat.idle > self._topology.supervise.silence:
            self._lost(learner, f"its training has hung for {beat.idle:.0f} s")

    # -- checkpoint sets

    def _save(self, learners: Any) -> None:
        """Ask for the next set."""
        assert self._crew is not None
        asked = [learner for learner in learners if self._outcome.learners.get(learner.name) is None or learner.over]
        asked = [learner for learner in asked if not self._failed(learner)]
        if not asked:
            return
        self._sets.number += 1
        self._crew.keeper.begin.remote(self._sets.number, tuple(learner.name for learner in asked))
        for learner in asked:
            learner.actor.save.remote(self._sets.number)

    def _failed(self, learner: _Learner) -> bool:
        reached = self._outcome.learners.get(learner.name)
        return reached is not None and reached.status == "failed"

    def _await_sets(self, seconds: float) -> None:
        """Until the sets that were asked for are complete, or that long."""
        assert self._crew is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(self._ray.exceptions.GetTimeoutError):
                kept = self._ray.get(self._crew.keeper.look.remote(), timeout=CLOSE_SECONDS)
                self._tell_set(kept.fault)
                if kept.newest >= self._sets.number or kept.fault:
                    return
            time.sleep(POLL_SECONDS / 10)
        self._tell("the last checkpoint set is not complete; the one before it is")

    def _tell_set(self, line: str) -> None:
        if line and line != self._sets.told:
            self._sets.told = line
            self._tell(line)

    # -- figures

    def _look(self) -> None:
        """Ask the recorder for the newest figures, and tell when it begins or ceases to fail."""
        assert self._crew is not None
        try:
            look = self._ray.get(self._crew.recorder.look.remote(), timeout=LOOK_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            return  # a slow disk, or a busy host
        except self._ray.exceptions.RayError as error:
            self._tell_fault(f"the recorder has died: {_words(error)}")
            return
        self._latest = look.latest
        self._tell_fault(look.fault)

    def _tell_fault(self, fault: str) -> None:
        if fault and not self._faulty:
            self._tell(f"records can't be written: {fault}; training goes on, and records wait in the learners")
        if self._faulty and not fault:
            self._tell("records are written again")
        self._faulty = bool(fault)

    def _problem(self, text: str) -> None:
        self._outcome.fault(text)
        self._tell(text)

    # -- the end

    def _stop(self) -> None:
        """A set of what there is, then the end of every learner's loop."""
        if self._crew is None:
            return
        deadline = time.monotonic() + STOP_SECONDS
        self._save(learner for learner in self._learners.values() if learner.running is not None or learner.over)
        for learner in self._learners.values():
            learner.actor.stop.remote()
        while any(learner.running for learner in self._learners.values()) and time.monotonic() < deadline:
            self._collect_ends(deadline - time.monotonic())
        self._await_sets(max(1.0, deadline - time.monotonic()))
        self._look()

    def _collect_ends(self, seconds: float) -> None:
        """As `_collect`, but nobody is started again."""
        running = {learner.running: learner for learner in self._learners.values() if learner.running is not None}
        done, _ = self._ray.wait(list(running), num_returns=len(running), timeout=seconds)
        for reference in done:
            learner = running[reference]
            learner.running = None
            with suppress(Exception):
                self._outcome.learners[learner.name] = outcome.ended(self._ray.get(reference), learner.restarts)

    def _close(self) -> None:
        """Close the files, end every actor."""
        if self._crew is None:
            return
        try:
            self._ray.get(self._crew.recorder.close.remote(), timeout=CLOSE_SECONDS)
        except Exception as error:
            self._problem(f"the run folder may be incomplete: {_words(error)}")
        finally:
            for actor in (
                *(learner.actor for learner in self._learners.values()),
                self._crew.recorder,
                self._crew.keeper,
            ):
                self._ray.kill(actor)

    def _write_down(self) -> None:
        known, found = self._outcome.learners, {}
        for name in self._topology.learners:
            seen = self._latest.get(name, {})
            restarts = self._learners[name].restarts if name in self._learners else 0
            found[name] = known.get(name) or outcome.last_seen("stopped" if seen else "not started", seen, restarts)
        self._outcome.learners = found
        more = {"state": "ended", "incarnation": self._newest_incarnation(), "outcome": self._outcome.as_json()}
        try:
            outcome.write_manifest(self._folder, self._topology, more)
        except OSError as error:
            self._problem(f"{self._folder}/run.json could not be written: {error}")

    def _newest_incarnation(self) -> int:
        return max((learner.incarnation for learner in self._learners.values()), default=self._first)


def _described(topology: Topology) -> tuple[Any, dict[str, dict[str, Any]], str]:
    """What the recorder writes before the first step: a picture, hyper-parameters, the run file."""
    from topology import draw

    flat = {name: _flat(msgspec.to_builtins(value)) for name, value in topology.learners.items()}
    return draw.picture(topology), flat, parse.resolved(topology)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options as one level, for TensorBoard's hyper-parameters."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
    return flat


def _words(error: BaseException) -> str:
    """An error in one line. Ray wraps what an actor raised, with its traceback first if that was at its start."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip() if "creation task" in lines[0] else f"{type(error).__name__}: {lines[0]}"
