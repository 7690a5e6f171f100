"""Whatever gets lost, comes twice, dies or joins: all living replicas end with the same clock and the same bits."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learners.group import parcels
from learners.group.events import (
    Accuse,
    Apply,
    Arrived,
    Discard,
    Done,
    Found,
    Keep,
    Leave,
    Logged,
    Look,
    Made,
    Opened,
    Ready,
    Tick,
)
from learners.group.parcels import Holds, Parcel, Sent
from learners.group.rules import Group, Limits
from learners.rbd.clocks import Name, Taken

spec = importlib.util.spec_from_file_location("group_world", Path(__file__).with_name("group_world.py"))
group_world = importlib.util.module_from_spec(spec)
spec.loader.exec_module(group_world)
FAR, ROOT, START, World = group_world.FAR, group_world.ROOT, group_world.START, group_world.World
coordinates, read = group_world.coordinates, group_world.read

slow = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
numbers = st.integers(0, 40)
moves = st.one_of(
    st.tuples(st.just("round"), st.integers(0, 5)),
    st.tuples(st.just("round"), st.integers(0, 5)),
    st.tuples(st.just("deliver"), numbers),
    st.tuples(st.just("deliver"), numbers),
    st.tuples(st.just("drop"), numbers),
    st.tuples(st.just("repeat"), numbers),
    st.tuples(st.just("tick"), st.sampled_from([0.01, 0.7, 2.5])),
    st.tuples(st.sampled_from(["restart", "join", "leave", "freeze", "expel"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["restart relay", "restart root"]), st.just(0)),
)


def act(world, what, n):
    there = n in world.members
    match what:
        case "round":
            world.round(n)
        case "deliver" | "drop" | "repeat" | "tick":
            getattr(world, what)(n)
        case "restart" if there:
            world.restart(n)
        case "join" if not there:
            world.start(n)
        case "leave" if there and len(world.members) > 4:
            world.close(n, world.kill(n).incarnation)
        case "freeze" if there:
            world.members[n].frozen = True
        case "expel" if there and world.members[n].frozen:
            # it is taken for dead, and closed; then it wakes, goes on as if nothing were, and must find out
            member = world.members[n]
            world.close(n, member.incarnation)
            member.frozen = False
            world.round(n)
        case "restart relay":
            world.kill(FAR)
            world.start(FAR)
        case "restart root":
            world.kill(ROOT)
            world.start(ROOT)


@given(st.lists(moves, max_size=60), st.booleans())
@slow
def test_all_end_with_equal_clocks_and_bits_and_each_update_once(events, cycle):
    world = World(4, extra_edges=[(0, 3)] if cycle else ())
    for what, n in events:
        act(world, what, n)
    world.settle()
    world.check()


@given(st.lists(moves, max_size=60))
@slow
def test_the_same_with_next_to_no_memory_and_the_log(events):
    """A store of three updates: what it lacks must come from the log."""
    world = World(4, Limits(memory=70, parcel=50, window=8, waiting=6, hold=0.05))
    for what, n in events:
        act(world, what, n)
    world.settle(60)
    world.check()
    for member in world.members.values():
        assert len(member.group._store) <= 4 and member.group.waiting <= 6
        for peer in member.group._peers.values():
            assert len(peer.sent) <= 8


def alone(node=0, incarnation=0, limits=None, **more):
    return Group(node, incarnation, read, limits or Limits(), **more)


def sent(sender, sequence, incarnation=0, running=0, seen=0):
    name = Name(sender, incarnation, sequence)
    return parcels.packed(group_world.Update(name, (coordinates(name),)), "sign", seen, running)


def only(kind, instructions):
    return [said for said in instructions if isinstance(said, kind)]


def updates(instructions):
    return [one.name for said in only(group_world.Send, instructions) for one in said.parcel.updates]


# ---------------------------------------------------------------- a synchronous group


@given(st.lists(st.one_of(st.tuples(st.just("round"), st.integers(0, 2)), st.tuples(st.just("deliver"), numbers))))
@slow
def test_in_a_synchronous_group_all_begin_each_round_with_the_same_bits(events):
    world = World(3, Limits(sync=True))
    for what, n in events:
        act(world, what, n)
    for _ in range(4):
        for node in range(3):
            world.round(node)
        while world.flight:
            world.deliver()
        world.tick(0.01)
    rounds = [member.rounds for node, member in world.members.items() if node >= 0]
    assert all(found == rounds[0] for found in rounds) and len(rounds[0]) >= 4
    for number, (_, clock) in enumerate(rounds[0]):  # none early, none late
        assert set(clock.taken.values()) == ({Taken(number)} if number else set())


def test_a_synchronous_group_waits_for_the_living_only_and_takes_in_who_joins():
    world = World(3, Limits(sync=True))

    def round_of(*nodes):
        for node in nodes:
            world.round(node)
        world.tick(3.0)
        while world.flight:
            world.deliver()
        return {node: len(m.rounds) for node, m in world.members.items() if node >= 0}

    assert round_of(0, 1, 2) == {0: 2, 1: 2, 2: 2}
    assert round_of(0, 1) == {0: 2, 1: 2, 2: 2}  # worker 2 is missing
    world.close(2, world.kill(2).incarnation)
    assert round_of() == {0: 3, 1: 3}
    assert round_of(0, 1) == {0: 4, 1: 4}
    world.start(2)
    assert round_of(0, 1) == {0: 5, 1: 5, 2: 1}  # it begins with a round that nobody had begun
    assert round_of(0, 1) == {0: 5, 1: 5, 2: 1}
    assert round_of(2) == {0: 6, 1: 6, 2: 2}
    found = [m.rounds[-1] for n, m in world.members.items() if n >= 0]
    assert len({digest for digest, _ in found}) == 1
    world.settle()
    world.check()


def test_an_update_of_the_next_round_waits_for_that_round():
    worker = alone(limits=Limits(sync=True))
    worker.handle(*(group_world.Joined(n, 0, 0, 0.0) for n in range(3)), Opened(ROOT, 0, 0.0), Ready(0.0))
    worker.handle(Made(sent(0, 0), 0.1))
    out = worker.handle(Arrived(Parcel(ROOT, 0, (sent(1, 0), sent(1, 1))), 0.2), Ready(0.2))  # 1 has heard of 2
    assert not only(Apply, out)
    (apply,) = only(Apply, worker.handle(Arrived(Parcel(ROOT, 0, (sent(2, 0),)), 0.3)))
    assert {update.name for update in apply.updates} == {Name(1, 0, 0), Name(2, 0, 0)} and worker.waiting == 1


# ---------------------------------------------------------------- cost


@pytest.mark.parametrize("hosts", [1, 2])
def test_messages_grow_with_the_workers_and_not_with_their_square(hosts):
    found = {}
    for workers in (2, 4, 8, 16):
        world = World(workers, Limits(hold=0.008, beat=1.0), hosts=hosts)
        rounds = 50
        for _ in range(rounds):  # of 10 ms; relays send what has come together
            for node in range(workers):
                world.round(node)
            for _ in range(4):
                for _ in range(len(world.flight)):
                    world.deliver()
                world.tick(0.0025)
        found[workers] = world.parcels / (rounds * workers)
    assert max(found.values()) < 2.1 + (hosts - 1)
    assert found[16] < found[2] + 0.1


def test_what_comes_within_the_hold_goes_in_one_parcel():
    relay = alone(ROOT, limits=Limits(hold=1.0))
    relay.handle(Opened(0, 0, 0.0), Opened(1, 0, 0.0))
    out = [relay.handle(Arrived(Parcel(0, 0, (sent(0, n),)), 0.1 * (n + 1))) for n in range(5)]
    assert not any(updates(said) for said in out)
    assert out[-1][-1].until == pytest.approx(1.0)
    assert updates(relay.handle(Tick(1.0))) == [Name(0, 0, n) for n in range(5)]  # to worker 1, and not back to 0


def test_a_large_outbox_leaves_in_several_parcels():
    size = sent(0, 0).nbytes
    worker = alone(limits=Limits(parcel=3 * size))
    for n in range(8):
        worker.handle(Made(sent(0, n), 0.0))
    worker.handle(Opened(ROOT, 0, 0.0))
    out = worker.handle(Arrived(Parcel(ROOT, 0, (), Holds(group_world.Clock())), 0.0))
    sizes = [len(updates(out))]
    while len(updates(out := worker.handle(Tick(out[-1].until)))) and len(sizes) < 9:
        sizes.append(len(updates(out)))
    assert sizes == [3, 3, 2]


def test_a_frozen_neighbour_gets_no_more_than_a_window():
    worker = alone(limits=Limits(window=4))
    worker.handle(Opened(ROOT, 0, 0.0))
    out = [name for n in range(20) for name in updates(worker.handle(Made(sent(0, n), 0.001 * n)))]
    assert len(out) == 4
    clock = group_world.Clock().add(Name(0, 0, n) for n in range(4))
    out = worker.handle(Arrived(Parcel(ROOT, 0, (), Holds(clock)), 0.1))
    assert updates(out) == [Name(0, 0, n) for n in range(4, 8)]


# ---------------------------------------------------------------- one by one


def test_an_update_that_no_member_makes_is_refused_and_its_sender_accused_once():
    worker = alone()
    worker.handle(Opened(1, 0, 0.0))
    bad = [Sent(Name(1, 0, n), 0, 0, b"\x00") for n in range(2)]
    out = worker.handle(Arrived(Parcel(1, 0, tuple(bad)), 0.1))
    (accuse,) = only(Accuse, out)
    assert accuse.whose == (1, 0) and "bytes came" in accuse.reason
    assert worker.counts["refused contents"] == 2 and worker.clock == group_world.Clock()


@pytest.mark.parametrize(
    ("parcel", "reason"),
    [
        (Parcel(5, 0, (sent(5, 0),)), "unknown neighbour"),
        (Parcel(1, 1, (sent(0, 0),)), "own name"),
        (Parcel(1, 1, (sent(1, 50),)), "far ahead"),
        (Parcel(1, 1, (sent(2, 3),)), "closed incarnation"),
        (Parcel(1, 1, (sent(3, 0),)), "ending incarnation"),
    ],
)
def test_what_is_not_taken_is_counted(parcel, reason):
    worker = alone(limits=Limits(window=50))
    worker.handle(Opened(1, 1, 0.0), group_world.Ending((3, 0), 0.0))
    worker.handle(Arrived(Parcel(1, 1, (), Holds(group_world.Clock(), {(2, 0): Taken(2)})), 0.0))
    worker.handle(Arrived(parcel, 0.1))
    assert worker.counts[f"refused {reason}"] == 1 and not worker.waiting


def test_updates_in_parcels_of_a_former_incarnation_count_and_its_clock_does_not():
    relay = alone(ROOT)
    relay.handle(Opened(FAR, 1, 0.0), Opened(0, 0, 0.0), Arrived(Parcel(0, 0, (sent(0, 0),)), 0.0))
    clock = group_world.Clock().add([Name(0, 0, 0), Name(1, 0, 0)])
    out = relay.handle(Arrived(Parcel(FAR, 0, (sent(1, 0),), Holds(clock)), 5.0))
    assert relay.clock == clock and Name(1, 0, 0) in updates(out)
    assert Name(1, 0, 0) in relay._peers[FAR].sent  # the new incarnation may lack it


def test_the_log_closes_an_incarnation_at_what_it_has_and_all_hear_of_it():
    root, relay = alone(ROOT, logs=True), alone(FAR)
    root.handle(Opened(FAR, 0, 0.0))
    relay.handle(Opened(ROOT, 0, 0.0))
    root.handle(group_world.Ending((1, 0), 0.0))
    root.handle(Arrived(Parcel(FAR, 0, (sent(1, 0),)), 0.1))  # the log still takes what others hold
    out = root.handle(group_world.Close((1, 0), 0.2))
    assert only(group_world.KeepClosed, out)[0].taken == Taken(1)
    (send,) = only(group_world.Send, out)
    relay.handle(Arrived(send.parcel, 0.3))
    assert relay.holds.closed == {(1, 0): Taken(1)}
    root.handle(Arrived(Parcel(FAR, 0, (sent(1, 1),)), 0.4))
    assert root.counts["refused closed incarnation"] == 1


@pytest.mark.parametrize(
    ("closed", "reason"),
    [
        ({(1, 0): Taken(1)}, "incarnation 0 of worker 1 was closed without updates that are applied here"),
        ({(0, 0): Taken(1)}, "this incarnation was closed while it went on"),
        ({(0, 0): Taken(0)}, "incarnation 0 of worker 0 was closed without updates that are applied here"),
    ],
)
def test_who_slept_through_a_closing_discards_its_state(closed, reason):
    worker = alone()
    worker.handle(Opened(1, 0, 0.0), Made(sent(0, 0), 0.0), Arrived(Parcel(1, 0, (sent(1, 0), sent(1, 1))), 0.1))
    out = worker.handle(Arrived(Parcel(1, 0, (), Holds(group_world.Clock(), closed)), 9.0))
    assert out == (Discard(reason),) == worker.handle(Tick(9.1))


def test_who_has_left_may_be_closed_at_what_it_made():
    worker = alone()
    worker.handle(Opened(1, 0, 0.0), Made(sent(0, 0), 0.0), group_world.Done(0.1))
    worker.handle(Arrived(Parcel(1, 0, (), Holds(group_world.Clock(), {(0, 0): Taken(1)})), 0.2))
    assert not only(Discard, worker.handle(Tick(0.3)))


def test_a_neighbour_that_has_forgotten_all_gets_all_at_once():
    worker = alone()
    worker.handle(Opened(ROOT, 0, 0.0), *(Made(sent(0, n), 0.0) for n in range(3)))
    out = worker.handle(Arrived(Parcel(ROOT, 1, (), Holds(group_world.Clock())), 0.1))  # before any patience has passed
    assert updates(out) == [Name(0, 0, n) for n in range(3)]


def test_messages_can_be_held_back_by_rounds_and_max_staleness_bounds_how_many():
    worker = alone(limits=Limits(held_back=3, max_staleness=5))
    worker.handle(Opened(1, 0, 0.0))
    applied = []
    for n in range(8):
        worker.handle(Arrived(Parcel(1, 0, (sent(1, n, seen=n + 1),)), 0.1 * n))
        (apply,) = only(Apply, worker.handle(Ready(0.1 * n)))
        applied.append([update.name.sequence for update in apply.updates])
    assert applied == [[], [], [], [0], [1], [2], [3], [4]]
    for n in range(8, 20):
        worker.handle(Arrived(Parcel(1, 0, (sent(1, n),)), 1.0))
    (apply,) = only(Apply, worker.handle(Ready(1.0)))
    assert [update.name.sequence for update in apply.updates] == list(range(5, 15)) and worker.waiting == 5


def test_staleness_is_what_was_applied_here_and_not_known_there():
    worker = alone()
    worker.handle(Opened(1, 0, 0.0), *(Made(sent(0, n), 0.0) for n in range(4)))
    worker.handle(Arrived(Parcel(1, 0, (sent(1, 0, seen=1), sent(1, 1, seen=4))), 0.1))
    (apply,) = only(Apply, worker.handle(Ready(0.1)))
    assert apply.staleness == (3, 0)


def test_who_is_done_leaves_when_the_log_has_all():
    worker = alone()
    worker.handle(Opened(ROOT, 0, 0.0), Made(sent(0, 0), 0.0))
    assert not only(Leave, worker.handle(group_world.Done(0.1)))
    clock = group_world.Clock().add([Name(0, 0, 0)])
    assert not only(Leave, worker.handle(Arrived(Parcel(ROOT, 0, (), Holds(clock)), 0.2)))
    assert only(Leave, worker.handle(Arrived(Parcel(ROOT, 0, (), Holds(clock, {}, clock)), 0.2)))
    assert not only(Leave, worker.handle(Tick(0.3)))


def test_only_what_the_log_has_is_forgotten_and_who_has_no_room_takes_no_more():
    relay = alone(FAR, limits=Limits(memory=3 * sent(0, 0).nbytes))
    relay.handle(Opened(0, 0, 0.0))
    for n in range(6):
        relay.handle(Arrived(Parcel(0, 0, (sent(0, n),)), 0.1 * n))
    assert relay.clock.count == 4 and relay.counts["refused no room"] == 2
    logged = group_world.Clock().add(Name(0, 0, n) for n in range(3))
    relay.handle(Opened(ROOT, 0, 1.0), Arrived(Parcel(ROOT, 0, (), Holds(logged, {}, logged)), 1.0))
    relay.handle(Arrived(Parcel(0, 0, (sent(0, 4), sent(0, 5))), 1.1))
    assert relay.clock.count == 6 and len(relay._store) <= 4


def test_a_worker_whose_updates_the_log_does_not_get_rejoins_when_it_has_no_room():
    worker = alone(limits=Limits(memory=3 * sent(0, 0).nbytes))
    out = [worker.handle(Made(sent(0, n), 0.0)) for n in range(4)]
    assert not any(only(Discard, said) for said in out[:3])
    (discard,) = out[3]
    assert "no room for more" in discard.reason


def test_a_lost_or_doubled_update_shows_in_the_sums():
    running, made = 0, []
    for n in range(6):
        one = sent(1, n)
        running += START.digest_of(read(one))
        made.append(one._replace(running=running & 0xFFFFFFFF))
    worker = alone()
    worker.handle(Opened(1, 0, 0.0), Arrived(Parcel(1, 0, tuple(made)), 0.1), Ready(0.1))
    good = START.apply(map(read, made))
    assert worker.agrees(good.clock, good.digest) is True
    lost = START.apply(map(read, made[:-1]))
    assert worker.agrees(good.clock, lost.digest) is False
    assert worker.agrees(lost.clock, lost.digest) is None


def test_the_log_is_told_before_anything_leaves_and_looked_into_for_what_is_forgotten():
    root = alone(ROOT, limits=Limits(memory=2 * sent(0, 0).nbytes), logs=True)
    root.handle(Opened(0, 0, 0.0), Opened(1, 0, 0.0))
    out = root.handle(Arrived(Parcel(0, 0, tuple(sent(0, n) for n in range(5))), 0.1))
    (keep,) = only(Keep, out)
    assert [one.name.sequence for one in keep.updates] == [0, 1, 2] and out[0] is keep  # there is no room
    root.handle(Logged(root.clock, 0.1))
    (keep,) = only(Keep, root.handle(Arrived(Parcel(0, 0, tuple(sent(0, n) for n in range(5))), 0.1)))
    assert [one.name.sequence for one in keep.updates] == [3, 4]
    root.handle(Opened(2, 0, 0.2))
    out = root.handle(Arrived(Parcel(2, 0, (), Holds(group_world.Clock())), 10.0))
    (look,) = only(Look, out)
    out = root.handle(Found(look.to, tuple(sent(0, n) for n in range(3)), 10.1))
    assert updates(out) == [Name(0, 0, 0), Name(0, 0, 1)]  # 2 is on its way


def test_who_has_ended_in_a_synchronous_group_takes_rounds_that_it_does_not_begin():
    """A worker that has come back does its last round after the others have ended."""
    worker = Group(0, 0, read, Limits(sync=True))
    worker.handle(*(group_world.Joined(n, n, n, 0.0) for n in range(2)), Opened(ROOT, 0, 0.0), Ready(0.0))
    worker.handle(Made(sent(0, 0), 0.1), Ready(0.1))  # its only round, of number 0
    late = sent(1, 0, incarnation=1)  # of round 1
    worker.handle(Arrived(Parcel(ROOT, 0, (late,)), 0.2), Ready(0.2))
    assert worker.waiting == 1
    (apply,) = only(Apply, worker.handle(Done(0.3), Ready(0.3)))
    assert [update.name for update in apply.updates] == [late.name] and worker.waiting == 0
