"""Rules of a group of exact replicas, without any I/O: who passes which update on to whom, and who applies it when.

Consumes: events (an update was made, a parcel arrived, a neighbour is there, time has passed, ...).
Produces: instructions (send, apply, keep, ...), performed by whoever asked; see `Group.handle`.
Waits for: nothing; in a synchronous group, for all living workers' updates of the round before.
Unblocked by: those updates, or their senders' closing.
Greatest staleness: what comes in is applied before the next round, or `held_back` rounds later.

One rule for workers, relays and the log. The members form a graph, of which each knows its neighbours. What is new is
passed on once to each neighbour it did not come from; now and then a parcel carries its sender's clock, and whoever
reads there that something is missing sends it again. So a loss costs time, a repetition nothing, and order nothing:
a joiner, a restart and a broadcast that broke off are clocks that lack something. Clocks also tell what the log has:
only that is forgotten, and who has no room for more takes no more.

What an incarnation has sent counts for all or for none. When it ends, members take no more of it (`Ending`); as soon as
the log has all that they hold, it closes the incarnation at that (`Close`), and clocks carry the closing to all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Optional

from learners.group.events import (
    Accuse,
    Apply,
    Arrived,
    Close,
    Discard,
    Done,
    Ending,
    Event,
    Found,
    Gone,
    Holding,
    Instruction,
    Joined,
    Keep,
    KeepClosed,
    Leave,
    Logged,
    Look,
    Made,
    Opened,
    Ready,
    Send,
    Wait,
)
from learners.group.parcels import Holds, Parcel, Sent, Whose
from learners.group.sums import MASK, Sums
from learners.rbd.clocks import Clock, Name, Taken
from learners.rbd.replica import Update


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds traffic, memory and staleness."""

    hold: float = 0.0  #: least seconds between two parcels to one neighbour: what comes meanwhile goes in one
    beat: float = 1.0  #: seconds between two clocks to one neighbour
    patience: float = 2.0  #: seconds after which what a neighbour's clock lacks is sent to it again
    parcel: int = 256_000  #: bytes of updates in one parcel, or one update
    memory: int = 32_000_000  #: bytes of updates that are kept to fill others' gaps, and until the log has them
    window: int = 4096  #: updates taken in above a gap, and sent to a neighbour that does not say it has them
    waiting: int = 4096  #: updates taken in and not applied
    held_back: int = 0  #: rounds that an update waits before it is applied
    max_staleness: int = 16  #: updates held back; the oldest are applied all the same
    sync: bool = False  #: whether each round waits for all


@dataclass
class _Peer:
    """What is known of one neighbour."""

    incarnation: int
    open: bool = True
    outbox: dict[Name, Sent] = field(default_factory=dict)  #: to be sent
    sent: dict[Name, float] = field(default_factory=dict)  #: sent at that time; its clock has not shown it yet
    last: float = -inf  #: when the last parcel left
    told: float = -inf  #: when it last got our clock
    came: int = 0  #: updates that it has sent since then
    looked: float = -inf  #: when the log was last asked on its behalf


class Group:
    """The state machine of one member: deterministic, and changed by `handle` alone.

    Args:
        node: number of a worker, or -1 - number of a relay; relays apply nothing.
        incarnation: of this member.
        read: makes an update of what was sent, or raises ValueError: no member sends such. Pure.
        limits: see there.
        holds: what a new member knows from snapshot and log, and has applied.
        sums: of these.
        first: the round that a worker begins with; of a synchronous group.
        logs: whether this member keeps the log.
    """

    def __init__(
        self,
        node: int,
        incarnation: int,
        read: Callable[[Sent], Update],
        limits: Limits,
        *,
        holds: Optional[Holds] = None,
        sums: Optional[Sums] = None,
        first: int = 0,
        logs: bool = False,
    ) -> None:
        holds = holds or Holds(Clock())
        self._node, self._incarnation, self._read, self._limits = node, incarnation, read, limits
        self._taken, self._closed = dict(holds.clock.taken), dict(holds.closed)
        self._logs, self._own = logs, (node, incarnation)
        self._frozen: set[Whose] = set()  #: nothing more is taken of these
        self._accused: set[Whose] = set()
        self._store: dict[Name, Sent] = {}  #: recent updates, oldest first
        self._stored = 0  #: bytes of them
        self._waiting: deque[tuple[int, Sent, Update]] = deque()  #: not applied yet, with the round of arrival
        self._peers: dict[int, _Peer] = {}
        self._members: dict[Whose, int] = {}  #: first round of each; synchronous
        self._first, self._round = first, 0
        self._logged = holds.logged  #: only what the log has may be forgotten
        self._sums = sums or Sums()
        self._applied = holds.clock.count
        self._ready = self._done = self._left = False
        self._over = ""  #: why this member must rejoin
        self._said: list[Instruction] = []
        #: how often what happened: made, taken, repeated, sent, resent, looked up, refused <why>
        self.counts: Counter[str] = Counter()

    @property
    def clock(self) -> Clock:
        """All updates that have come in; what waits is not applied yet."""
        return Clock(dict(self._taken))

    @property
    def holds(self) -> Holds:
        """What neighbours are told."""
        return Holds(self.clock, dict(self._closed), self._logged)

    @property
    def seen(self) -> int:
        """Updates applied here, own and others'."""
        return self._applied

    @property
    def sums(self) -> Sums:
        """Of what is applied here."""
        return self._sums

    def agrees(self, clock: Clock, digest: int) -> Optional[bool]:
        """Whether a replica has the bits that its updates' senders say; None where that can't be told now."""
        wanted = self._sums.of(clock)
        return None if wanted is None else wanted == digest & MASK

    @property
    def waiting(self) -> int:
        """Updates that have come in and are not applied."""
        return len(self._waiting)

    def handle(self, *events: Event) -> tuple[Instruction, ...]:
        """Take in what happened; say what to do now, in this order. The last instruction is `Wait` or `Discard`."""
        self._said = []
        for event in events:
            if not self._over:
                self._take(event)
        at = events[-1].at
        if not self._over:
            self._say_kept()
            self._send(at)
            self._proceed()
        if self._over:
            return (Discard(self._over),)
        return (*self._said, Wait(self._due()))

    def _take(self, event: Event) -> None:
        match event:
            case Made(update):
                self._made(update)
            case Ready():
                self._ready = True
            case Arrived(parcel, at):
                self._arrived(parcel, at)
            case Opened(node, incarnation):
                self._open(node, incarnation)
            case Gone(node):
                if node in self._peers:  # if it comes back, its clock says what it lacks
                    self._peers[node] = _Peer(self._peers[node].incarnation, open=False)
            case Joined(sender, incarnation, first):
                self._members[sender, incarnation] = first
            case Ending(whose):
                if not self._logs:
                    self._frozen.add(whose)
                self._said.append(Holding(whose, self._taken.get(whose, Taken())))
            case Close(whose):
                self._close(whose, self._taken.get(whose, Taken()))
            case Found(to, updates):
                peer = self._peers[to]
                peer.outbox.update({sent.name: sent for sent in updates if sent.name not in peer.sent})
            case Logged(clock):
                self._hear_of_log(clock)
            case Done():
                self._done = True

    # -- updates

    def _made(self, sent: Sent) -> None:
        assert sent.name == (*self._own, self._taken.get(self._own, Taken()).below), f"{sent.name} is not the next"
        self.counts["made"] += 1
        self._applied += 1
        self._sums = self._sums.add([sent])
        self._accept(sent, None)
        if self._full():
            self._over = "the log has not got this worker's updates for so long that there is no room for more"

    def _arrived(self, parcel: Parcel, at: float) -> None:
        peer = self._peers.get(parcel.node)
        if peer is None:
            self.counts["refused unknown neighbour"] += 1
            return
        if parcel.incarnation < peer.incarnation:  # its updates are as good as ever; its clock is nobody's
            for sent in parcel.updates:
                self._receive(sent, None)
            return
        if parcel.incarnation > peer.incarnation:  # it has forgotten all, and may lack anything
            peer = self._peers[parcel.node] = _Peer(parcel.incarnation)
        peer.open = True
        peer.came += len(parcel.updates)
        if parcel.holds is not None:
            for whose, taken in parcel.holds.closed.items():
                self._close(whose, taken)
            self._hear_of_log(parcel.holds.logged)
        for sent in parcel.updates:
            peer.outbox.pop(sent.name, None)
            peer.sent.pop(sent.name, None)
            self._receive(sent, peer)
        if parcel.holds is not None:
            self._compare(parcel.node, peer, parcel.holds.clock, at)

    def _hear_of_log(self, clock: Clock) -> None:
        """All that is heard of it are moments of one history."""
        self._logged = max(self._logged, clock, key=lambda clock: clock.count)

    def _receive(self, sent: Sent, source: Optional[_Peer]) -> None:
        whose = sent.name[:2]
        if sent.name.sequence in self._taken.get(whose, Taken()):
            self.counts["repeated"] += 1
            return
        reason = self._unwanted(sent)
        if reason:
            self.counts[f"refused {reason}"] += 1
            return
        try:
            update = self._read(sent)
        except ValueError as error:
            self.counts["refused contents"] += 1
            if whose not in self._accused:
                self._accused.add(whose)
                self._said.append(Accuse(whose, str(error)))
            return
        self.counts["taken"] += 1
        self._accept(sent, source)
        if self._node >= 0:
            self._waiting.append((self._round, sent, update))

    def _unwanted(self, sent: Sent) -> str:
        """Why an update is not taken, now or for ever; "" if it is."""
        whose, sequence = sent.name[:2], sent.name.sequence
        if whose in self._closed:
            if sequence not in self._closed[whose]:
                return "closed incarnation"
        elif whose in self._frozen:
            return "ending incarnation"
        if whose == self._own:
            return "own name"
        if sequence >= self._taken.get(whose, Taken()).below + self._limits.window:
            return "far ahead"  # it will be sent again
        return "no room" if self._full() or len(self._waiting) >= self._limits.waiting else ""

    def _accept(self, sent: Sent, source: Optional[_Peer]) -> None:
        whose = sent.name[:2]
        self._taken[whose] = self._taken.get(whose, Taken()).add(sent.name.sequence)
        self._store[sent.name] = sent
        self._stored += sent.nbytes
        for peer in self._peers.values():
            if peer is not source and peer.open:
                peer.outbox[sent.name] = sent
        if self._logs:
            self._said.append(Keep((sent,)))

    def _full(self) -> bool:
        """Whether there is no room for another update once all has been forgotten that the log has."""
        while self._stored > self._limits.memory:
            name = next(iter(self._store))
            if name not in self._logged:
                return True
            self._stored -= self._store.pop(name).nbytes
            for peer in self._peers.values():
                peer.outbox.pop(name, None)
                peer.sent.pop(name, None)
        return False

    # -- neighbours and their clocks

    def _open(self, node: int, incarnation: int) -> None:
        peer = self._peers.get(node)
        if peer is None or incarnation > peer.incarnation:
            self._peers[node] = _Peer(incarnation)
        elif incarnation == peer.incarnation:
            peer.open, peer.told = True, -inf

    def _compare(self, node: int, peer: _Peer, theirs: Clock, at: float) -> None:
        """What does this neighbour lack, according to its clock?"""
        for name, when in list(peer.sent.items()):
            if name in theirs:
                del peer.sent[name]
            elif when <= at - self._limits.patience:
                del peer.sent[name]
                self.counts["resent"] += 1
        peer.outbox = {name: sent for name, sent in peer.outbox.items() if name not in theirs}
        lacked = list(
            islice((name for name in self.clock.beyond(theirs) if name not in peer.sent), self._limits.window)
        )
        peer.outbox.update((name, self._store[name]) for name in lacked if name in self._store)
        missing = any(name not in peer.outbox for name in lacked)
        if missing and at >= peer.looked + self._limits.patience:
            peer.looked = at
            self.counts["looked up"] += 1
            self._said.append(Look(node, theirs))

    def _send(self, at: float) -> None:
        for node, peer in self._peers.items():
            tell = at >= peer.told + self._limits.beat or 4 * peer.came >= self._limits.window
            if not peer.open or at < peer.last + self._limits.hold or not (peer.outbox or tell):
                continue
            updates = tuple(self._picked(peer, at))
            if not updates and not tell:
                continue
            self.counts["sent"] += len(updates)
            peer.last = at
            if tell:
                peer.told, peer.came = at, 0
            self._said.append(Send(node, Parcel(self._node, self._incarnation, updates, self.holds if tell else None)))

    def _picked(self, peer: _Peer, at: float) -> Iterator[Sent]:
        """From the outbox: one parcel, and no more than a neighbour may leave without a word."""
        size = 0
        for name, sent in list(peer.outbox.items()):
            size += sent.nbytes
            if len(peer.sent) >= self._limits.window or (size > self._limits.parcel and size > sent.nbytes):
                return
            del peer.outbox[name]
            peer.sent[name] = at
            yield sent

    def _due(self) -> float:
        """When the next parcel leaves if nothing happens before."""
        times = [inf]
        for peer in self._peers.values():
            if peer.open:
                full = len(peer.sent) >= self._limits.window
                beat = peer.told + self._limits.beat
                times.append(max(peer.last + self._limits.hold, -inf if peer.outbox and not full else beat))
        return min(times)

    # -- incarnations that end

    def _close(self, whose: Whose, taken: Taken) -> None:
        if whose in self._closed:
            return
        mine = self._taken.get(whose, Taken())
        self._closed[whose] = taken
        self._frozen.discard(whose)
        for peer in self._peers.values():
            peer.told = -inf  # all hear of it with the next parcel
        if self._logs:
            self._said.append(KeepClosed(whose, taken))
        if next(mine.beyond(taken), None) is not None:
            self._over = f"incarnation {whose[1]} of worker {whose[0]} was closed without updates that are applied here"
        elif whose == self._own and not self._done:
            self._over = "this incarnation was closed while it went on"

    # -- rounds

    def _proceed(self) -> None:
        if self._ready and not self._lacking():
            self._ready = False
            chosen = self._chosen()
            staleness = tuple(max(0, self._applied - sent.seen) for sent, _ in chosen)
            self._applied += len(chosen)
            self._sums = self._sums.add(sent for sent, _ in chosen)
            self._round += 1
            self._said.append(Apply(tuple(update for _, update in chosen), staleness))
        made = self._taken.get(self._own, Taken())
        if self._done and not self._left and self._logged.taken.get(self._own, Taken()) == made:
            self._left = True
            self._said.append(Leave())

    def _chosen(self) -> list[tuple[Sent, Update]]:
        """What is applied before this round; the rest goes on waiting."""
        if self._limits.sync and self._done:
            now = list(self._waiting)  # of rounds that others make after this worker's last one
        elif self._limits.sync:
            now = [entry for entry in self._waiting if self._before(entry[1].name)]
        else:
            late = len(self._waiting) - self._limits.max_staleness
            old = self._round - self._limits.held_back
            now = [entry for i, entry in enumerate(self._waiting) if i < late or entry[0] <= old]
        names = {sent.name for _, sent, _ in now}
        self._waiting = deque(entry for entry in self._waiting if entry[1].name not in names)
        return [(sent, update) for _, sent, update in now]

    @property
    def _next(self) -> int:
        """The round that this worker would begin."""
        return self._first + self._taken.get(self._own, Taken()).below

    def _before(self, name: Name) -> bool:
        return self._members.get(name[:2], 0) + name.sequence < self._next

    def _lacking(self) -> bool:
        """Whether a living worker's update of a former round is not here; of a closed one, what counts of it."""
        if not self._limits.sync:
            return False
        for whose, first in self._members.items():
            wanted = self._next - first
            if whose in self._closed:
                wanted = min(wanted, self._closed[whose].below)
            if self._taken.get(whose, Taken()).below < wanted:
                return True
        return False

    def _say_kept(self) -> None:
        """All that is to be logged in one instruction, before anything of it leaves."""
        kept = tuple(sent for said in self._said if isinstance(said, Keep) for sent in said.updates)
        if kept:
            self._said = [Keep(kept), *(said for said in self._said if not isinstance(said, Keep))]
