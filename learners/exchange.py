"""Rules of the traffic between a learner, its children and its parents, without any I/O.

Consumes: events (a message arrived, the learner is ready for a step, has trained, has embedded, wants held-out rows).
Produces: instructions (send, embed, train, wait, ...), performed by whoever asked; see `Exchange.handle`.
Waits for: nothing. Time enters as the `at` of an event, so that every fault is a list of events in a test.
Unblocked by: an answer, or `patience` seconds after a step became ready, whichever is first.
Greatest staleness: `limits.max_staleness` steps of the learner that receives a gradient.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from learners.messages import (
    Accuse,
    Answer,
    Arrived,
    Ask,
    Batch,
    Closed,
    Done,
    Embed,
    Embedded,
    Ended,
    Event,
    Features,
    Got,
    Gradient,
    Instruction,
    Leave,
    Message,
    Opened,
    Ready,
    Send,
    Tick,
    Train,
    Trained,
    Wait,
    Want,
)
from learners.options import Exchange as Limits

POISON_IN_A_ROW = 3
"""Contents of one kind refused from one sender, without a good one between, after which it is accused."""

TRIES = 3
"""Requests for held-out rows that a child may lose in a row before it is not asked for any."""
WINDOW = 1024
"""Sequence numbers remembered above the gapless part; a gap older than that counts as seen."""


@dataclass(frozen=True)
class Position:
    """Which steps are done and which batches are used."""

    version: int  #: steps done
    next_batch: int  #: all below are used, but for `unused`
    unused: Sequence[int]  #: batches that were asked about and not used


@dataclass
class _Pending:
    """A training batch that children have been asked about and no step has used."""

    open: set[str]  #: children that may still answer
    answers: dict[str, Answer] = field(default_factory=dict)


@dataclass(frozen=True)
class _Request:
    key: Hashable  #: the number of a training batch, or the key of a `Want`
    batch: Batch
    sent: float = inf  #: when it left; it may be held for a while


@dataclass
class _Peer:
    """What is known of one neighbour."""

    name: str
    incarnation: int = 0
    closed: bool = False  #: nothing counts or is sent until a newer incarnation is opened or speaks
    sent: int = 0  #: messages sent to it: the sequence of our next one
    seen_below: int = 0  #: all its sequences below this have been seen, or given up
    seen: set[int] = field(default_factory=set)
    poison: Counter[type] = field(default_factory=Counter)  #: refused contents in a row, by kind of message

    def first_time(self, sequence: int) -> bool:
        """Whether this sequence is new; it is remembered."""
        if sequence < self.seen_below or sequence in self.seen:
            return False
        self.seen.add(sequence)
        while self.seen_below in self.seen or len(self.seen) > WINDOW:
            self.seen.discard(self.seen_below)
            self.seen_below += 1
        return True


@dataclass
class _Child(_Peer):
    width: int = 0  #: of its embedding
    silent: bool = False  #: a request was lost: one probe at a time, and no step waits for it
    unanswered: int = 0  #: requests for held-out rows lost since it last spoke
    version: int = 0  #: its newest that was heard of
    requests: dict[int, _Request] = field(default_factory=dict)  #: by sequence of the ask
    wants: deque[tuple[Hashable, Batch]] = field(default_factory=deque)  #: not asked yet

    def open(self, *, training: bool) -> int:
        return sum(isinstance(request.key, int) is training for request in self.requests.values())


@dataclass
class _Parent(_Peer):
    rows: int = 0  #: of its batches; more in one message do not fit into what is compiled
    ended: bool = False
    asks: deque[Ask] = field(default_factory=deque)
    gradients: deque[Gradient] = field(default_factory=deque)


class Exchange:
    """The state machine of one learner: deterministic, and changed by `handle` alone.

    Args:
        name, incarnation: of this learner.
        children: width of each child's embedding, in the order of concatenation.
        parents: batch size of each learner that asks this one.
        embedding: own width, which gradients must have.
        features: width and type of rows that come by value.
        data: number of rows of each split that can be referred to, by fingerprint.
        batch: the batch of a training step, by its number. Pure.
        steps: that this learner takes.
        limits: the options of the YAML.
        position: where a former incarnation stood; the start if there was none.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        children: Mapping[str, int],
        parents: Mapping[str, int],
        embedding: int,
        features: tuple[int, str],
        data: Mapping[str, int],
        batch: Callable[[int], Batch],
        steps: int,
        limits: Limits,
        position: Optional[Position] = None,
    ) -> None:
        self._name, self._incarnation = name, incarnation
        self._children = {child: _Child(child, width=width) for child, width in children.items()}
        self._parents = {parent: _Parent(parent, rows=size) for parent, size in parents.items()}
        self._peers: dict[str, _Peer] = {**self._children, **self._parents}
        self._embedding, self._features, self._data = embedding, features, dict(data)
        self._batch, self._steps, self._limits = batch, steps, limits
        self._started = self._done = self._left = False
        self._ready: Optional[Ready] = None
        self._batches: dict[int, _Pending] = {}  #: asked about and unused, by number, oldest first
        position = position or Position(0, 0, ())
        self._next_batch = position.next_batch  #: first that has been neither used nor asked about
        self._unused = deque(position.unused)  #: asked about by a former incarnation, used by none
        self._training: Optional[Train] = None  #: the step that is now computed
        self._begun = 0.0  #: when that was handed out
        self._brisk = False  #: whether the last step took less than an answer may take
        self._wanted: dict[Hashable, dict[str, Optional[Answer]]] = {}
        self._outbox: dict[str, list[Message]] = {}
        self.version = position.version  #: steps done
        #: how often what happened: asked, answered, used, fallbacks, late, lost, applied, clipped, repeated,
        #: dropped <what>, refused <why>
        self.counts: Counter[str] = Counter()

    @property
    def queued(self) -> int:
        """Messages that wait for this learner."""
        return sum(len(parent.asks) + len(parent.gradients) for parent in self._parents.values())

    @property
    def position(self) -> Position:
        """Where this learner stands before the step that may be due; what a later incarnation goes on from."""
        begun = () if self._training is None else (self._training.batch,)
        return Position(self.version, self._next_batch, (*begun, *sorted(self._batches), *self._unused))

    def staleness(self, answer: Answer) -> int:
        """Steps that the child is known to have made since it computed this answer (a lower bound)."""
        return max(0, self._children[answer.sender].version - answer.version)

    def handle(self, *events: Event) -> tuple[Instruction, ...]:
        """Take in what happened; say what to do now, in this order.

        Sends come first, so that others work while we do; whoever waits for an embedding is served before the step.
        While a `Ready` is unanswered the last instruction is `Train` or `Wait`.
        """
        out: list[Instruction] = []
        for event in events:
            out += self._take(event)
        at = events[-1].at
        self._lose(at)
        self._fill()
        step = None if self._ready is None else self._proceed(self._ready, at)
        out += self._leaving(isinstance(step, Train), at)
        out += self._got()
        asks = tuple(ask for parent in self._parents.values() for ask in parent.asks)
        if asks:
            for parent in self._parents.values():
                parent.asks.clear()
            out.append(Embed(asks))
        if step is not None:
            out.append(step)
        elif self._may_leave() and not asks:
            self._left = True
            out.append(Leave())
        return tuple(out)

    def _take(self, event: Event) -> list[Instruction]:
        match event:
            case Arrived():
                return self._arrived(event)
            case Ready():
                self._started, self._ready = True, event
            case Trained():
                self._trained(event)
            case Embedded():
                self._embedded(event)
            case Want():
                self._want(event)
            case Done():
                self._finish()
            case Closed():
                self._close(event)
            case Opened():
                self._open(event)
            case Tick():
                pass
        return []

    # -- what arrives

    def _arrived(self, event: Arrived) -> list[Instruction]:
        message = event.message
        peer = self._peers.get(message.sender)
        if peer is None:
            return self._refuse(message, "unknown sender")
        if message.incarnation < peer.incarnation or (message.incarnation == peer.incarnation and peer.closed):
            return self._refuse(message, "closed incarnation")
        if message.incarnation > peer.incarnation:
            self._reopen(peer, message.incarnation)
        if not peer.first_time(message.sequence):
            self.counts["repeated"] += 1
            return []
        if isinstance(peer, _Child) and isinstance(message, Answer):
            return self._answer(peer, message)
        if isinstance(peer, _Parent) and isinstance(message, Ask):
            return self._ask(peer, message)
        if isinstance(peer, _Parent) and isinstance(message, Gradient):
            return self._gradient(peer, message)
        if isinstance(peer, _Parent) and isinstance(message, Ended):
            peer.ended = True
            return []
        return self._refuse(message, "wrong direction")

    def _answer(self, child: _Child, message: Answer) -> list[Instruction]:
        request = child.requests.pop(message.ask, None)
        reason = _array_fault(message.embedding, request.batch.size if request else None, child.width)
        if reason:
            if request is not None:
                self._resolve(child, request.key, None)
            return self._poisoned(child, message, reason)
        child.poison[Answer] = 0
        child.silent, child.unanswered = False, 0
        child.version = max(child.version, message.version)
        if request is None:
            self.counts["late"] += 1
        else:
            self._resolve(child, request.key, message)
        return []

    def _ask(self, parent: _Parent, message: Ask) -> list[Instruction]:
        reason = self._batch_fault(message.batch, parent.rows)
        if reason:
            return self._poisoned(parent, message, reason)
        parent.poison[Ask] = 0
        self._enqueue(parent.asks, message, "asks")
        return []

    def _gradient(self, parent: _Parent, message: Gradient) -> list[Instruction]:
        if self._done:
            return self._refuse(message, "finished")
        reason = self._batch_fault(message.batch, parent.rows)
        reason = reason or _array_fault(message.gradient, message.batch.size, self._embedding)
        if message.version > self.version:
            reason = reason or "version from the future"
        if reason:
            return self._poisoned(parent, message, reason)
        parent.poison[Gradient] = 0
        self._enqueue(parent.gradients, self._clipped(message), "gradients")
        return []

    def _enqueue(self, queue: deque, message: Message, what: str) -> None:  # type: ignore[type-arg]
        queue.append(message)
        if len(queue) > self._limits.queue:
            queue.popleft()
            self.counts[f"dropped {what}"] += 1

    def _clipped(self, message: Gradient) -> Gradient:
        norm = float(np.sqrt(_square(message.gradient)))
        if norm <= self._limits.clip:
            return message
        self.counts["clipped"] += 1
        return replace(message, gradient=message.gradient * np.float32(self._limits.clip / norm))

    def _refuse(self, message: Message, reason: str) -> list[Instruction]:
        self.counts[f"refused {reason}"] += 1
        return []

    def _poisoned(self, peer: _Peer, message: Message, reason: str) -> list[Instruction]:
        """Refuse contents that should not have been sent; after the third in a row the sender is accused."""
        self._refuse(message, reason)
        peer.poison[type(message)] += 1
        if peer.poison[type(message)] % POISON_IN_A_ROW:
            return []
        return [Accuse(message.sender, message.incarnation, f"{type(message).__name__.lower()}: {reason}")]

    def _batch_fault(self, batch: Batch, most: int) -> str:
        if isinstance(batch, Features):
            width, kind = self._features
            if batch.values.ndim != 2 or batch.values.shape[1] != width or not 0 < batch.size <= most:
                return "wrong shape"
            if batch.values.dtype != np.dtype(kind):
                return "wrong type"
            return "" if batch.values.dtype.kind in "iu" or np.isfinite(batch.values).all() else "not finite"
        if batch.data not in self._data:
            return "unknown data"
        if batch.numbers.ndim != 1 or not 0 < batch.size <= most:
            return "wrong shape"
        if batch.numbers.dtype.kind not in "iu":
            return "wrong type"
        return "" if batch.numbers.min() >= 0 and batch.numbers.max() < self._data[batch.data] else "rows out of range"

    # -- incarnations

    def _reopen(self, peer: _Peer, incarnation: int) -> None:
        """A newer incarnation speaks: the older one is over. It has none of what we asked, and counts from 0."""
        self._forget(peer)
        peer.incarnation, peer.closed = incarnation, False
        peer.seen_below, peer.seen, peer.poison = 0, set(), Counter()
        if isinstance(peer, _Parent):
            peer.ended = False

    def _close(self, event: Closed) -> None:
        peer = self._peers.get(event.name)
        if peer is not None and event.incarnation >= peer.incarnation:
            self._forget(peer)
            peer.incarnation, peer.closed = event.incarnation, True
            if isinstance(peer, _Parent):
                peer.ended = event.forever

    def _open(self, event: Opened) -> None:
        peer = self._peers.get(event.name)
        if peer is not None and event.incarnation > peer.incarnation:
            self._reopen(peer, event.incarnation)
            if isinstance(peer, _Child):
                peer.silent, peer.unanswered = False, 0

    def _forget(self, peer: _Peer) -> None:
        if isinstance(peer, _Parent):
            self.counts["dropped asks"] += len(peer.asks)
            self.counts["dropped gradients"] += len(peer.gradients)
            peer.asks.clear()
            peer.gradients.clear()
        if isinstance(peer, _Child):
            held = self._outbox.pop(peer.name, [])
            self.counts["dropped gradients to children"] += sum(isinstance(message, Gradient) for message in held)
            peer.silent, peer.version = True, 0
            for request in peer.requests.values():
                self._resolve(peer, request.key, None)
            peer.requests.clear()

    # -- asking

    def _want(self, event: Want) -> None:
        self._wanted[event.key] = {}
        for child in self._children.values():
            child.wants.append((event.key, event.batch))

    def _fill(self) -> None:
        """Keep requests open at each child: for training batches ahead of the step, and for held-out rows."""
        for child in self._children.values():
            if child.closed or child.unanswered >= TRIES:
                while child.wants:
                    self._resolve(child, child.wants.popleft()[0], None)
            while child.wants and child.open(training=False) < (1 if child.silent else self._limits.in_flight):
                self._request(child, *child.wants.popleft())
        if not self._started or not self._children:
            return
        # one batch for the step that is due and `in_flight` behind it; each is replaced when it has been trained on,
        # so that the request goes in one call with the gradient
        while len(self._batches) <= self._limits.in_flight and self.version + len(self._batches) < self._steps:
            free = [c for c in self._children.values() if not (c.closed or (c.silent and c.open(training=True)))]
            if not free:
                return
            number = self._fresh()
            self._batches[number] = _Pending({child.name for child in free})
            for child in free:
                self._request(child, number, self._batch(number))

    def _fresh(self) -> int:
        if self._unused:
            return self._unused.popleft()
        self._next_batch += 1
        return self._next_batch - 1

    def _request(self, child: _Child, key: Hashable, batch: Batch) -> None:
        child.requests[child.sent] = _Request(key, batch)
        self._post(child, Ask, batch=batch)
        self.counts["asked"] += 1

    def _post(self, peer: _Peer, kind: type[Message], **contents: object) -> None:
        """Put a message into the outbox: all for one receiver leave in one call."""
        message = kind(self._name, self._incarnation, peer.sent, **contents)
        self._outbox.setdefault(peer.name, []).append(message)
        peer.sent += 1

    def _leaving(self, busy: bool, at: float) -> list[Instruction]:
        """What leaves now: a call costs more than what it carries.

        Messages to a child wait until `pack` requests are together, but only while the learner has steps to take, and
        only for short steps.
        """
        hold = busy and self._brisk
        leaving = [n for n, m in self._outbox.items() if not (hold and n in self._children and self._few(m))]
        for child in (self._children[name] for name in leaving if name in self._children):
            child.requests = {n: replace(r, sent=min(r.sent, at)) for n, r in child.requests.items()}
        return [Send(name, tuple(self._outbox.pop(name))) for name in leaving]

    def _few(self, messages: list[Message]) -> bool:
        return sum(isinstance(message, Ask) for message in messages) < self._limits.pack

    def _lose(self, at: float) -> None:
        """Give up requests older than the time limit; their child counts as silent until it speaks.

        Nobody is in a hurry for held-out rows: they are asked for again, so that a figure isn't lost with a message.
        """
        for child in self._children.values():
            for sequence, request in list(child.requests.items()):
                if at - request.sent >= self._limits.time_limit:
                    del child.requests[sequence]
                    child.silent = True
                    self.counts["lost"] += 1
                    if isinstance(request.key, int):
                        self._resolve(child, request.key, None)
                    else:
                        child.unanswered += 1
                        child.wants.appendleft((request.key, request.batch))

    def _resolve(self, child: _Child, key: Hashable, answer: Optional[Answer]) -> None:
        """Note what came of one request: of a training batch, or of a `Want`."""
        if not isinstance(key, int):
            self._wanted[key][child.name] = answer
        elif key not in self._batches:
            self.counts["late"] += answer is not None
        else:
            self._batches[key].open.discard(child.name)
            if answer is not None:
                self._batches[key].answers[child.name] = answer

    def _got(self) -> list[Instruction]:
        """One complete want at a time: whoever asks us in between is served first."""
        for key, answers in self._wanted.items():
            if len(answers) == len(self._children):
                del self._wanted[key]
                return [Got(key, {name: answers[name] for name in self._children})]  # not as they came
        return []

    # -- stepping

    def _proceed(self, ready: Ready, at: float) -> Instruction:
        """The oldest batch that all have answered; for want of one, after `patience`, a fresh one without answers.

        An answer that comes later is thus not lost: its batch is still there for another step.
        """
        number = next((number for number, pending in self._batches.items() if not pending.open), None)
        if number is None:
            deadline = ready.at + self._limits.patience
            if self._expecting() and at < deadline:
                return Wait(deadline)
            unasked = self.version + len(self._batches) < self._steps
            number = self._fresh() if unasked else next(iter(self._batches))
        answers = self._batches.pop(number).answers if number in self._batches else {}
        self.counts["used" if answers else "fallbacks"] += bool(self._children)
        gradients = tuple(filter(None, map(self._next_gradient, self._parents.values())))
        self.counts["applied"] += len(gradients)
        self._ready, self._begun = None, at
        self._training = Train(ready.step, number, {name: answers.get(name) for name in self._children}, gradients)
        return self._training

    def _expecting(self) -> bool:
        """Whether a child that is not silent has yet to answer about a training batch."""
        return any(child.open(training=True) for child in self._children.values() if not child.silent)

    def _next_gradient(self, parent: _Parent) -> Optional[Gradient]:
        while parent.gradients:
            gradient = parent.gradients.popleft()
            if self.version - gradient.version <= self._limits.max_staleness:
                return gradient
            self._refuse(gradient, "stale")
        return None

    def _trained(self, event: Trained) -> None:
        train, self._training = self._training, None
        assert train is not None and train.step == event.step, "a step ends that was not begun"
        self.version = event.step + 1
        self._brisk = event.at - self._begun < self._limits.patience
        for name, gradient in event.gradients.items():
            child, answer = self._children[name], train.answers[name]
            assert answer is not None, "a gradient belongs to an answer that was used"
            if child.closed or answer.incarnation != child.incarnation:
                self.counts["dropped gradients to children"] += 1
            elif self._limits.gradients:
                batch = self._batch(train.batch)
                self._post(child, Gradient, version=answer.version, batch=batch, gradient=gradient)

    def _embedded(self, event: Embedded) -> None:
        for ask, embedding in zip(event.asks, event.embeddings):
            parent = self._parents[ask.sender]
            if parent.closed or parent.incarnation != ask.incarnation:
                self.counts["dropped answers"] += 1
                continue
            self._post(parent, Answer, ask=ask.sequence, version=event.version, embedding=embedding)
            self.counts["answered"] += 1

    def _finish(self) -> None:
        self._done = True
        for parent in self._parents.values():
            self.counts["dropped gradients"] += len(parent.gradients)
            parent.gradients.clear()
        for child in self._children.values():
            self._post(child, Ended)

    def _may_leave(self) -> bool:
        return self._done and not self._left and all(parent.ended for parent in self._parents.values())


def _square(values: NDArray[np.float32]) -> float:
    """Sum of squares; not finite where a value is not (or beyond 1e19, which is poison as well)."""
    flat = values.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(flat, flat))


def _array_fault(values: NDArray[np.float32], rows: Optional[int], width: int) -> str:
    if values.ndim != 2 or values.shape[1] != width or (rows is not None and len(values) != rows):
        return "wrong shape"
    if values.dtype != np.float32:
        return "wrong type"
    return "" if np.isfinite(_square(values)) else "not finite"
