"""A group in one process whose messages get lost, come twice and late, and whose members die: for tests.

Real replicas of a few weights, real parcels as bytes; the supervisor, the log and the time are played here.
"""

from dataclasses import dataclass, field

import numpy as np

from learners.bases import Basis
from learners.group import parcels
from learners.group.events import (
    Accuse,
    Apply,
    Arrived,
    Close,
    Discard,
    Done,
    Ending,
    Found,
    Gone,
    Holding,
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
    Tick,
)
from learners.group.parcels import Holds
from learners.group.rules import Group, Limits
from learners.group.sums import Sums
from learners.rbd.clocks import Clock, Name, Taken
from learners.rbd.compartments import compartments, whole
from learners.rbd.coordinates import quantise
from learners.rbd.directions import Drawn
from learners.rbd.replica import Grid, Replica, Update

D, DIMENSIONS = 12, 5
GROUP = b"ourgroup"
ROOT, FAR = -1, -2
START = Replica.at_start(
    Drawn(7, tuple(compartments(whole(D), DIMENSIONS, "size")), Basis(1)),
    Grid(26, 2.5),
    np.linspace(-1, 1, D).astype(np.float32),
)


def read(sent):
    update = parcels.unpacked(sent, [DIMENSIONS], "sign", D)
    START.check(update)
    return update


def coordinates(name):
    """Of an update: any, but always the same."""
    chance = np.random.default_rng([name.sender, name.incarnation, name.sequence])
    return quantise(10.0 ** chance.uniform(-5, -2) * chance.standard_normal(DIMENSIONS), "sign", START.floor)


@dataclass
class Member:
    group: Group
    incarnation: int
    replica: Replica
    running: int = 0
    may_go: bool = False  #: whether a round may begin
    frozen: bool = False
    left: bool = False
    rounds: list[tuple[int, Clock]] = field(default_factory=list)  #: digest and clock at the begin of each
    most: int = 0  #: updates that were applied together


class World:
    """Two hosts with a relay each; workers 0, 1, ... on the one and the other in turn."""

    def __init__(self, workers, limits=None, hosts=2, extra_edges=(), group=Group):
        self.limits, self.make = limits or Limits(), group
        self.time, self.flight, self.log = 0.0, [], []
        self.closed, self.closing, self.members, self.extra = {}, [], {}, extra_edges
        self.hosts, self.parcels, self.nbytes, self.looks = hosts, 0, 0, 0
        self.refused = 0
        self.incarnations = {}
        for node in [ROOT, FAR][:hosts]:
            self.start(node)
        for node in range(workers):
            self.start(node)

    # -- who is there

    def relay_of(self, node):
        return FAR if node % 2 and self.hosts == 2 else ROOT

    def neighbours(self, node):
        found = {FAR} if node == ROOT and self.hosts == 2 else {ROOT} if node == FAR else set()
        if node < 0:
            found |= {n for n in self.members if n >= 0 and self.relay_of(n) == node}
        else:
            found.add(self.relay_of(node))
        found |= {b for a, b in self.extra if a == node} | {a for a, b in self.extra if b == node}
        return [n for n in found if n in self.members and n != node]

    def start(self, node):
        """A new incarnation, from the log; for the root and for workers."""
        incarnation = self.incarnations[node] = self.incarnations.get(node, -1) + 1
        replica, holds, sums = START, Holds(Clock()), Sums()
        if node != FAR:
            replica = START.apply(map(read, self.log))
            holds, sums = Holds(replica.clock, dict(self.closed), replica.clock), Sums().add(self.log)
        there = [m.group._next for n, m in self.members.items() if n >= 0]
        first = max(there) + 1 if self.limits.sync and self.time and there else 0
        group = self.make(node, incarnation, read, self.limits, holds=holds, sums=sums, first=first, logs=node == ROOT)
        self.members[node] = Member(group, incarnation, replica)
        for other in self.neighbours(node):
            self.tell(node, Opened(other, self.members[other].incarnation, self.time))
            self.tell(other, Opened(node, incarnation, self.time))
        for whose in self.closing:
            self.tell(node, Ending(whose, self.time))
        if node >= 0 and self.limits.sync:
            for other in list(self.members):
                self.tell(other, Joined(node, incarnation, first, self.time))
                if other >= 0 and other != node:
                    o = self.members[other]
                    self.tell(node, Joined(other, o.incarnation, self.firsts[other], self.time))
            self.firsts[node] = first
        if node >= 0:
            self.tell(node, Ready(self.time))

    @property
    def firsts(self):
        self.__dict__.setdefault("_firsts", {})
        return self._firsts

    def kill(self, node):
        """It dies; what it has sent may still come."""
        member = self.members.pop(node)
        for other in self.living():
            if node in other.group._peers:
                self.tell_member(other, Gone(node, self.time))
        return member

    def close(self, node, incarnation):
        """As the supervisor does it; see `poll`."""
        self.closing.append((node, incarnation))
        self.poll()

    def poll(self):
        """Ask who is there, while messages still come; have the log close what it has all of."""
        for whose in list(self.closing):
            held = {}
            for node, member in list(self.members.items()):
                if (node, member.incarnation) != whose and not member.frozen:
                    said = self.tell(node, Ending(whose, self.time))
                    held.update((node, one.taken) for one in said if isinstance(one, Holding))
                    self.deliver()
            if ROOT in held and all(next(taken.beyond(held[ROOT]), None) is None for taken in held.values()):
                self.closing.remove(whose)
                self.tell(ROOT, Close(whose, self.time))

    def restart(self, node):
        """A worker's process is gone; the next incarnation joins."""
        member = self.kill(node)
        self.close(node, member.incarnation)
        if node not in self.members:
            self.start(node)

    def living(self):
        return [member for member in self.members.values() if not member.frozen]

    # -- what happens

    def tell(self, node, *events):
        member = self.members.get(node)
        if member is None or (member.frozen and not isinstance(events[0], Ending)):
            return ()
        return self.tell_member(member, *events)

    def tell_member(self, member, *events):
        node = member.group._node
        out = member.group.handle(*events)
        for said in out:
            self.perform(node, member, said)
        return out

    def perform(self, node, member, said):
        match said:
            case Send(to, parcel):
                content = parcels.encode(parcel, GROUP)
                self.parcels, self.nbytes = self.parcels + 1, self.nbytes + len(content)
                self.flight.append((to, content))
            case Apply(updates):
                assert not any(update.name in member.replica.clock for update in updates), "an update came twice"
                assert len({update.name for update in updates}) == len(updates)
                member.replica = member.replica.apply(updates)
                member.most = max(member.most, len(updates))
                member.rounds.append((member.replica.digest, member.replica.clock))
                member.may_go = True
            case Keep(updates):
                self.log += updates
                self.tell(node, Logged(member.group.clock, self.time))
            case KeepClosed(whose, taken):
                self.closed[whose] = taken
            case Look(to, has):
                self.looks += 1
                found = tuple(sent for sent in self.log if sent.name not in has)[:20]
                self.tell(node, Found(to, found, self.time))
            case Accuse(whose, reason):
                raise AssertionError(f"{whose} accused: {reason}")
            case Discard(reason):
                assert node >= 0, f"relay {node}: {reason}"
                if self.members.get(node) is member:
                    self.restart(node)
            case Leave():
                member.left = True

    def round(self, node):
        """A worker finishes a round, if it may."""
        member = self.members.get(node)
        if member is None or not member.may_go or member.frozen or member.group._done:
            return
        name = Name(node, member.incarnation, member.group.clock.taken.get((node, member.incarnation), Taken()).below)
        update = Update(name, (coordinates(name),))
        member.running += START.digest_of(update)
        seen = member.group.seen + 1
        member.replica, member.may_go = member.replica.apply([update]), False
        self.tell(node, Made(parcels.packed(update, "sign", seen, member.running), self.time), Ready(self.time))

    def finish(self, node):
        if node in self.members:
            self.tell(node, Done(self.time))

    def deliver(self, index=0):
        if self.flight:
            to, content = self.flight.pop(index % len(self.flight))
            self.tell(to, Arrived(parcels.decode(content, GROUP), self.time))

    def drop(self, index=0):
        if self.flight:
            self.flight.pop(index % len(self.flight))

    def repeat(self, index=0):
        if self.flight:
            self.flight.append(self.flight[index % len(self.flight)])

    def tick(self, seconds):
        self.time += seconds
        for node in list(self.members):
            self.tell(node, Tick(self.time))
        self.poll()

    def settle(self, rounds=12):
        """Nothing gets lost any more, nobody makes anything: all must come to the same."""
        for member in self.members.values():
            member.frozen = False
        for _ in range(rounds):
            self.tick(3.0)
            while self.flight:
                self.deliver()
        for node in [node for node in self.members if node >= 0]:
            self.tell(node, Ready(self.time))
            if self.limits.held_back:
                for _ in range(self.limits.held_back + 1):
                    self.tell(node, Ready(self.time))

    def check(self):
        """Equal clocks, equal bits, and each update that counts once; of who has ended, what it was closed with."""
        assert not self.closing
        for whose, taken in self.closed.items():
            assert all(m.group.clock.taken.get(whose, Taken()) == taken for m in self.members.values())
        clocks = {node: member.group.clock for node, member in self.members.items()}
        assert all(clock == clocks[ROOT] for clock in clocks.values())
        assert {sent.name for sent in self.log} == {
            Name(*whose, n) for whose, taken in clocks[ROOT].taken.items() for n in (*range(taken.below), *taken.early)
        }
        assert len(self.log) == len({sent.name for sent in self.log})
        workers = [member for node, member in self.members.items() if node >= 0]
        wanted = START.apply(map(read, self.log))
        for member in workers:
            assert member.replica.clock == clocks[ROOT]
            assert member.replica.digest == wanted.digest
            assert member.group.agrees(member.replica.clock, member.replica.digest) is not False
