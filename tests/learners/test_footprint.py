from hypothesis import given
from hypothesis import strategies as st

from learners.footprint import INLINE_LIMIT, inline, threads


def test_threads_are_the_whole_part_of_the_cpus_and_at_least_one():
    assert [threads(cpus) for cpus in (0.0, 0.1, 0.5, 1.0, 1.9, 2.0, 7.5)] == [1, 1, 1, 1, 1, 2, 7]


@given(st.lists(st.integers(0, 3 * INLINE_LIMIT), max_size=4))
def test_what_stays_in_a_call_is_below_the_limit_and_nothing_larger_leaves_without_need(sizes):
    kept = inline(sizes)
    inside = [size for size, within in zip(sizes, kept, strict=True) if within]
    outside = [size for size, within in zip(sizes, kept, strict=True) if not within]
    assert sum(inside) < INLINE_LIMIT
    assert not outside or sum(inside) + min(outside) >= INLINE_LIMIT
    assert all(small <= large for small in inside for large in outside)


def test_two_arrays_that_fit_alone_but_not_together():
    assert inline([60_000, 50_000]) == [False, True]
    assert inline([60_000, 30_000]) == [True, True]
    assert inline([]) == []
