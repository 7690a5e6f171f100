"""The relay of a group, as a plain class: what it writes down, and what it says when its disk refuses."""

import errno
import importlib.util
import sys
import threading
from pathlib import Path

import pytest

from actors import log
from actors.member import RELAY
from actors.membership import limits_of
from actors.relay import Relay, Setup
from learners.group import parcels
from learners.group.alike import group_digest
from learners.group.parcels import Holds, Parcel
from learners.rbd.clocks import Clock, Name
from learners.rbd.coordinates import quantise
from learners.rbd.options import Basis, Step
from learners.rbd.replica import Update

spec = importlib.util.spec_from_file_location("group_here", Path(__file__).with_name("group_here.py"))
group_here = importlib.util.module_from_spec(spec)
sys.modules["group_here"] = group_here  # where its dataclasses look themselves up
spec.loader.exec_module(group_here)

METHOD = group_here.method_of(replicas=2, steps=100, basis=Basis(dimensions=16), update=Step(rate=0.01, weight=1.0))
TRAITS = {"seed": "11"}


class Ways:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def open(self, node, handle):
        pass

    def send(self, node, content):
        self.sent.append((node, parcels.decode(content, group_digest(TRAITS))))
        return True


class Time:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def made(tmp_path):
    """A relay that two workers have joined, its ways, and the time."""

    def make(incarnation=0):
        ways, clock = Ways(), Time()
        limits = limits_of(METHOD.learner)
        about = {"options": METHOD.learner, "tensors": group_here.TENSORS, "seed": group_here.SEED, "limits": limits}
        relay = Relay(Setup(incarnation=incarnation, folder=tmp_path, **about), ways, clock)
        relay.join(TRAITS)
        for node in (0, 1):
            relay.open(node, 0, None)
        relay.turn()
        ways.sent.clear()
        return relay, ways, clock

    return make


def update(sequence, sender=0, values=None):
    part = quantise(values if values is not None else group_here.TARGETS[sequence][:16] * 1e-3, "sign", -26)
    return parcels.packed(Update(Name(sender, 0, sequence), (part,)), "sign", 1 + sequence, 77)


def arrives(relay, *updates, holds=None):
    parcel = Parcel(updates[0].name.sender if updates else 0, 0, updates, holds)
    relay.receive(parcels.encode(parcel, group_digest(TRAITS)))


def in_log(folder):
    entries = log.entries(folder / log.NAME)
    return [sent.name.sequence for entry in entries if isinstance(entry, tuple) for sent in entry]


def test_what_comes_is_written_down_first_and_passed_on_to_all_others(made, tmp_path):
    relay, ways, clock = made()
    clock.now = 1.0
    arrives(relay, update(0), update(1))
    relay.turn()
    assert in_log(tmp_path) == [0, 1]
    given = {node: [sent.name.sequence for sent in parcel.updates] for node, parcel in ways.sent if parcel.updates}
    assert given == {1: [0, 1]}


def test_nothing_leaves_while_the_disk_refuses_and_everything_does_when_it_takes_it_again(made, tmp_path, monkeypatch):
    relay, ways, clock = made()
    clock.now, tried = 1.0, threading.Event()

    def full(*_):
        tried.set()
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("actors.relay.AGAIN_SECONDS", 0.01)
    with monkeypatch.context() as disk:
        disk.setattr(log.os, "pwrite", full)
        arrives(relay, update(0))
        turning = threading.Thread(target=relay.turn)
        turning.start()
        assert tried.wait(5)
        while not relay.beat()[1].fault:
            pass
        assert "no room" in relay.beat()[1].fault and relay.beat()[0] == 0.0  # it has not hung
        assert not [parcel for _, parcel in ways.sent if parcel.updates]
    turning.join(5)
    assert relay.beat()[1].fault == "" and in_log(tmp_path) == [0]
    assert [node for node, parcel in ways.sent if parcel.updates] == [1]


def test_another_one_begins_with_the_log_and_fills_gaps_from_it(made, tmp_path):
    relay, _, clock = made()
    clock.now = 1.0
    arrives(relay, *(update(i) for i in range(5)))
    relay.turn()
    relay.mark(0, Clock().add([Name(0, 0, 0)]), 5)
    relay.turn()
    relay.ending((0, 0))
    relay.close((0, 0))
    relay.turn()
    assert relay.open_ends() == ()
    relay.stop()
    relay.run()
    relay, ways, clock = made(1)
    assert relay.beat()[1].clock.count == 5 and relay.open_ends() == ()
    clock.now = 9.0
    parcel = Parcel(1, 0, (), Holds(Clock().add([Name(0, 0, 0), Name(0, 0, 2)])))  # it lacks some
    relay.receive(parcels.encode(parcel, group_digest(TRAITS)))
    relay.turn()
    clock.now = 9.1
    relay.turn()
    (given,) = [parcel.updates for node, parcel in ways.sent if node == 1 and parcel.updates]
    assert [sent.name.sequence for sent in given] == [1, 3, 4]
    assert all(parcel.node == RELAY and parcel.incarnation == 1 for _, parcel in ways.sent)


def test_what_no_worker_sends_is_not_written_down_and_its_sender_is_named(made, tmp_path):
    relay, _, clock = made()
    clock.now = 1.0
    bad = update(0)._replace(payload=b"\x00" * 4)
    arrives(relay, bad)
    relay.receive(b"nonsense")
    relay.turn()
    ((whose, why),) = relay.beat()[1].accused
    assert whose == (0, 0) and "4 bytes came" in why and in_log(tmp_path) == []


def test_a_log_whose_header_is_cut_is_put_aside(made, tmp_path):
    (tmp_path / log.NAME).write_bytes(b"\x01\x02")
    relay, _, clock = made()
    clock.now = 1.0
    arrives(relay, update(0))
    relay.turn()
    assert in_log(tmp_path) == [0] and list(tmp_path.glob("damaged-*"))
