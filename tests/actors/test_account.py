"""Where a learner's time goes: nothing is left out, nothing counted twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.account import HEADINGS, ROUND, Account, timed
from learners.bases import Basis
from learners.rbd.clocks import Name
from learners.rbd.compartments import Compartment
from learners.rbd.directions import Drawn, Whole

BOOKINGS = st.lists(st.tuples(st.sampled_from(HEADINGS), st.floats(0.0, 1.0), st.floats(0.0, 9.0)))


@given(bookings=BOOKINGS)
def test_the_headings_add_up_to_all_the_time_that_has_passed(bookings):
    with pytest.MonkeyPatch.context() as patch:
        now = [5.0]
        patch.setattr("actors.account.time.perf_counter", lambda: now[0])
        account = Account()
        for heading, evaluation, seconds in bookings:
            now[0] += seconds
            account.book(heading, evaluation=evaluation)
    assert sum(account.seconds.values()) == pytest.approx(now[0] - 5.0)
    assert min(account.seconds.values()) >= 0.0


def test_what_served_an_evaluation_is_booked_there(monkeypatch):
    moments = iter([0.0, 4.0])
    monkeypatch.setattr("actors.account.time.perf_counter", lambda: next(moments))
    account = Account()
    account.book("embed", evaluation=0.25)
    assert {heading: s for heading, s in account.seconds.items() if s} == {"embed": 3.0, "evaluate": 1.0}


def test_a_block_goes_under_one_heading_whatever_is_booked_in_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("actors.account.time.perf_counter", lambda: now[0])
    account = Account(ROUND)

    def passes(seconds, heading=None):
        now[0] += seconds
        if heading:
            account.book(heading)

    passes(1.0)
    with account.only("apply", "messages"):
        passes(2.0, "expand")
        passes(4.0)
    passes(8.0, "expand")
    found = {heading: seconds for heading, seconds in account.seconds.items() if seconds}
    assert found == {"messages": 1.0, "apply": 6.0, "expand": 8.0}


def test_directions_are_timed_and_give_what_they_gave():
    booked, drawn = [], Drawn(7, (Compartment(((0, 40),), 8),), Basis(8))
    both, name = timed(drawn, booked.append), Name(1, 2, 3)
    vector = np.arange(40, dtype=np.float32)
    (c,) = both.project(name, vector)
    assert np.array_equal(c, drawn.project(name, vector)[0])
    assert np.array_equal(both.expand(0, [name], c[None]), drawn.expand(0, [name], c[None]))
    assert booked == ["train", "project", "train", "expand"]
    assert timed(Whole(4), booked.append) == Whole(4)
