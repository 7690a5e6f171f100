"""Coordinates on the wire: sizes, round trips, nearest rounding, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from learners.rbd.coordinates import BITS, EXACT, LIMITS, NOTHING, Quantised, decode, encode, payload_bytes, quantise

precisions = st.sampled_from(sorted(BITS))
whole = st.sampled_from(["int16", "int8", "int4"])
numbers = st.floats(-(2.0**60), 2.0**60, width=32)
vectors = st.integers(1, 40).flatmap(lambda d: arrays(np.float32, d, elements=numbers))


def same(one, other):
    return (
        one.exponent == other.exponent and one.values.dtype == other.values.dtype and (one.values == other.values).all()
    )


@given(st.lists(vectors, min_size=1, max_size=4), precisions)
def test_what_is_packed_comes_back_and_has_the_size_that_was_said(parts, precision):
    sent = [quantise(part, precision) for part in parts]
    payload = encode(sent, precision)
    dimensions = [len(part) for part in parts]
    assert len(payload) == payload_bytes(dimensions, precision)
    assert all(map(same, decode(payload, dimensions, precision), sent))


@pytest.mark.parametrize(
    ("precision", "size"), [("float32", 1001), ("int16", 501), ("int8", 251), ("int4", 126), ("sign", 33)]
)
def test_sizes_at_250_dimensions(precision, size):
    assert payload_bytes([250], precision) == size


@given(vectors, whole)
def test_whole_numbers_are_the_nearest_at_the_least_exponent(coordinates, precision):
    values, exponent = quantise(coordinates, precision)
    found = np.ldexp(values.astype(np.float64), max(exponent, -127))
    largest = np.abs(coordinates.astype(np.float64)).max()
    if exponent == NOTHING:
        assert (np.rint(np.ldexp(coordinates.astype(np.float64), 127)) == 0).all()
        return
    assert (np.abs(found - coordinates) <= np.ldexp(0.5, exponent)).all()
    assert np.abs(values).max() <= LIMITS[precision]
    assert exponent == -127 or largest > np.ldexp(LIMITS[precision], exponent - 1)


@given(vectors)
def test_float32_travels_as_it_is(coordinates):
    values, exponent = quantise(coordinates, "float32")
    assert exponent == 0 and values.tobytes() == coordinates.tobytes()


@pytest.mark.parametrize(
    ("coordinates", "signs", "exponent"),
    [
        ([3.0, -1.0, 0.0, 4.0], [1, -1, 1, 1], 1),  # mean |c| = 2
        ([2.9, -2.9], [1, -1], 2),  # above 2 sqrt(2)
        ([-2.8, 2.8], [-1, 1], 1),  # below it
        ([0.0, 0.0], [0, 0], NOTHING),
    ],
)
def test_signs_share_the_power_of_two_that_is_nearest_to_the_mean(coordinates, signs, exponent):
    found = quantise(np.array(coordinates, np.float32), "sign")
    assert found.values.tolist() == signs and found.exponent == exponent


@given(vectors, precisions, st.integers(-60, 20))
def test_no_exponent_is_below_the_floor_and_nothing_grows(coordinates, precision, floor):
    found = quantise(coordinates, precision, floor)
    assert precision == "float32" or found.exponent >= floor or found.exponent == NOTHING
    if precision == "sign":
        assert np.abs(found.coordinates).mean(dtype=float) <= 1.42 * np.abs(coordinates).mean(dtype=float)


def test_signs_below_the_floor_are_nothing_and_not_larger_than_what_was_meant():
    tiny = np.array([1e-9, -1e-9], np.float32)
    assert quantise(tiny, "sign", floor=-25).exponent == NOTHING
    assert quantise(tiny, "sign", floor=-30).exponent == -30
    assert not quantise(tiny, "sign", floor=-25).coordinates.any()


@given(st.integers(1100, 4000), st.sampled_from(["int16", "int8", "sign"]), st.booleans())
@settings(max_examples=20)
def test_sums_stay_where_float32_is_exact(d, precision, summed):
    found = quantise(np.full(d, 0.7, np.float32), precision, summed=summed)
    total = np.abs(found.values, dtype=np.int64).sum()
    if summed:
        assert total < EXACT
    elif precision == "int16":
        assert total >= EXACT  # each is a weight of its own
    assert np.allclose(found.coordinates, 0.7, rtol=0.5 if precision == "sign" else 0.01)


@pytest.mark.parametrize("precision", sorted(BITS))
@pytest.mark.parametrize(("bad", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_what_is_not_finite_is_refused_by_name(precision, bad, name):
    with pytest.raises(ValueError, match=rf"coordinates: {name} among them \(1 of 3, first at 1\)"):
        quantise(np.array([1.0, bad, 2.0], np.float32), precision)


def test_poison_on_the_wire_is_refused():
    payload = encode([Quantised(np.array([1.0, np.nan], np.float32), 0)], "float32")
    with pytest.raises(ValueError, match="NaN"):
        decode(payload, [2], "float32")
    with pytest.raises(ValueError, match="exponent 3 beside float32"):
        decode(b"\x03" + bytes(8), [2], "float32")
    with pytest.raises(ValueError, match="larger than a sender of int4"):
        decode(b"\x00\x08", [1], "int4")  # -8
    with pytest.raises(ValueError, match="larger than a sender of int8"):
        decode(b"\x00\x80", [1], "int8")  # -128
    for body, precision in ((b"\x00\x10", "int4"), (b"\x00\x02", "sign")):
        with pytest.raises(ValueError, match="behind the last one"):
            decode(body, [1], precision)


@given(precisions, st.integers(-3, 3).filter(bool))
def test_another_size_is_refused_with_both_sizes(precision, extra):
    """Fault 5 of the original: lists of float32, unchecked."""
    payload = encode([quantise(np.ones(9, np.float32), precision)], precision)
    broken = payload[:extra] if extra < 0 else payload + bytes(extra)
    with pytest.raises(ValueError, match=f"{len(broken)} bytes came; {len(payload)} were wanted"):
        decode(broken, [9], precision)


def test_numbers_without_bounds_are_refused():
    with pytest.raises(ValueError, match="diverged"):
        quantise(np.array([2.0**127 * 1.9], np.float64) * 2.0**20, "int8")
