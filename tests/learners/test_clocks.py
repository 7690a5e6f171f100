"""A clock is a set of updates, and says so in few numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.rbd.clocks import Clock, Name

names = st.builds(Name, st.integers(0, 3), st.integers(0, 2), st.integers(0, 12))
sets = st.lists(names, unique=True, max_size=40)


@given(sets)
def test_a_clock_is_the_set_whatever_the_order(updates):
    clock = Clock().add(updates)
    assert clock == Clock().add(sorted(updates)) == Clock().add(sorted(updates, reverse=True))
    inside = {Name(s, i, n) for s in range(4) for i in range(3) for n in range(14) if Name(s, i, n) in clock}
    assert inside == set(updates) and clock.count == len(updates)


@given(sets)
def test_gaps_are_what_is_missing_below_what_is_there(updates):
    for (sender, incarnation), missing in Clock().add(updates).gaps.items():
        there = {name.sequence for name in updates if name[:2] == (sender, incarnation)}
        assert missing and set(missing) == set(range(max(there))) - there


@given(sets, sets)
def test_beyond_another_is_the_difference_of_the_sets(mine, theirs):
    assert set(Clock().add(mine).beyond(Clock().add(theirs))) == set(mine) - set(theirs)


@given(sets)
def test_a_clock_comes_back_from_its_array(updates):
    clock = Clock().add(updates)
    assert Clock.restored(clock.save()) == clock


@given(st.integers(1, 200))
def test_what_is_complete_takes_one_row(count):
    assert Clock().add(Name(0, 1, n) for n in range(count)).save().tolist() == [[0, 1, count, 0]]


def test_nothing_is_taken_twice():
    clock = Clock().add([Name(0, 0, 0)])
    with pytest.raises(AssertionError, match="twice"):
        clock.add([Name(0, 0, 0)])
    assert Name(0, 1, 0) not in clock
