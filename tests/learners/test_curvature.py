"""Hessian-vector products against differences of gradients, symmetry, and a model whose Hessian is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.curvature import Curvature
from learners.layout import network
from learners.models import Model, initial


def data(example, rows, seed=0):
    chance = np.random.default_rng(seed)
    x = chance.standard_normal((rows, int(np.prod(example)))).astype(np.float32)
    return x, chance.integers(0, 3, rows).astype(np.int32)


each_network = pytest.mark.parametrize(("kind", "example"), [("dense", (3, 4)), ("base_conv", (19, 18, 2))])


def unit(made, seed, first=0):
    v = np.random.default_rng(seed).standard_normal(made.size).astype(np.float32)
    v[:first] = 0.0
    return v / np.linalg.norm(v)


@each_network
def test_products_are_differences_of_gradients(kind, example):
    """Along the last layer, which moves no ReLU and no pooling over a kink; the product reaches all layers."""
    made, (x, labels) = network(kind, example, 3), data(example, 12)
    theta, model = initial(made, 1), Model(made)
    v, step = unit(made, 2, first=made.tensors[-2].start), np.float32(1e-2)
    ahead, back = (model.loss_and_gradient(theta + sign * step * v, x, labels)[2] for sign in (1, -1))
    difference, exact = (ahead - back) / (2 * step), Curvature(Model(made), x, labels).product(theta, v)
    assert np.linalg.norm(exact[: made.tensors[-2].start]) > 0.1 * np.linalg.norm(exact)
    assert np.linalg.norm(exact - difference) < 1e-3 * np.linalg.norm(exact)


@each_network
def test_the_hessian_is_symmetric(kind, example):
    made, (x, labels) = network(kind, example, 3), data(example, 12)
    theta, curvature, (a, b) = initial(made, 1), Curvature(Model(made), x, labels), (unit(made, 3), unit(made, 4))
    there, back = a @ curvature.product(theta, b), b @ curvature.product(theta, a)
    assert there == pytest.approx(back, rel=1e-3, abs=1e-6) and abs(there) > 1e-5


@given(rows=st.integers(1, 23), chunk=st.integers(1, 9))
@settings(max_examples=12, deadline=None)
def test_any_number_of_rows_in_chunks_of_any_size_gives_the_mean(rows, chunk):
    """With all weights 0 only the last bias has curvature: diag(p) - p p^T, p = 1 / C, whatever the rows."""
    made, (x, labels) = network("dense", (4,), 3), data((4,), rows)
    v = np.zeros(made.size, np.float32)
    v[-3:] = (1.0, 0.5, -2.0)
    product = Curvature(Model(made), x, labels, chunk).product(np.zeros(made.size, np.float32), v)
    known = np.zeros(made.size)
    known[-3:] = v[-3:] / 3 - v[-3:].sum() / 9
    np.testing.assert_allclose(product, known, atol=1e-6)
