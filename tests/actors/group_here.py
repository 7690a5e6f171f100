"""A group in one process: real memberships and relays in threads, parcels that get lost and come twice; for tests.

What is minimised is a quadratic of a few weights, whose gradients need no library; every worker has its own target.
"""

import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from actors.membership import Membership, Place, limits_of
from actors.relay import Relay, Setup, reader
from learners.group.alike import traits
from learners.group.events import Ending
from learners.layout import laid_out
from learners.rbd.defaults import filled
from learners.rbd.descent import Problem, descend
from learners.rbd.options import Exchange, Rbd
from learners.rbd.workers import Method, start

SIZE, SEED = 60, 11
TENSORS = laid_out([("kernel", 0, "kernel", (10, 5)), ("bias", 0, "rest", (10,))])
THETA_0 = np.linspace(-1, 1, SIZE).astype(np.float32)
TARGETS = np.random.default_rng(3).standard_normal((64, SIZE)).astype(np.float32)


def method_of(kind=Rbd, **options):
    """The method of a group of these options, filled."""
    return Method(filled(kind(**options), SIZE), TENSORS)


def problem_of(number, same=False):
    """Batch b of a worker pulls at one of its targets."""

    def gradient(theta, b):
        away = theta - TARGETS[(7 * (0 if same else number) + b) % len(TARGETS)]
        return float(away @ away), away

    return Problem(gradient, lambda theta, b: gradient(theta, b)[0])


class Wire:
    """What is sent is received, most of it, some of it twice."""

    def __init__(self, node, chance=None, loss=0.0):
        self.node, self.there, self.chance, self.loss = node, {}, chance or random.Random(1), loss

    def open(self, node, handle):
        self.there[node] = handle

    def send(self, node, content):
        times = 1 if self.loss == 0.0 else self.chance.choices([0, 1, 2], [self.loss, 1 - 2 * self.loss, self.loss])[0]
        for _ in range(times):
            self.there[node].receive.remote(content)
        return True


class Handle:
    """Stands for an actor's handle: calls go to the plain object, or nowhere once it is dead."""

    def __init__(self, target):
        self.target, self.dead = target, False

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: None if self.dead else getattr(self.target, name)(*arguments))


class Worker:
    """What `RbdWorker` is without data, network and Ray."""

    def __init__(self, group, number, incarnation):
        self.group, self.number, self.incarnation = group, number, incarnation
        method, self.stopped = group.method, False
        begun = replace(start(method, THETA_0, SEED, number), incarnation=incarnation)
        self.traits = traits(method, start(method, THETA_0, SEED, 0), SEED, {})
        read = reader(method.learner, TENSORS, SEED)
        self.membership = Membership(method, begun, read, self.traits, Wire(number, group.chance, group.loss))
        self.handle, self.worker, self.fault = Handle(self), begun, None
        self.rounds = []  #: digest of the weights at the begin of each round
        self.thread = threading.Thread(target=self._run, daemon=True)

    def receive(self, content):
        self.membership.member.receive(content)

    def snapshot(self, *arguments):
        self.membership.snapshot(*arguments)

    def _run(self):
        try:
            self.run()
        except Exception as error:
            self.fault = error

    def run(self):
        ours, method = self.membership, self.group.method
        problem = problem_of(self.number, method.learner.exchange.same_data)
        self.worker = ours.begin(self.place, lambda before: ours.relay.target.history(before))
        while self.worker.step < method.learner.steps and not self.stopped:
            self.worker = ours.before_round(self.worker, lambda: self.stopped)
            if self.stopped:
                return
            self.rounds.append(self.worker.shared.at(None).tobytes())
            count = method.batches(self.worker.shared.directions)
            first = self.worker.step // method.steps() * count
            done = descend(method, self.worker, problem, range(first, first + count))
            self.worker = ours.made(done.update, self.worker, done.worker)
            time.sleep(self.group.pause)
        self.worker = ours.end(self.worker, lambda: self.stopped)


class Here:
    """The supervisor, played."""

    def __init__(self, folder, method, workers, *, loss=0.0, pause=0.0, seed=1):
        self.folder, self.method, self.loss, self.pause = folder, method, loss, pause
        self.chance = random.Random(seed)
        self.sync = method.learner.exchange.mode == "sync"
        self.relay_incarnation, self.workers = -1, {}
        self.firsts = {}
        self.relay_starts()
        for number in range(workers):
            self.make(number, 0)
        for worker in self.workers.values():
            self.firsts[worker.number, 0] = 0
        for worker in self.workers.values():
            self.run(worker)

    def relay_starts(self):
        self.relay_incarnation += 1
        limits = limits_of(self.method.learner)
        setup = Setup(
            incarnation=self.relay_incarnation,
            folder=self.folder,
            options=self.method.learner,
            tensors=TENSORS,
            seed=SEED,
            limits=limits,
        )
        self.relay = Relay(setup, Wire(-1, self.chance, self.loss))
        self.handle = Handle(self.relay)
        self.relay_thread = threading.Thread(target=self.relay.run, daemon=True)
        self.relay_thread.start()
        for worker in self.workers.values():
            self.introduce(worker)
            worker.membership.open(self.relay_incarnation, self.handle)

    def relay_dies(self):
        """Without a word: its log is as it was written."""
        self.handle.dead = self.relay._stopped = True
        self.relay._member.receive(b"")  # wakes it
        self.relay_thread.join(5)
        for worker in self.workers.values():
            worker.membership.member.gone(-1)

    def make(self, number, incarnation):
        worker = Worker(self, number, incarnation)
        self.relay.join(worker.traits)
        self.workers[number] = worker

    def introduce(self, worker):
        self.relay.open(worker.number, worker.incarnation, worker.handle)
        if self.sync:
            self.relay.joined(worker.number, worker.incarnation, self.firsts[worker.number, worker.incarnation])

    def run(self, worker):
        firsts = tuple((*whose, first) for whose, first in self.firsts.items()) if self.sync else ()
        whose = (worker.number, worker.incarnation)
        worker.place = Place(self.relay_incarnation, self.handle, self.firsts.get(whose, 0), firsts)
        self.introduce(worker)
        worker.thread.start()

    def dies(self, number):
        """A worker's process is gone; what it has sent may still come. Closed at what the log has."""
        worker = self.workers[number]
        worker.handle.dead = worker.stopped = True
        worker.membership.member._ways.there.clear()
        worker.membership.member._ways.send = lambda *_: False
        worker.thread.join(10)
        self.relay.gone(number)
        self.close(number, worker.incarnation)
        self.make(number, worker.incarnation + 1)
        self.firsts[number, worker.incarnation + 1] = 0
        self.run(self.workers[number])

    def close(self, number, incarnation):
        for _ in range(2):  # as the supervisor asks: the log has what others have, since they have it from the relay
            self.relay.ending((number, incarnation))
            for other in self.workers.values():
                if other.number != number:
                    other.membership.member.note(_ending((number, incarnation)))
        self.relay.close((number, incarnation))

    def to_the_end(self, seconds=20):
        """Wait until all have everything; then nothing runs any more."""
        deadline = time.monotonic() + seconds
        while not all(worker.membership.left for worker in self.workers.values()):
            self.faultless(deadline)
        for whose in [(w.number, w.incarnation) for w in self.workers.values()]:
            self.relay.close(whose)
        clock = self.relay.beat()[1].clock
        for worker in self.workers.values():
            worker.membership.finish(clock)
        while any(worker.thread.is_alive() for worker in self.workers.values()):
            self.faultless(deadline)
        self.relay.stop()
        self.relay_thread.join(5)
        for worker in self.workers.values():
            assert worker.fault is None, worker.fault
        return clock

    def faultless(self, deadline):
        for worker in self.workers.values():
            assert worker.fault is None, worker.fault
        assert time.monotonic() < deadline, [
            (w.worker.step, w.membership.left, w.membership.member.group.clock) for w in self.workers.values()
        ]
        time.sleep(0.002)


def _ending(whose):
    return Ending(whose, 0.0)


def sync(**options):
    """Options of exchange of a synchronous group."""
    return Exchange(mode="sync", **options)
