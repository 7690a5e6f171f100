"""A worker of random bases descent, or of what that is compared with, as a Ray actor.

Consumes: the data's splits by reference; in a group others' updates. Produces: updates, parcels of records, and its
state for checkpoint sets.
Waits for: nothing, the recorder and the keeper never; in a group see `actors.membership`. Ended by: its last step and,
in a group, the others' ends; `stop`.

What a round does is in `learners.rbd.descent`; here it gets its batches, and what came of it is written down. Alone,
updates are made as they would travel, and counted, and go nowhere.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import ray
from msgspec import structs
from numpy.typing import NDArray

from actors import checkpoint, common, compiled
from actors.account import ROUND, Account, timed
from actors.common import (
    CURVE_POINTS,
    FINISH_SECONDS,
    STOPPED_SECONDS,
    Beat,
    Diverged,
    Saving,
    Speed,
    Summary,
    here,
    restored,
    splits,
)
from actors.member import RELAY
from actors.membership import Membership, Place
from actors.outgoing import Outgoing
from actors.pace import Pace, budget_of
from actors.transport import Ways
from learners.batches import Split, features, rows
from learners.footprint import threads
from learners.group.events import Ending
from learners.group.parcels import Whose
from learners.layout import network
from learners.options import group_of, number_of
from learners.rbd.budget import HEADERS
from learners.rbd.clocks import Clock
from learners.rbd.coordinates import payload_bytes
from learners.rbd.options import AnyLearner
from learners.seeds import derive

if TYPE_CHECKING:
    from actors.keras_model import KerasModel
    from learners.models import Model
    from learners.rbd.workers import Method, Worker

Batch = tuple[NDArray[np.float32], NDArray[np.int32]]

AGAIN_SECONDS, HISTORY_SECONDS = 0.2, 60.0
"""Until a relay is asked again for what a worker begins with, and until it is given up."""


@dataclass(frozen=True, kw_only=True)
class Setup(common.Setup):
    """All that it is made from; the options are filled."""

    options: AnyLearner
    beside: Path = Path()  #: folder of the run file, where a network of the user's is sought
    relay: Any = None  #: of the worker's group; None: it is alone


class RbdWorker:
    """Plain class behind `RbdActor`; tests construct it as it is."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._options = setup, setup.options
        self._outgoing = Outgoing(setup.name, setup.incarnation, setup.recorder)
        self._train_split, self._validation, self._test = splits(setup, self._outgoing)
        self._hits: list[float] = []  # accuracy of each batch of the round
        self._account = Account(ROUND)
        self._membership: Optional[Membership] = None
        self._pace: Optional[Pace] = None
        self._worker: Worker = compiled.made(self._built)
        self._outgoing.log.info("network and directions are compiled")
        self._final: dict[str, float] = {}
        self._nbytes = 0  # of all updates
        self._seconds = 0.0  # of all rounds
        if setup.relay is not None:
            self._membership = self._joined()
            if bytes_ := budget_of(self._options):
                parts = [part.dimensions for part in self._worker.shared.directions.parts]
                self._pace = Pace(bytes_, HEADERS + payload_bytes(parts, self._method.precision))
        self._go_on()
        self._outgoing.start = self._worker.step
        self._saving = Saving(setup, self._outgoing, self._state)
        self._speed = Speed(self._worker.step)
        self._turn: float | None = None
        self._stopped = False

    # -- called by others, in the second thread

    def ready(self) -> str:
        """Answers once the worker is built and compiled: where it is."""
        return here()

    def beat(self) -> Beat:
        """A sign of life."""
        turn = self._turn
        idle = 0.0 if turn is None else time.monotonic() - turn
        standing = self._membership.standing() if self._membership else None
        return Beat(self._worker.step, idle, bytes=self._bytes, standing=standing)

    def save(self, number: int) -> None:
        """Send the state for checkpoint set `number`, as it is after the current round."""
        self._saving.want(number)

    def stop(self) -> None:
        """End after the current round; `run` returns what was reached."""
        self._stopped = True

    # -- the same, of a worker in a group

    def receive(self, content: bytes) -> None:
        """The relay's parcel."""
        self._group.member.receive(content)

    def open(self, incarnation: int, relay: Any) -> None:
        """The supervisor says where the relay is, and as which incarnation."""
        self._group.open(incarnation, relay)

    def gone(self) -> None:
        """The supervisor says that the relay is not there."""
        self._group.member.gone(RELAY)

    def ending(self, whose: Whose) -> None:
        """The supervisor asks what there is of an incarnation that is over."""
        self._group.member.note(Ending(whose, time.monotonic()))

    def joined(self, sender: int, incarnation: int, first: int) -> None:
        """The supervisor says for whom all wait; of a synchronous group."""
        self._group.joined(sender, incarnation, first)

    def snapshot(self, end: int, clock: Clock) -> None:
        """The relay wants a snapshot with all of this clock."""
        self._group.snapshot(end, clock)

    def finish(self, clock: Clock) -> None:
        """The supervisor says that this is all that will ever be."""
        self._group.finish(clock)

    # -- the loop, in the first thread

    def run(self, place: Union[Place, Sequence[Any]] = ()) -> Summary:
        """Train to the last step, evaluate on the whole sets, and say what was reached.

        Args:
            place: in a group; alone there are no neighbours.
        """
        import numba

        # of this thread: the kernels would take all cores
        numba.set_num_threads(min(threads(self._options.cpus), numba.config.NUMBA_NUM_THREADS))
        self._outgoing.log.info("{}: {}", self._setup.name, self.ready())
        if isinstance(place, Place):
            self._worker = self._group.begin(place, self._history)
            self._outgoing.start = self._worker.step
            if self._setup.incarnation:
                self._outgoing.log.info("goes on at step {} without its residual", self._worker.step)
        self._speed, self._account = Speed(self._worker.step), Account(ROUND)
        while not self._stopped and self._worker.step < self._options.steps:
            self._turn = began = time.monotonic()
            if self._membership:
                self._take_in(self._membership)
            if self._stopped:
                break
            self._round()
            self._seconds += time.monotonic() - began
            self._keep_up()
        if self._membership:
            self._worker = self._membership.end(self._worker, self._waiting)
            self._account.book("messages")
        if not self._stopped and not self._final:
            self._evaluate("final", validation=self._validation, test=self._test)
        return self._summary()

    def _keep_up(self) -> None:
        """Between two rounds: states that are wanted are taken, records leave."""
        # the last state is taken with the last evaluation, or at the end of who was stopped
        if not self._stopped and self._worker.step < self._options.steps:
            self._saving.take()
        self._account.book("save")
        self._send_records()

    def _send_records(self) -> None:
        self._outgoing.send_if_due()
        self._saving.send()
        self._account.book("record")

    def _round(self) -> None:
        from learners.rbd import replica
        from learners.rbd.descent import descend

        before, kept = self._worker, self._kept()
        method = self._paced()
        count, size = method.batches(before.shared.directions), method.steps()
        first = before.step if self._pace else before.step // size * count
        self._hits.clear()
        watch = self._is_plotted(before.step + size)  # a fifth of a short round: not in each
        try:
            batches = [self._batch(first + i) for i in range(count)]
            done = descend(method, before, self._problem, batches, watch=watch)
        except replica.Diverged as error:
            raise self._diverged(str(error)) from error
        self._worker = done.worker
        if self._membership:
            self._worker = self._membership.made(done.update, before, done.worker)
        if done.update is None and self._keras:
            self._keras.restore(kept)  # what is not finite may have gone into its moments
        self._account.book("train")
        self._note_round(done)
        every, step = self._setup.record.every, self._worker.step
        if step // every > before.step // every and step < self._options.steps:
            some = np.arange(min(self._setup.record.rows, len(self._validation)), dtype=np.int32)
            self._evaluate("evaluate", validation=self._validation, rows=some)

    # -- in a group

    @property
    def _group(self) -> Membership:
        assert self._membership is not None, "it is in a group"
        return self._membership

    def _paced(self) -> "Method":
        """The method of this round: with as many steps as a budget wants, if there is one."""
        if self._pace is None:
            return self._method
        left = self._options.steps - self._worker.step
        steps = self._pace.steps(self._group.member.bytes["sent"], left)
        exchange = structs.replace(self._options.exchange, every=steps)
        return replace(self._method, learner=structs.replace(self._options, exchange=exchange))

    def _take_in(self, group: Membership) -> None:
        """Between two rounds: own updates leave, others' are applied."""
        from learners.rbd import replica

        try:
            self._worker = group.before_round(self._worker, self._waiting)
        except replica.Diverged as error:
            raise self._diverged(str(error)) from error
        self._account.book("messages")

    def _waiting(self) -> bool:
        """Asked now and then by who waits for others: it has not hung, and is saved as ever; whether it is to stop."""
        self._turn = time.monotonic()
        self._account.book("messages")
        if not self._stopped:
            self._saving.take()
        self._send_records()
        return self._stopped

    def _joined(self) -> Membership:
        """Into the group, if this worker is like the others: it raises in words where not."""
        from actors.relay import reader

        setup = self._setup
        bases = derive(setup.seed, "bases", group_of(setup.name))
        shared = traits_of(setup.name, setup.seed, self._method, self._model)
        ray.get(setup.relay.join.remote(shared), timeout=HISTORY_SECONDS)
        read = reader(self._options, self._model.network.tensors, bases)
        start = replace(self._worker, incarnation=setup.incarnation)
        return Membership(self._method, start, read, shared, Ways(), lambda *words: self._account.only(*words))

    def _history(self, before: Optional[int]) -> Any:
        """What the relay gives to begin with; of one that has died `open` tells the successor."""
        deadline = time.monotonic() + HISTORY_SECONDS
        while True:
            try:
                return ray.get(self._group.relay.history.remote(before), timeout=HISTORY_SECONDS)
            except ray.exceptions.RayError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_SECONDS)
            self._waiting()

    # -- values

    def _built(self) -> Any:
        """Make method and functions, and compile them with a round of zeros; a worker that has done nothing."""
        from learners.models import Model
        from learners.rbd.descent import Problem, descend
        from learners.rbd.workers import Method, stream

        setup, data = self._setup, self._setup.data
        self._model = model_of(setup.name, setup.seed, setup.options, data.example, data.classes, setup.beside)
        made = self._model.network
        self._keras: Optional[KerasModel] = None if isinstance(self._model, Model) else self._model
        self._method = Method(self._options, made.tensors)
        losses = self._keras or Model(made, self._options.batch_size)
        group, number = group_of(setup.name), number_of(setup.name)
        self._stream = stream(self._options, group, number)

        def gradient(theta_D: NDArray[np.float32], batch: Batch) -> tuple[float, NDArray[np.float32]]:
            self._account.book("train")
            loss, accuracy, gradient_D = self._model.loss_and_gradient(theta_D, *batch)
            self._account.book("gradient")
            self._hits.append(accuracy)
            return loss, gradient_D

        def loss(theta_D: NDArray[np.float32], batch: Batch) -> float:
            self._account.book("train")
            found, accuracy = losses.evaluate(theta_D, *batch)
            self._account.book("gradient")
            self._hits.append(accuracy)
            return found

        self._problem = Problem(gradient, loss)
        worker, kept = begun(setup.name, setup.seed, self._method, self._model, number), self._kept()
        directions = timed(worker.shared.directions, lambda heading: self._account.book(heading))
        worker = replace(worker, shared=replace(worker.shared, directions=directions))
        size = self._options.batch_size
        nothing = (np.zeros((size, data.width), np.float32), np.zeros(size, np.int32))
        descend(self._method, worker, self._problem, [nothing] * self._method.batches(worker.shared.directions))
        self._model.evaluate(worker.shared.theta, *nothing)
        if self._keras:
            self._keras.restore(kept)  # as if there had been no zeros
        return worker

    def _kept(self) -> dict[str, NDArray[Any]]:
        """What a network of the user's holds beside its weights."""
        return self._keras.save() if self._keras else {}

    def _batch(self, number: int) -> Batch:
        split = self._train_split
        return self._scaled(split, rows(self._setup.seed, self._stream, number, self._options.batch_size, len(split)))

    def _scaled(self, split: Split, numbers: NDArray[np.int32]) -> Batch:
        return features(split, numbers, self._setup.data.scale, self._setup.data.offset), split.labels[numbers]

    def _evaluate(self, kind: Any, *, rows: NDArray[np.int32] | None = None, **held_out: Split) -> None:
        """At T, which is what others would have too: on these rows of a split, or on all."""
        values: dict[str, float] = {}
        for name, split in held_out.items():
            numbers = np.arange(len(split), dtype=np.int32) if rows is None else rows
            found = self._model.evaluate(self._worker.shared.theta, *self._scaled(split, numbers))
            values |= {f"{name}/loss": found[0], f"{name}/accuracy": found[1]}
        self._account.book("evaluate")
        spent = {f"seconds/{heading}": seconds for heading, seconds in self._account.seconds.items()}
        self._outgoing.note(self._worker.step, kind, values | spent)
        if kind == "final":
            self._final = values

    # -- the whole state

    def _state(self) -> tuple[int, checkpoint.State, dict[str, Any]]:
        about = {"final": self._final, "bytes": self._nbytes, "seconds": self._seconds}
        return self._worker.step, {**self._worker.save(), **self._kept()}, about

    def _go_on(self) -> None:
        """Take over the state that this incarnation goes on from.

        Alone as the same sender, whose next update has the next number: nobody else has seen what came after that
        state, so the directions drawn for those numbers may be drawn again, and a run that is resumed comes to the same
        bits. In a group what is shared comes from the log, later.
        """
        if (found := restored(self._setup)) is not None:
            state, about = found
            if self._keras:
                self._keras.restore(state)
            self._nbytes, self._seconds = about["bytes"], about["seconds"]
            if self._membership is None:
                self._worker, self._final = self._worker.restore(state), dict(about["final"])

    # -- what is written down

    def _note_round(self, done: Any) -> None:
        step, own = self._worker.step, dict(done.metrics)
        values = {f"train/{name}": own.pop(name) for name in ("loss", "gradient_norm") if name in own}
        values["train/accuracy"] = float(np.mean(self._hits))
        values["train/learning_rate"] = self._method.rate(step - 1)
        values |= {f"update/{name.removeprefix('update_')}": value for name, value in own.items()}
        if done.update is not None and done.update.parts:
            coordinates = np.concatenate([part.coordinates for part in done.update.parts])
            values["update/coordinates"] = float(len(coordinates))
            values["update/coordinate_rms"] = float(np.sqrt(np.mean(coordinates.astype(np.float64) ** 2)))
        self._nbytes += int(own.get("bytes", 0))
        values |= {f"bytes/{way.replace(' ', '_')}": float(count) for way, count in self._bytes.items()}
        if self._membership:
            values |= self._membership.figures()
        values["records/dropped"] = float(self._outgoing.dropped)
        values["speed/steps_per_second"] = self._speed.at(step)
        self._outgoing.note(step, "train", values | done.watched, plotted=self._is_plotted(step))

    @property
    def _bytes(self) -> dict[str, int]:
        """Of updates that it has made, and in a group what it has sent and received, by way."""
        return {"updates": self._nbytes, **(self._membership.member.bytes if self._membership else {})}

    def _is_plotted(self, step: int) -> bool:
        """Whether TensorBoard gets a point of the round that ends at this step."""
        curve, steps = max(1, self._setup.record.every // CURVE_POINTS), self._method.steps()
        return step // curve > (step - steps) // curve or step >= self._options.steps

    def _diverged(self, why: str) -> Diverged:
        text = f"learners.{self._setup.name}: {why} (update.rate was {self._options.update.rate:g})"
        self._outgoing.log.error(text)
        self._outgoing.finish(STOPPED_SECONDS)
        return Diverged(text)

    def _summary(self) -> Summary:
        self._turn = None
        self._outgoing.finish(STOPPED_SECONDS if self._stopped else FINISH_SECONDS)
        self._saving.leave()
        counts, ends = self._membership.summary() if self._membership else ({}, {})
        return Summary(
            learner=self._setup.name,
            incarnation=self._setup.incarnation,
            steps=self._worker.step,
            seconds=self._seconds,
            final=self._final,
            counts={"updates": self._worker.sequence, "dropped records": self._outgoing.dropped, **counts},
            unwritten=self._outgoing.unwritten,
            bytes=self._bytes,
            spent=dict(self._account.seconds),
            processor=self._account.processor,
            stopped=self._stopped,
            **ends,
        )


def model_of(
    name: str, seed: int, options: AnyLearner, example: tuple[int, ...], classes: int, beside: Path
) -> "Union[Model, KerasModel]":
    """The network of one learner of a run (its name, the run's seed), with its compiled functions."""
    from learners.models import Model

    if not options.has_own_network:
        return Model(network(options.network, example, classes))
    from actors.keras_model import KerasModel, build

    built = build(options.network, example, classes, beside, derive(seed, "weights", group_of(name)))
    return KerasModel(built, example, classes, options.network)


def begun(name: str, seed: int, method: "Method", model: "Union[Model, KerasModel]", number: int = 0) -> "Worker":
    """The worker of one learner of a run that has done nothing yet; of several its number says which."""
    from learners.models import Model, initial
    from learners.rbd.workers import start

    group = group_of(name)
    theta_0 = initial(model.network, derive(seed, "weights", group)) if isinstance(model, Model) else model.initial
    return start(method, theta_0, derive(seed, "bases", group), number)


def traits_of(name: str, seed: int, method: "Method", model: "Union[Model, KerasModel]") -> dict[str, str]:
    """What all workers of a learner of a run have in common, as digests."""
    from learners.group.alike import traits

    versions = {}
    for library in ("machworks", "numpy"):
        try:
            versions[library] = version(library)
        except PackageNotFoundError:  # a checkout that is not installed
            versions[library] = "not installed"
    return traits(method, begun(name, seed, method, model), seed, versions)


def saved(
    name: str,
    seed: int,
    options: AnyLearner,
    example: tuple[int, ...],
    classes: int,
    beside: Path,
    state: Mapping[str, NDArray[Any]],
) -> "tuple[Union[Model, KerasModel], Worker]":
    """The network of one learner of a run, and its worker as a checkpoint has it."""
    from learners.models import Model
    from learners.rbd.defaults import filled
    from learners.rbd.workers import Method

    model = model_of(name, seed, options, example, classes, beside)
    if not isinstance(model, Model):
        model.restore(state)
    method = Method(filled(options, model.network.size), model.network.tensors)
    return model, begun(name, seed, method, model).restore(state)


RbdActor = ray.remote(max_concurrency=2, max_restarts=0, enable_task_events=False)(RbdWorker)
