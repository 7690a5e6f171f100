"""A Mach learner as a Ray actor: it receives, asks the exchange rules what to do, and does it.

Consumes: messages of neighbours (`receive`), the data's splits by reference.
Produces: messages to neighbours, parcels of records.
Waits for: a message or the end of a step's patience, in one place (`_next_events`); the recorder never.
Unblocked by: a message, a time limit, `stop`.
Greatest staleness: `exchange.max_staleness` of the options.

Ray runs `run` in one thread, which owns the weights, and everything else in another, which only fills the inbox.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any, Optional

import numpy as np
import ray

from actors import checkpoint, common, compiled
from actors.account import Account
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
from actors.laws import Laws
from actors.outgoing import Outgoing
from actors.transport import Transport
from learners.batches import Split, features, rows
from learners.exchange import Exchange, Position
from learners.messages import (
    Accuse,
    Arrived,
    Batch,
    Closed,
    Done,
    Embed,
    Embedded,
    Event,
    Features,
    Got,
    Instruction,
    Leave,
    Message,
    Opened,
    Ready,
    Rows,
    Send,
    Tick,
    Train,
    Trained,
    Wait,
    Want,
)
from learners.options import Mach as Options
from learners.records import Evaluation
from learners.seeds import derive

IDLE_SECONDS = 0.1
"""Longest wait for a message when no step is due."""


@dataclass(frozen=True, kw_only=True)
class Setup(common.Setup):
    """All that it is made from."""

    options: Options
    children: Mapping[str, int]  #: width of embedding, in order
    parents: Mapping[str, int]  #: batch size
    gradient_rows: int  #: of one step's gradients at most: the batches of those parents that send any


@dataclass(frozen=True)
class Neighbour:
    """Where a child or a parent is."""

    name: str
    incarnation: int
    handle: Any  #: None: this incarnation is over
    forever: bool = False  #: and no other follows


class MachWorker:
    """Plain class behind `MachActor`; tests construct it as it is."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._options = setup, setup.options
        self._outgoing = Outgoing(setup.name, setup.incarnation, setup.recorder)
        data = setup.data
        self._train_split, self._validation, self._test = splits(setup, self._outgoing)
        self._splits: dict[str, Split] = {s.fingerprint: s for s in (self._validation, self._test)}
        if not data.private:
            self._splits[self._train_split.fingerprint] = self._train_split
        self._network = compiled.made(self._warm)
        self._outgoing.log.info("network is compiled")
        self._transport = Transport(self._options.exchange.time_limit, self._options.exchange.precision)
        about = self._go_on()
        self._laws = Laws(setup.name, self._network, self._options, setup.mechanics, setup.record, self._outgoing)
        self._outgoing.start = self._network.version
        self._exchange = Exchange(
            name=setup.name,
            incarnation=setup.incarnation,
            children=setup.children,
            parents=setup.parents,
            embedding=self._options.embedding,
            features=(data.width, data.dtype),
            data={fingerprint: len(split) for fingerprint, split in self._splits.items()},
            batch=self._batch,
            steps=self._options.steps,
            limits=self._options.exchange,
            position=Position(**about["position"]) if about else None,
        )
        if about:
            self._exchange.counts.update(about["counts"])
            self._transport.bytes.update(about["bytes"])
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._stopped = False
        self._evaluations: dict[tuple[str, int], Evaluation] = {}
        self._pieces: dict[tuple[str, int, int], Rows] = {}
        self._final: dict[str, float] = dict(about["final"]) if about else {}
        self._evaluated = bool(self._final)  # on the whole sets, after the last step
        self._speed = Speed(self._network.version)
        self._started = self._ended = time.monotonic()
        self._before = float(about.get("seconds", 0.0)) if about else 0.0  # of former incarnations
        self._unreadable = 0  # messages whose arrays could not be had
        self._saving = Saving(setup, self._outgoing, self._state)
        self._accused: list[tuple[str, int, str]] = []
        self._turn: Optional[float] = None
        self._account = Account()

    # -- called by others, in the second thread

    def ready(self) -> str:
        """Answers once the learner is built and compiled: where it is."""
        return here()

    def receive(self, *messages: Message) -> None:
        """Messages of one neighbour, in order."""
        for message in messages:
            try:
                self._inbox.put(Arrived(self._transport.unpack(message), time.monotonic()))
            except ray.exceptions.RayError as error:  # the sender is gone, or its host: the request will count as lost
                self._unreadable += 1
                self._outgoing.log.warning("{}: the arrays of a message: {}", message.sender, type(error).__name__)

    def close(self, name: str, incarnation: int, forever: bool) -> None:
        """The supervisor says that a neighbour has ended, or will return as another incarnation."""
        self._inbox.put(Closed(name, incarnation, forever, time.monotonic()))

    def open(self, name: str, incarnation: int, handle: Any) -> None:
        """The supervisor says where a neighbour is, and as which incarnation."""
        self._transport.connect({name: handle})
        self._inbox.put(Opened(name, incarnation, time.monotonic()))

    def beat(self) -> Beat:
        """A sign of life, and whom this learner accuses since the last one."""
        accused, self._accused = tuple(self._accused), []
        turn = self._turn
        idle = 0.0 if turn is None else time.monotonic() - turn
        return Beat(self._exchange.version, idle, accused, dict(self._transport.bytes))

    def save(self, number: int) -> None:
        """Send the state for checkpoint set `number`, as it is after the current step."""
        self._saving.want(number)
        self._inbox.put(Tick(time.monotonic()))

    def stop(self) -> None:
        """End after the current step; `run` returns what was reached."""
        self._stopped = True
        self._inbox.put(Tick(time.monotonic()))

    # -- the loop, in the first thread

    def run(self, neighbours: Sequence[Neighbour] = ()) -> Summary:
        """Train, evaluate, answer parents until they have ended; then say what was reached."""
        self._outgoing.log.info("{}: {}", self._setup.name, self.ready())
        for one in neighbours:
            if one.handle is None:
                self.close(one.name, one.incarnation, one.forever)
            else:
                self.open(one.name, one.incarnation, one.handle)
        self._started, self._speed = time.monotonic(), Speed(self._network.version)
        self._account = Account()
        until, events = 0.0, self._due(self._exchange.version)
        while not self._stopped:
            self._turn = time.monotonic()
            events += self._next_events(0.0 if events else until)
            self._account.book("wait")
            instructions, events = self._exchange.handle(*events), []
            self._account.book("messages")
            self._save_wanted()
            self._account.book("save")
            until = time.monotonic() + IDLE_SECONDS
            for instruction in instructions:
                if isinstance(instruction, Leave):
                    return self._summary()
                if isinstance(instruction, Wait):
                    until = instruction.until
                else:
                    events += self._perform(instruction)
            self._outgoing.send_if_due()
            self._saving.send()
            self._account.book("record")
        if events:  # the step before the stop is done: a state saved now must say so
            self._exchange.handle(*events)
        return self._summary()

    def _next_events(self, until: float) -> list[Event]:
        """All that has arrived; waits for the first until that moment. The only place that waits."""
        events: list[Event] = []
        try:
            events.append(self._inbox.get(timeout=max(0.0, until - time.monotonic())))
            while True:
                events.append(self._inbox.get_nowait())
        except Empty:
            return events or [Tick(time.monotonic())]

    def _perform(self, instruction: Instruction) -> list[Event]:
        match instruction:
            case Send():
                self._transport.send(instruction.to, instruction.messages)
                self._account.book("messages")
            case Embed():
                return [self._embed(instruction)]
            case Train():
                return self._step(instruction)
            case Got():
                return [*self._evaluate(instruction), Tick(time.monotonic())]
            case Accuse():
                self._outgoing.log.warning("{}: three in a row refused: {}", instruction.sender, instruction.reason)
                self._accused.append((instruction.sender, instruction.incarnation, instruction.reason))
        return []

    def _due(self, step: int) -> list[Event]:
        """After `step` steps: the next one, or what is left to do after the last."""
        if step < self._options.steps:
            return [Ready(step, time.monotonic())]
        self._ended = time.monotonic()
        if self._evaluated:  # by a former incarnation
            return [Done(self._ended)]
        whole = {"validation": self._validation, "test": self._test}
        return [want for name, split in whole.items() for want in self._wants(name, step, len(split))]

    def _embed(self, instruction: Embed) -> Embedded:
        sizes = [ask.batch.size for ask in instruction.asks]
        x_NF = np.concatenate([self._features(ask.batch) for ask in instruction.asks])
        parts = np.split(self._network.embed(x_NF), np.cumsum(sizes)[:-1])
        held_out = sum(ask.batch.size for ask in instruction.asks if self._is_held_out(ask.batch))
        self._account.book("embed", evaluation=held_out / sum(sizes))
        return Embedded(instruction.asks, tuple(parts), self._network.version, time.monotonic())

    def _step(self, instruction: Train) -> list[Event]:
        chosen = self._rows(instruction.batch)
        embeddings = [answer.embedding if answer else None for answer in instruction.answers.values()]
        result = self._network.train(
            self._scaled(self._train_split, chosen),
            self._train_split.labels[chosen],
            embeddings,
            [(self._features(g.batch), g.gradient) for g in instruction.gradients],
            self._rate(instruction.step),
            self._laws.due(instruction.step),
        )
        self._laws.took(instruction.step, self._rate(instruction.step), bool(instruction.gradients), result)
        step = instruction.step + 1
        finite = np.isfinite(list(result.metrics.values())).all()
        if step == self._options.steps or not finite:
            self._laws.end(step)
        if not finite:
            self._diverged(instruction.step, result.metrics)
        self._account.book("train")
        self._note_step(step, instruction, result.metrics)
        self._account.book("record")
        answered = {a.sender for a in instruction.answers.values() if a is not None}
        gradients = {c: g for c, g in zip(self._setup.children, result.gradients, strict=True) if c in answered}
        events: list[Event] = [Trained(instruction.step, gradients, time.monotonic())]
        if step % self._setup.record.every == 0 and step < self._options.steps:
            events += self._wants("validation", step, min(self._setup.record.rows, len(self._validation)))
        return [*events, *self._due(step)]

    # -- evaluation: held-out rows in pieces of a batch, each as soon as the children have answered

    def _wants(self, split: str, step: int, count: int) -> list[Event]:
        size = self._options.batch_size
        fingerprint = (self._validation if split == "validation" else self._test).fingerprint
        starts = range(0, count, size)
        self._evaluations[split, step] = Evaluation(len(starts))
        wants: list[Event] = []
        for start in starts:
            batch = Rows(fingerprint, np.arange(start, min(start + size, count), dtype=np.int32))
            self._pieces[split, step, start] = batch
            wants.append(Want((split, step, start), batch, time.monotonic()))
        return wants

    def _evaluate(self, got: Got) -> list[Event]:
        assert isinstance(got.key, tuple)  # of `_wants`
        split, step, start = got.key
        batch = self._pieces.pop(got.key)
        held_out = self._splits[batch.data]
        x_BF, labels_B = self._scaled(held_out, batch.numbers), held_out.labels[batch.numbers]
        embeddings = [answer.embedding if answer else None for answer in got.answers.values()]
        evaluation = self._evaluations[split, step]
        evaluation.add(batch.size, self._network.evaluate(x_BF, labels_B, embeddings))
        final = step == self._options.steps
        if split == "validation" and start == 0 and self._attribution_due(step):
            self._outgoing.note(step, "attribute", self._network.attribute(x_BF, labels_B, embeddings))
        norms = self._network.norms() if evaluation.complete else {}
        self._account.book("evaluate")
        if not evaluation.complete:
            return []
        del self._evaluations[split, step]
        values = {f"{split}/{name}": value for name, value in evaluation.means.items()}
        spent = {f"seconds/{heading}": seconds for heading, seconds in self._account.seconds.items()}
        self._outgoing.note(step, "final" if final else "evaluate", values | norms | spent)
        if final:
            self._final |= values
        # an earlier evaluation, of which requests were lost, may be the last to complete
        self._evaluated = not self._evaluations and self._network.version == self._options.steps
        return [Done(time.monotonic())] if self._evaluated else []

    def _is_held_out(self, batch: Batch) -> bool:
        return isinstance(batch, Rows) and batch.data in (self._validation.fingerprint, self._test.fingerprint)

    def _attribution_due(self, step: int) -> bool:
        every = self._setup.record.attribution
        return bool(every) and (step % every < self._setup.record.every or step == self._options.steps)

    # -- the whole state

    def _save_wanted(self) -> None:
        """Between two steps: what the network has done the exchange knows of.

        After the last step only with its evaluation: who goes on from there has nothing left to do.
        """
        step = self._exchange.version
        if step == self._options.steps and not (self._evaluated or self._stopped):
            return
        if self._stopped:  # one more step may be under way: it belongs into the last set
            return
        self._saving.take()

    def _state(self) -> tuple[int, checkpoint.State, dict[str, Any]]:
        step = self._exchange.version
        assert step == self._network.version, "a state is saved between two steps"
        about = {
            "position": asdict(self._exchange.position),
            "counts": dict(self._exchange.counts),
            "bytes": dict(self._transport.bytes),
            "final": self._final,
            "seconds": self._seconds,
        }
        return step, self._network.save(), about

    @property
    def _seconds(self) -> float:
        """From the first step to the last, in this incarnation and in what it goes on from."""
        ended = self._ended if self._final else time.monotonic()
        return self._before + ended - self._started

    def _go_on(self) -> Optional[dict[str, Any]]:
        """Take over the state that this incarnation goes on from; what was noted beside it."""
        found = restored(self._setup)
        if found is None:
            return None
        self._network.restore(found[0])
        return found[1]

    # -- values

    def _warm(self) -> Any:
        """The network, compiled."""
        record, made = self._setup.record, self._built()
        attributed = min(self._options.batch_size, record.rows, len(self._validation))
        made.warm_up(attributed if record.attribution else 0)
        return made

    def _built(self) -> Any:
        setup, data = self._setup, self._setup.data
        return network(
            setup.name,
            setup.seed,
            self._options,
            setup.children,
            setup.parents,
            setup.gradient_rows,
            data.width,
            data.classes,
            watched=bool(setup.mechanics.every),
        )

    def _rows(self, batch: int) -> np.ndarray:
        return rows(self._setup.seed, self._setup.name, batch, self._options.batch_size, len(self._train_split))

    def _batch(self, number: int) -> Batch:
        if self._setup.data.private:
            return Features(self._train_split.inputs[self._rows(number)])
        return Rows(self._train_split.fingerprint, self._rows(number))

    def _features(self, batch: Batch) -> np.ndarray:
        """[B, F] scaled, of a batch by reference or by value."""
        if isinstance(batch, Rows):
            return self._scaled(self._splits[batch.data], batch.numbers)
        data = self._setup.data
        return batch.values.astype(np.float32) * np.float32(data.scale) + np.float32(data.offset)

    def _scaled(self, split: Split, numbers: np.ndarray) -> np.ndarray:
        return features(split, numbers, self._setup.data.scale, self._setup.data.offset)

    def _rate(self, step: int) -> float:
        from learners.optimizers import rate

        chosen = self._options.optimizer
        return rate(chosen.learning_rate, chosen.schedule, chosen.warmup, step, self._options.steps)

    # -- what is written down

    def _note_step(self, step: int, instruction: Train, metrics: Mapping[str, float]) -> None:
        exchange, counts = self._exchange, self._exchange.counts
        values = {f"train/{name}": value for name, value in metrics.items()}
        stale = [exchange.staleness(answer) for answer in instruction.answers.values() if answer]
        if stale:
            values["staleness/embedding"] = float(max(stale))
        if instruction.gradients:
            values["staleness/gradient"] = float(max(step - 1 - g.version for g in instruction.gradients))
        if self._setup.children:
            values["exchange/fallback_share"] = counts["fallbacks"] / max(1, counts["fallbacks"] + counts["used"])
        values["exchange/queued"] = float(exchange.queued)
        values["exchange/applied"] = float(counts["applied"])
        for what in ("fallbacks", "late", "lost", "clipped"):
            values[f"exchange/{what}"] = float(counts[what])
        for what in ("refused", "dropped"):
            values[f"exchange/{what}"] = float(sum(n for key, n in counts.items() if key.startswith(what)))
        values["exchange/unreadable"] = float(self._unreadable)
        values["records/dropped"] = float(self._outgoing.dropped)
        values |= {f"bytes/{way.replace(' ', '_')}": float(n) for way, n in self._transport.bytes.items()}
        values["speed/steps_per_second"] = self._speed.at(step)
        values["train/learning_rate"] = self._rate(step - 1)
        curve = max(1, self._setup.record.every // CURVE_POINTS)
        applied = tuple((g.sender, g.incarnation, g.sequence) for g in instruction.gradients)
        self._outgoing.note(step, "train", values, applied, plotted=step % curve == 0 or step == self._options.steps)

    def _diverged(self, step: int, metrics: Mapping[str, float]) -> None:
        faults = ", ".join(f"{name} {value}" for name, value in metrics.items() if not np.isfinite(value))
        text = (
            f"learners.{self._setup.name}: step {step}: {faults}: no longer finite; "
            f"try a smaller optimizer.learning_rate (it was {self._rate(step):g})"
        )
        self._outgoing.log.error(text)
        self._outgoing.finish(self._options.exchange.time_limit)
        raise Diverged(text)

    def _summary(self) -> Summary:
        self._turn = None
        self._outgoing.finish(STOPPED_SECONDS if self._stopped else FINISH_SECONDS)
        self._saving.leave()
        return Summary(
            learner=self._setup.name,
            incarnation=self._setup.incarnation,
            steps=self._exchange.version,
            seconds=self._seconds,
            final=self._final,
            counts={**self._exchange.counts, "unreadable": self._unreadable, "dropped records": self._outgoing.dropped},
            unwritten=self._outgoing.unwritten,
            bytes=dict(self._transport.bytes),
            spent=dict(self._account.seconds),
            processor=self._account.processor,
            stopped=self._stopped,
        )


def network(
    name: str,
    seed: int,
    options: Options,
    children: Mapping[str, int],
    parents: Mapping[str, int],
    gradient_rows: int,
    width: int,
    classes: int,
    *,
    watched: bool = False,
) -> Any:
    """The network of one learner, as its actor makes it: the arguments are those of `Setup` and `Data`.

    `watched`: whether its steps measure what the laws need.
    """
    from learners import mach, optimizers

    shape = mach.Shape(
        features=width,
        classes=classes,
        children=tuple(children.values()),
        hidden=options.hidden,
        embedding=options.embedding,
        synthetic=options.synthetic.hidden,
        batch=options.batch_size,
        gradient_rows=gradient_rows,
        answer_rows=max(parents.values(), default=0),
    )
    rule = optimizers.Rule(**{name: getattr(options.optimizer, name) for name in optimizers.Rule._fields})
    weights = derive(seed, "weights", name)
    return mach.Mach(
        shape,
        rule,
        seed=weights,
        dropout=options.dropout,
        weight=options.synthetic.weight,
        parents_rate=options.exchange.gradient_rate,
        watched=watched,
    )


# a message is a call, and Ray's notes of every call cost a fifth of it
MachActor = ray.remote(max_concurrency=2, max_restarts=0, enable_task_events=False)(MachWorker)
