"""Where a learner's time goes: nothing is left out, nothing counted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.account import HEADINGS, Account

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
