"""The two schedules that only random bases descent has; the others are in test_optimizers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.schedules import rate


def test_piecewise_changes_at_the_shares_that_are_given():
    found = [rate(1.0, "piecewise", 0, step, 10, at=(0.3, 0.6), factor=0.5) for step in range(10)]
    assert found == [1.0] * 3 + [0.5] * 3 + [0.25] * 4


@given(st.integers(0, 9), st.integers(2, 50), st.floats(0.01, 1.0))
def test_exponential_falls_by_one_factor_each_step_down_to_what_was_said(warmup, steps, factor):
    found = [rate(2.0, "exponential", warmup, warmup + n, warmup + steps, factor=factor) for n in range(steps + 1)]
    assert found[0] == 2.0 and found[-1] == pytest.approx(2.0 * factor)
    ratios = [after / before for before, after in pairwise(found)]
    assert ratios == pytest.approx([ratios[0]] * steps)
