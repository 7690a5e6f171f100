"""Workers and their relay, without Ray: whatever gets lost or dies, all end with the same bits, which the log has."""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from actors import log
from actors.membership import digest_of
from actors.relay import reader
from learners.group.replay import Replay
from learners.rbd.descent import descend
from learners.rbd.options import Basis, Coordinates, Exchange, Group, Local, Rbd, Sgd, Step
from learners.rbd.replica import Replica
from learners.rbd.workers import start

spec = importlib.util.spec_from_file_location("group_here", Path(__file__).with_name("group_here.py"))
group_here = importlib.util.module_from_spec(spec)
sys.modules["group_here"] = group_here  # where its dataclasses look themselves up
spec.loader.exec_module(group_here)
SEED, TENSORS, THETA_0, Here = group_here.SEED, group_here.TENSORS, group_here.THETA_0, group_here.Here
method_of, problem_of, sync = group_here.method_of, group_here.problem_of, group_here.sync


def options(steps=200, **more):
    return {"steps": steps, "basis": Basis(dimensions=16), "update": Step(rate=0.01, weight=1.0), **more}


def logged(folder):
    """Every update in the log, in its order."""
    return [sent for entry in log.entries(folder / log.NAME) if isinstance(entry, tuple) for sent in entry]


def agreed(here, folder, clock):
    """All workers have the bits that the log comes to; each update is in it once."""
    names = [sent.name for sent in logged(folder)]
    assert len(names) == len(set(names)) == clock.count
    workers = [worker.worker for worker in here.workers.values()]
    assert all(worker.shared.clock == clock for worker in workers)
    digests = {digest_of(worker.shared) for worker in workers}
    assert len(digests) == 1
    if isinstance(workers[0].shared, Replica):
        begun = start(here.method, THETA_0, SEED).shared
        replay = Replay(begun, reader(here.method.learner, TENSORS, SEED))
        replay.take(log.entries(folder / log.NAME))
        done = replay.done()
        assert {done.replica.digest} == digests and done.replica.clock == clock
        assert done.marks >= len(workers)  # of the ends at least


@pytest.mark.parametrize("loss", [0.0, 0.2], ids=["all arrives", "a fifth is lost and a fifth comes twice"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_end_with_the_same_bits(tmp_path, workers, loss):
    here = Here(tmp_path, method_of(replicas=workers, **options()), workers, loss=loss)
    clock = here.to_the_end()
    assert clock.count == 20 * workers
    agreed(here, tmp_path, clock)


def test_what_is_held_back_is_applied_in_the_end_all_the_same(tmp_path):
    held = options(200, exchange=Exchange(held_back=4, max_staleness=64))
    here = Here(tmp_path, method_of(replicas=2, **held), 2, pause=0.001)
    agreed(here, tmp_path, here.to_the_end())


def test_a_relay_that_dies_has_a_successor_and_nothing_is_lost(tmp_path):
    here = Here(tmp_path, method_of(replicas=2, **options(1000)), 2, pause=0.002)
    for reached in (20, 50):
        wait(lambda n=reached: here.workers[0].worker.sequence > n)
        here.relay_dies()
        before = here.workers[1].worker.sequence
        wait(lambda n=before: here.workers[1].worker.sequence > n + 5)  # its workers train on
        here.relay_starts()
    agreed(here, tmp_path, here.to_the_end())
    assert here.relay_incarnation == 2


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_workers_that_die_come_back_with_what_the_log_has_while_others_go_on(tmp_path, loss):
    here = Here(tmp_path, method_of(replicas=3, **options(1000)), 3, pause=0.002, loss=loss)
    for number, at in ((0, 20), (1, 40), (0, 60)):
        wait(lambda n=at: here.workers[2].worker.sequence > n)
        here.dies(number)
    clock = here.to_the_end()
    agreed(here, tmp_path, clock)
    per_worker = [sum(t.below for whose, t in clock.taken.items() if whose[0] == k) for k in range(3)]
    assert per_worker == [100, 100, 100]  # steps that the log has not are done again, those that it has are not


def test_who_returns_begins_with_a_snapshot_and_the_tail(tmp_path, monkeypatch):
    monkeypatch.setattr("actors.relay.SNAPSHOT_UPDATES", 40)
    here = Here(tmp_path, method_of(replicas=2, **options(1000)), 2, pause=0.002)
    wait(lambda: len(list(tmp_path.glob("snapshot-*"))) > 1)
    found = here.relay.history()
    assert found.snapshot and found.start > 0 and len(found.log) < here.relay._log.end
    assert here.relay.history(found.start).start < found.start
    newest = max(tmp_path.glob("snapshot-*"))
    here.dies(1)
    newest.write_bytes(b"nonsense")  # a damaged one is passed over
    here.dies(0)
    agreed(here, tmp_path, here.to_the_end())


def test_unlike_workers_are_refused_in_words(tmp_path):
    here = Here(tmp_path, method_of(replicas=1, **options()), 1)
    other = {**here.workers[0].traits, "seed": "8"}
    with pytest.raises(ValueError, match="not like the others of its group: seed: 8 came, 11 was wanted"):
        here.relay.join(other)
    here.to_the_end()


def serial(method, steps):
    """The worker after so many steps, alone; and where it stood at the begin of each round."""
    worker, stood = start(method, THETA_0, SEED), []
    while worker.step < steps:
        stood.append(worker.shared.at(None).tobytes())
        count = method.batches(worker.shared.directions)
        first = worker.step // method.steps() * count
        worker = descend(method, worker, problem_of(0), range(first, first + count)).worker
    return worker, stood


KINDS = {
    "rounds": (Rbd, {}),
    "plain": (Rbd, {"exchange": sync(residual="none")}),
    "continuous": (Rbd, {"exchange": sync(residual="none"), "coordinates": Coordinates(continuous=5, reset=5)}),
    "momentum": (Rbd, {"update": Step(rate=0.01, weight=1.0, momentum=0.5, nesterov=True)}),
    "local": (Local, {"exchange": sync(every=5), "basis": None}),
    "diloco": (
        Local,
        {"exchange": sync(every=5), "update": Step(rate=0.01, momentum=0.9, nesterov=True), "basis": None},
    ),
    "sgd": (Sgd, {"exchange": None, "basis": None}),
}


def of_kind(name, workers, steps=100):
    kind, more = KINDS[name]
    given = {**options(steps), "exchange": sync(), **more, "replicas": workers}
    if kind is Sgd:
        given["exchange"] = Group(mode="sync")
    return method_of(kind, **{key: value for key, value in given.items() if value is not None})


@pytest.mark.parametrize("name", KINDS)
def test_one_synchronous_worker_is_the_serial_method_bit_for_bit(tmp_path, name):
    method = of_kind(name, 1)
    here = Here(tmp_path, method, 1)
    here.to_the_end()
    wanted, stood = serial(method, 100)
    found = here.workers[0].worker
    assert np.array_equal(found.shared.theta, wanted.shared.theta) and here.workers[0].rounds == stood
    assert (found.step, found.sequence) == (wanted.step, wanted.sequence)
    assert digest_of(found.shared) == digest_of(wanted.shared)


@pytest.mark.parametrize("name, loss", [*((name, 0.0) for name in KINDS), ("rounds", 0.1), ("momentum", 0.1)])
def test_synchronous_workers_begin_every_round_with_the_same_bits(tmp_path, name, loss):
    here = Here(tmp_path, of_kind(name, 3, 40), 3, loss=loss)
    agreed(here, tmp_path, here.to_the_end(60))
    rounds = [worker.rounds for worker in here.workers.values()]
    assert rounds[0] == rounds[1] == rounds[2] and len(set(rounds[0])) == len(rounds[0])


def wait(what, seconds=20):
    """Until it is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)
