"""A budget of bytes: what it comes to, and that rounds keep to it whatever steps take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.rbd import budget
from learners.rbd.options import STEPS_A_SECOND

D = 101_770


@pytest.mark.parametrize("text, wanted", [("2kB/s", 2000.0), ("0.5MB/s", 5e5), ("300B/s", 300.0)])
def test_a_bandwidth_is_read(text, wanted):
    assert budget.bytes_a_second(text) == wanted


@given(st.floats(100.0, 1e6))
def test_what_is_chosen_costs_what_the_budget_allows(bytes_a_second):
    found = budget.chosen(bytes_a_second, D)
    rate = budget._cost(found.dimensions) / found.every * STEPS_A_SECOND + budget.CLOCK / found.beat
    unbound = found.dimensions < budget.MANY and found.every < budget.MOST_STEPS and found.beat > 0.3
    assert rate < 1.1 * bytes_a_second or found.every == budget.MOST_STEPS or found.beat == 0.3
    assert rate > 0.85 * bytes_a_second or not unbound
    assert budget.FEW <= found.dimensions <= budget.MANY and found.every >= 1


def test_few_bytes_buy_rarer_rounds_and_many_more_directions():
    poor, usual, rich = (budget.chosen(b, D) for b in (300.0, 6e3, 1e5))
    assert (poor.dimensions, usual.dimensions, rich.every) == (250, 1000, 10)
    assert poor.every > usual.every > rich.every and rich.dimensions > 4000
    assert budget.chosen(1e6, 500).dimensions == 500  # no more than there are weights


@given(st.floats(300.0, 1e4), st.floats(200.0, 5000.0), st.integers(80, 2000))
def test_at_the_speed_that_is_known_rounds_keep_to_a_budget_within_one_update(bytes_a_second, speed, cost):
    now, sent = 0.0, 0
    for _ in range(50):
        steps = budget.steps_until(bytes_a_second, sent, cost, now, speed)
        assert 1 <= steps <= budget.MOST_STEPS
        now, sent = now + steps / speed, sent + cost
    if 2 < cost / bytes_a_second * speed < budget.MOST_STEPS / 2:  # neither bound is in the way
        assert abs(sent - bytes_a_second * now) <= bytes_a_second / speed + 1e-6
