"""The instruments on losses whose gradient and Hessian are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners import watching
from learners.bases import Basis, scale
from learners.layout import laid_out
from learners.rbd.clocks import Name
from learners.rbd.coordinates import LIMITS, quantise
from learners.rbd.defaults import layout
from learners.rbd.directions import Drawn, Past
from learners.rbd.options import Basis as BasisOptions
from learners.rbd.options import Compartments, Rbd

TENSORS = laid_out([("a", 0, "kernel", (8, 5)), ("b", 0, "rest", (5,)), ("c", 1, "kernel", (5, 3))])
D = TENSORS[-1].stop
seeds = st.integers(0, 2**32 - 1)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape or (D,)).astype(np.float32)


# ---------------------------------------------------------------- of every round


@given(seeds, st.floats(1e-3, 1e3))
def test_a_way_down_the_gradient_correlates_fully_in_every_tensor(seed, rate):
    gradient = normal(seed)
    found = watching.correlations(TENSORS, np.float32(rate) * gradient, gradient)
    assert found.keys() == {f"correlation/{name}" for name in ("all", "a", "b", "c")}
    assert all(value == pytest.approx(1.0, abs=1e-5) for value in found.values())
    uphill = watching.correlations(TENSORS, -gradient, gradient)
    assert all(value == pytest.approx(-1.0, abs=1e-5) for value in uphill.values())


def test_correlation_is_told_tensor_by_tensor():
    gradient = np.ones(D, np.float32)
    way = gradient.copy()
    way[TENSORS[1].place] *= -1
    way[TENSORS[2].place] = 0
    found = watching.correlations(TENSORS, way, gradient)
    assert [found[f"correlation/{name}"] for name in "abc"] == pytest.approx([1.0, -1.0, 0.0])
    assert found["correlation/all"] == pytest.approx((40 - 5) / (45 * D) ** 0.5)


@given(seeds, st.floats(0.01, 100.0))
def test_magnitudes_are_shares_of_the_weights(seed, factor):
    theta = normal(seed)
    found = watching.magnitudes(TENSORS, np.float32(factor) * theta, theta)
    assert all(value == pytest.approx(factor, rel=1e-4) for key, value in found.items() if key.startswith("moved/"))
    assert found["weights/c"] == pytest.approx(np.sqrt(np.mean(theta[TENSORS[2].place].astype(float) ** 2)), rel=1e-5)


def test_a_tensor_of_zeros_has_no_share():
    theta = normal(0)
    theta[TENSORS[1].place] = 0
    found = watching.magnitudes(TENSORS, normal(1), theta)
    assert "moved/b" not in found and found["weights/b"] == 0.0 and {"moved/all", "moved/a", "moved/c"} < set(found)


def test_without_a_gradient_there_is_no_correlation():
    found = watching.moves(TENSORS, normal(0), normal(1), None)
    assert found and not any(key.startswith("correlation") for key in found)


def test_statistics_of_coordinates_with_known_moments():
    c = normal(3, 200_000) * np.float32(0.5) + np.float32(0.1)
    found = watching.coordinate_statistics(
        [c[:1000], c[1000:]], [quantise(c[:1000], "int8"), quantise(c[1000:], "int8")], "int8"
    )
    assert found["coordinates/mean"] == pytest.approx(0.1, abs=0.005)
    assert found["coordinates/rms"] == pytest.approx((0.25 + 0.01) ** 0.5, abs=0.005)
    assert found["coordinates/kurtosis"] == pytest.approx(3.0, abs=0.1)
    assert found["coordinates/positive"] == pytest.approx(0.579, abs=0.01)  # of a normal above -0.2 deviations
    assert 0.0 < found["coordinates/error"] < 0.05


def test_signs_have_kurtosis_1_and_constants_0():
    signs = np.array([1.0, -1.0] * 8, np.float32)
    assert watching.coordinate_statistics([signs], [quantise(signs, "sign")], "sign")["coordinates/kurtosis"] == 1.0
    same = np.ones(16, np.float32)
    assert watching.coordinate_statistics([same], [quantise(same, "sign")], "sign")["coordinates/kurtosis"] == 0.0


@given(seeds, st.sampled_from(["float32", "int16", "int8", "int4", "sign"]))
def test_what_rounding_did_is_what_the_receiver_sees(seed, precision):
    c = normal(seed, 64)
    sent = quantise(c, precision)
    found = watching.coordinate_statistics([c], [sent], precision)
    assert found["coordinates/error"] == pytest.approx(
        np.linalg.norm(c - sent.coordinates) / np.linalg.norm(c), rel=1e-5
    )
    assert found["coordinates/zero"] == np.mean(sent.coordinates == 0)
    assert ("coordinates/clipped" in found) == (precision in ("int16", "int8", "int4"))
    if "coordinates/clipped" in found:
        assert found["coordinates/clipped"] == np.mean(np.abs(sent.values) == LIMITS[precision])


def test_no_coordinates_no_statistics():
    assert watching.coordinate_statistics([], [], "sign") == {}
    assert all(
        np.isfinite(
            list(
                watching.coordinate_statistics(
                    [np.zeros(4, np.float32)], [quantise(np.zeros(4), "int8")], "int8"
                ).values()
            )
        )
    )


# ---------------------------------------------------------------- directions


@pytest.mark.parametrize("by", ["none", "layer", Compartments(by="size", size=13, share="each")])
@pytest.mark.parametrize("distribution", ["rademacher", "normal"])
def test_columns_are_the_directions_that_coordinates_are_of(by, distribution):
    """scale E^T g, as projected, is <column, g> |column of E| scale."""
    options = Rbd(basis=BasisOptions(dimensions=6, compartments=by))
    parts = tuple(layout(options, TENSORS, 0))
    directions, name = Drawn(7, parts, Basis(6, distribution)), Name(0, 0, 3)
    units, gradient = np.stack(list(watching.columns(directions, name))), normal(1)
    assert len(units) == sum(part.dimensions for part in parts)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, rtol=1e-5)
    projected, at = directions.project(name, gradient), 0
    for m, part in enumerate(parts):
        for j in range(part.dimensions):
            column = np.zeros(D, np.float32)
            part.scatter(directions.expand(m, [name], np.eye(part.dimensions, dtype=np.float32)[j][None]), column)
            want = np.dot(units[at], gradient) * np.linalg.norm(column) * scale(directions.basis, part.size)
            assert projected[m][j] == pytest.approx(want, rel=1e-3, abs=1e-6)
            at += 1


def test_a_direction_that_is_not_there_yet_stays_0():
    assert not np.any(list(watching.columns(Past(np.zeros((3, D), np.float32)), Name(0, 0, 0))))


@given(seeds)
@settings(max_examples=20)
def test_random_units_are_of_length_1_and_of_their_seed(seed):
    units = watching.random_units(3, 50, seed)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, rtol=1e-5)
    assert units.tobytes() == watching.random_units(3, 50, seed).tobytes()
    assert units.tobytes() != watching.random_units(3, 50, seed + 1).tobytes()


# ---------------------------------------------------------------- directional Hessian


def bowl(seed, size=30):
    """A quadratic loss: its Hessian is known."""
    root = np.random.default_rng(seed).standard_normal((size, size))
    h = (root @ root.T / size).astype(np.float32)
    return h, lambda v: h @ v, lambda theta: float(theta.astype(float) @ h.astype(float) @ theta.astype(float) / 2)


@given(seeds, st.integers(1, 30))
@settings(max_examples=30)
def test_the_directional_hessian_of_a_quadratic_loss(seed, n):
    h, product, _ = bowl(seed)
    units = watching.random_units(n, 30, seed)
    found = watching.hessian(product, units)
    np.testing.assert_allclose(found, units.astype(float) @ h.astype(float) @ units.T.astype(float), atol=1e-4)
    assert watching.asymmetry(found) < 1e-5
    np.testing.assert_allclose(watching.curvatures(product, iter(units)), np.diag(found), rtol=1e-4, atol=1e-5)


def test_along_orthogonal_directions_eigenvalues_lie_between_those_of_the_hessian():
    h, product, _ = bowl(4)
    all_of_them = np.linalg.eigvalsh(h)
    basis = np.linalg.qr(normal(5, 30, 30))[0].T.astype(np.float32)
    some = np.linalg.eigvalsh(watching.hessian(product, basis[:7]))
    assert all_of_them[0] - 1e-4 <= some[0] and some[-1] <= all_of_them[-1] + 1e-4
    np.testing.assert_allclose(np.linalg.eigvalsh(watching.hessian(product, basis)), all_of_them, atol=1e-4)


def test_asymmetry_shows_a_matrix_that_is_none():
    assert watching.asymmetry(np.array([[1.0, 2.0], [2.0, 5.0]])) == 0.0 == watching.asymmetry(np.zeros((2, 2)))
    assert watching.asymmetry(np.array([[0.0, 1.0], [-1.0, 0.0]])) == pytest.approx(2.0)


# ---------------------------------------------------------------- landscape


@given(seeds)
@settings(max_examples=20)
def test_a_quadratic_loss_is_a_parabola_with_the_curvature_of_the_direction(seed):
    h, product, loss = bowl(seed)
    theta, (one, other) = normal(seed, 30), watching.random_units(2, 30, seed)
    distances = np.linspace(-2, 2, 9)
    along = watching.profile(loss, theta, one, distances)
    a2, a1, a0 = np.polyfit(distances, along, 2)
    assert a0 == pytest.approx(loss(theta), rel=1e-3, abs=1e-4)
    assert a1 == pytest.approx(float(one @ h @ theta), rel=1e-2, abs=1e-3)
    assert 2 * a2 == pytest.approx(watching.curvatures(product, [one])[0], rel=1e-2, abs=1e-3)
    over = watching.plane(loss, theta, (one, other), distances)
    np.testing.assert_allclose(over[:, 4], along, rtol=1e-3, atol=1e-4)  # by row the first direction
    np.testing.assert_allclose(over[4], watching.profile(loss, theta, other, distances), rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- orthogonality


def test_orthonormal_directions_are_orthogonal_and_repeated_ones_depend():
    found = watching.orthogonality(np.eye(5, 20, dtype=np.float32))
    assert found == (20, 5, 0.0, 1.0, 1.0, 1.0)
    found = watching.orthogonality(np.ones((3, 4), np.float32) / 2)
    assert found.cosine == pytest.approx(1.0) and found.greatest == pytest.approx(3.0) and np.isinf(found.condition)


@pytest.mark.parametrize("distribution", ["rademacher", "normal", "uniform", "lognormal"])
def test_random_directions_are_as_orthogonal_as_theory_says(distribution):
    for found in watching.by_dimension(Basis(2, distribution), 7, (512, 8192), (16, 64)):
        wide = (found.directions / found.weights) ** 0.5
        # some 2,000 pairs (or 120): a root mean square within 15 % (25 %) is 8 deviations
        assert found.cosine * found.weights**0.5 == pytest.approx(1.0, abs=0.25 if found.directions == 16 else 0.15)
        assert found.greatest == pytest.approx((1 + wide) ** 2, rel=0.15)
        assert found.least == pytest.approx((1 - wide) ** 2, rel=0.15)
        assert found.condition == pytest.approx(found.greatest / found.least)


def test_hadamard_directions_are_orthogonal_where_the_number_of_weights_is_a_power_of_two():
    (found,) = watching.by_dimension(Basis(2, "hadamard"), 7, (1024,), (32,))
    assert found.cosine < 1e-6 and found.condition == pytest.approx(1.0, abs=1e-5)


def test_what_is_impossible_is_left_out():
    found = watching.by_dimension(Basis(2, antithetic=True), 7, (8, 64), (1, 3, 16, 4096))
    assert [(one.weights, one.directions) for one in found] == [(64, 16)]
    assert all(np.isinf(one.condition) for one in found)  # half are the others' negatives
