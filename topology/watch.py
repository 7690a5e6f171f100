"""One run from the start of its learners to their end.

Consumes: a function that starts the actors. Produces: an `Outcome`, and the end of every actor, whatever happens.
Waits for: learners that load, with a limit; then for a learner's end, half a second at a time.
Unblocked by: a learner's end or death, an interrupt (a second one ends all at once).
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from learners.options import Topology
from topology import outcome, parse

READY_SECONDS, READY_SECONDS_EACH = 120.0, 30.0
"""How long learners may take to load and compile: in all, and for each of them (a small host does one at a time)."""
LOADING_SECONDS = 5.0
"""How often it is said who still loads."""
STOP_SECONDS, CLOSE_SECONDS = 4.0, 2.0
"""How long learners may take to write down what they have, and the recorder to close its files."""
POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0

Live = Mapping[str, Mapping[str, float]]
"""Newest value of every figure, per learner."""


@dataclass(frozen=True)
class Actors:
    """Handles of a run's actors."""

    recorder: Any
    learners: Mapping[str, Any]


class NotReady(RuntimeError):
    """A learner could not be started."""


class Watch:
    """Watches one run.

    Args:
        start: makes the actors.
        folder: of the run.
        tell: gets a line for every event worth one.
        show: gets the newest figures, twice a second.
    """

    def __init__(
        self,
        ray: Any,
        topology: Topology,
        start: Callable[[], Actors],
        folder: Path,
        tell: Callable[[str], None],
        show: Callable[[Live], None],
    ) -> None:
        self._ray, self._topology, self._start = ray, topology, start
        self._tell, self._show = tell, show
        self._outcome = outcome.Outcome(folder)
        self._actors = Actors(None, {})
        self._running = False
        self._pending: dict[Any, str] = {}  # running learners, by the reference of what they will say
        self._latest: Live = {}
        self._faulty = False

    def to_the_end(self) -> outcome.Outcome:
        """Start the learners, watch them, end everything; the outcome says what came of it."""
        began = time.monotonic()
        try:
            self._train()
        except KeyboardInterrupt:
            self._outcome.status = outcome.INTERRUPTED
            self._whatever_happens(self._stop)
        except Exception as error:  # a fault of Ray or of ours must end the run in words, with nothing left behind
            self._problem(str(error) if isinstance(error, NotReady) else f"the run has ended: {_words(error)}")
        self._whatever_happens(self._close)
        self._outcome.seconds = time.monotonic() - began
        self._write_down()
        return self._outcome

    # -- the run

    def _train(self) -> None:
        self._actors = self._start()
        self._await_ready()
        self._running = True
        description = self._actors.recorder.describe.remote(*_described(self._topology))
        self._pending = {actor.run.remote(): name for name, actor in self._actors.learners.items()}
        self._tell(f"training {', '.join(self._actors.learners)}; run folder {self._outcome.folder}")
        while self._pending:
            self._collect(POLL_SECONDS)
            self._look()
            self._show(self._latest)
        with suppress(self._ray.exceptions.GetTimeoutError, OSError):  # a disk that refuses has been told of
            self._ray.get(description, timeout=CLOSE_SECONDS)

    def _await_ready(self) -> None:
        learners = self._actors.learners
        waiting = {actor.ready.remote(): name for name, actor in learners.items()}
        limit = READY_SECONDS + READY_SECONDS_EACH * len(waiting)
        deadline = time.monotonic() + limit
        while waiting:
            done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=LOADING_SECONDS)
            for reference in done:
                self._must(reference, f"learners.{waiting.pop(reference)} could not start")
            if waiting and time.monotonic() > deadline:
                raise NotReady(f"learners {', '.join(waiting.values())}: not ready within {limit:.0f} s")
            if waiting:
                self._tell(f"loading: {', '.join(waiting.values())}")
        for name, actor in learners.items():
            around = (*self._topology.children_of(name), *self._topology.parents_of(name))
            waiting[actor.connect.remote({other: learners[other] for other in around})] = name
        for reference, name in waiting.items():
            self._must(reference, f"learners.{name} could not be connected")

    def _must(self, reference: Any, otherwise: str) -> None:
        try:
            self._ray.get(reference, timeout=READY_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise NotReady(f"{otherwise}: {_words(error)}") from error

    def _collect(self, seconds: float) -> None:
        """Take in who has ended, waiting that long for the next."""
        done, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=seconds)
        for reference in done:
            name = self._pending.pop(reference)
            try:
                self._ended(name, self._ray.get(reference))
            except Exception as error:  # whatever ended a learner is told, and the others go on
                self._failed(name, error)

    def _ended(self, name: str, summary: Any) -> None:
        self._outcome.learners[name] = outcome.ended(summary, self._latest.get(name, {}))
        self._tell(f"{name} has ended")
        if summary.unwritten:
            self._problem(f"learners.{name}: its last {summary.unwritten} records could not be written")
        self._closed(name, self._topology.children_of(name))

    def _failed(self, name: str, error: Exception) -> None:
        text = _words(error)
        self._look()
        self._outcome.learners[name] = outcome.last_seen("failed", self._latest.get(name, {}), text)
        # our own errors name their learner
        self._problem(text if f"learners.{name}:" in text else f"learners.{name} failed: {text}")
        self._closed(name, (*self._topology.children_of(name), *self._topology.parents_of(name)))

    def _closed(self, name: str, neighbours: tuple[str, ...]) -> None:
        """Tell the neighbours that nothing more comes of a learner."""
        for neighbour in neighbours:
            self._actors.learners[neighbour].close.remote(name, 0)

    def _look(self) -> None:
        """Ask the recorder for the newest figures, and tell when it begins or ceases to fail."""
        try:
            look = self._ray.get(self._actors.recorder.look.remote(), timeout=LOOK_SECONDS)
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

    def _whatever_happens(self, act: Callable[[], None]) -> None:
        """A part of the end: neither a fault nor another interrupt, which cuts it short, stops the parts after it."""
        try:
            act()
        except KeyboardInterrupt:
            self._tell("interrupted again")
        except Exception as error:
            self._problem(f"while the run was ended: {_words(error)}")

    def _stop(self) -> None:
        if not self._running:
            self._tell("interrupted")
            return
        self._tell("interrupted: the learners write down what they have (once more ends at once)")
        for actor in self._actors.learners.values():
            actor.stop.remote()
        deadline = time.monotonic() + STOP_SECONDS
        while self._pending and time.monotonic() < deadline:
            self._collect(deadline - time.monotonic())
        self._look()

    def _close(self) -> None:
        """Close the files, end every actor."""
        try:
            if self._running:
                self._ray.get(self._actors.recorder.close.remote(), timeout=CLOSE_SECONDS)
        except Exception as error:
            self._problem(f"the run folder may be incomplete: {_words(error)}")
        finally:
            for actor in (*self._actors.learners.values(), self._actors.recorder):
                if actor is not None:
                    self._ray.kill(actor)

    def _write_down(self) -> None:
        known, found = self._outcome.learners, {}
        for name in self._topology.learners:
            seen = self._latest.get(name, {})
            found[name] = known.get(name) or outcome.last_seen("stopped" if seen else "not started", seen)
        self._outcome.learners = found
        more = {"state": "ended", "outcome": self._outcome.as_json()}
        try:
            outcome.write_manifest(self._outcome.folder, self._topology, more)
        except OSError as error:
            self._problem(f"{self._outcome.folder}/run.json could not be written: {error}")


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
