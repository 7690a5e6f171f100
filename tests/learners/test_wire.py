"""What comes back of numbers that were sent as fewer bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from learners.footprint import BYTES
from learners.wire import decoded, encoded

NUMBERS = st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-80)
ARRAYS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS)


@given(ARRAYS)
def test_float32_is_what_it_was(values):
    numbers, scale = encoded(values, "float32")
    assert numbers is values and decoded(numbers, scale) is values


@given(ARRAYS)
def test_float16_is_within_its_stated_error_whatever_the_size_of_the_numbers(values):
    back = decoded(*encoded(values, "float16"))
    error = np.abs(back.astype(np.float64) - values)
    greatest = np.abs(values).max()
    assert (error <= np.maximum(np.abs(values) * 2.0**-11, greatest * 2.0**-24)).all()


@given(ARRAYS)
def test_int8_is_within_half_a_step_and_the_greatest_is_kept(values):
    back = decoded(*encoded(values, "int8"))
    greatest = float(np.abs(values).max())
    assert (np.abs(back.astype(np.float64) - values) <= greatest / 254 * (1 + 1e-4)).all()
    np.testing.assert_allclose(np.abs(back).max(), greatest, rtol=1e-6)


@given(ARRAYS, st.sampled_from(sorted(BYTES)))
def test_bytes_and_types_are_those_that_the_plan_counts_with(values, precision):
    numbers, scale = encoded(values, precision)
    if values.any():
        assert numbers.nbytes == values.size * BYTES[precision]
    assert decoded(numbers, scale).dtype == np.float32 and decoded(numbers, scale).shape == values.shape


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("precision", sorted(BYTES))
def test_what_is_not_finite_arrives_so_that_it_can_be_refused(bad, precision):
    values = np.array([[1.0, bad]], np.float32)
    np.testing.assert_array_equal(decoded(*encoded(values, precision)), values)


@pytest.mark.parametrize("precision", sorted(BYTES))
def test_nothing_and_zeros_survive(precision):
    for values in (np.zeros((3, 2), np.float32), np.zeros((0, 4), np.float32)):
        np.testing.assert_array_equal(decoded(*encoded(values, precision)), values)
