"""Whatever gets lost, comes twice, dies or joins: all living replicas end with the same clock and the same bits."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learners import parcels
from learners.clocks import Name, Taken
from learners.group import Group, Limits
from learners.group_events import Accuse, Apply, Arrived, Discard, Found, Keep, Leave, Look, Made, Opened, Ready, Tick
from learners.parcels import Holds, Parcel, Sent

sys.path.insert(0, str(Path(__file__).parent))
from group_world import FAR, ROOT, START, World, coordinates, read  # noqa: E402

sys.path.pop(0)

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
    st.tuples(st.sampled_from(["restart", "restart unheard", "join", "leave", "freeze", "expel"]), st.integers(0, 5)),
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
        case "restart unheard" if there:  # the closing reaches the root alone, and goes on from there
            world.restart(n, misses=[node for node in world.members if node != ROOT])
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
        assert len(member.group._store) <= 3 and member.group.waiting <= 6
        for peer in member.group._peers.values():
            assert len(peer.sent) <= 8
