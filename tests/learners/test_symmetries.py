"""Charges are found from what layers do; what is found is a symmetry of the loss, and what is left out is not."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.layout import network
from learners.mechanics import charges
from learners.mechanics.symmetries import of_network
from learners.models import Model, initial

spec = importlib.util.spec_from_file_location("laws_world", Path(__file__).with_name("laws_world.py"))
laws_world = importlib.util.module_from_spec(spec)
spec.loader.exec_module(laws_world)
Net, Run = laws_world.Net, laws_world.Run


def kinds(net):
    return [(law.kind, law.name, law.units) for law in net.symmetries.laws]


def test_a_stack_of_dense_layers():
    net = Net((4,)).dense(5).act("relu").drop().dense(6, bias=False).act("leaky_relu").dense(3).end()
    assert kinds(net) == [
        ("rescale", "dense0", 5),
        ("rescale", "dense2", 6),
        ("translation", "dense3", 6),
        ("translation", "dense3/bias", 1),
    ]
    assert net.symmetries.without == ()


def test_a_flattened_image_groups_rows_by_channel():
    net = Net((8, 8, 2)).conv(3).act("relu").pool().flatten().dense(4).act("relu").dense(3).end()
    first = net.symmetries.laws[0]
    assert (first.kind, first.units, first.terms[0].view) == ("rescale", 3, (9, 3, 4))


def test_a_normalisation_scales_what_is_before_it_and_is_a_layer_itself():
    net = Net((4,)).dense(5).norm().act("relu").dense(3).end()
    assert kinds(net)[:3] == [("scale", "dense0", 5), ("translation", "dense0/bias", 5), ("rescale", "norm2", 5)]
    whole = Net((4,)).dense(5).norm("layer").act("relu").dense(3).end()
    assert kinds(whole)[:2] == [("scale", "dense0", 1), ("rescale", "norm2", 5)]


def test_a_bias_behind_which_something_bends_may_not_be_shifted():
    net = Net((4,)).dense(5).act("relu").norm().dense(3).end()
    assert kinds(net)[:2] == [("scale", "dense0", 5), ("rescale", "norm2", 5)]


@pytest.mark.parametrize(
    ("net", "name", "reason"),
    [
        (Net((4,)).dense(5).act("tanh").dense(3).end(), "dense0", "tanh is not positive-homogeneous"),
        (Net((4,)).dense(5).act("relu").end(), "dense0", "only a dense layer without an activation"),
        (Net((4,)).dense(5), "dense0", "nothing follows"),
        (Net((4,)).dense(5).act("softplus").norm().end(), "dense0", "softplus is not"),
    ],
)
def test_what_has_no_symmetry_says_why(net, name, reason):
    found = dict(net.symmetries.without)
    assert reason in found[name]
    assert name not in [law.name for law in net.symmetries.laws]


@st.composite
def nets(draw, activations=("relu", "leaky_relu", "linear"), norms=(None, None, "batch")):
    """Dense and convolutional networks of random shapes, of which every layer has some symmetry."""
    net, image = Net((8, 8, 2)), draw(st.booleans())
    if not image:
        net = Net((draw(st.integers(2, 6)),))
    for layer in range(draw(st.integers(1, 3))):
        units, bias = draw(st.integers(2, 6)), draw(st.booleans())
        net = net.conv(units, bias) if image else net.dense(units, bias)
        if draw(st.sampled_from(norms)):
            net.norm()
        net.act(draw(st.sampled_from(activations)))
        if image and draw(st.booleans()):
            net.pool().flatten()
            image = False
        elif draw(st.booleans()):
            net.drop()
        if image and layer == 1:
            break
    if image:
        net.flatten()
    return net.dense(3, draw(st.booleans())).end()


@given(net=nets(norms=(None,)), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_the_gradient_has_nothing_along_a_charge(net, seed):
    for dtype, bound in (("float64", 1e-14), ("float32", 1e-6)):
        run = Run(net, laws_world.optimizers.Rule("sgd"), dtype=dtype, seed=seed)
        weights, gradient = laws_world.arrays(run.weights), laws_world.arrays(run.gradients()[0])
        found = charges.along(run.laws, weights, gradient), charges.lengths(run.laws, weights, gradient)
        for along, length in zip(*(charges.by_law(run.laws, one) for one in found), strict=True):
            assert np.linalg.norm(along) <= bound * np.linalg.norm(length)


@given(seed=st.integers(0, 99), detail=st.sampled_from(["batch", "layer"]))
@settings(max_examples=6, deadline=None)
def test_under_normalisation_too_but_for_its_epsilon(seed, detail):
    run = Run(Net((4,)).dense(16).norm(detail).act("relu").dense(3).end(), laws_world.optimizers.Rule("sgd"), seed=seed)
    found = charges.identity(run.laws, laws_world.arrays(run.weights), laws_world.arrays(run.gradients()[0]))
    scaled = np.concatenate([np.full(law.units, law.kind == "scale") for law in run.laws])
    assert found[scaled].max() < (20 if detail == "batch" else 100) * laws_world.EPSILON
    assert found[~scaled].max() < 1e-13


def test_tanh_for_relu_breaks_the_identity():
    """The charge that relu would have, in a network that bends."""
    net = Net((4,)).dense(6).act("relu").dense(3).end()
    run = Run(net, laws_world.optimizers.Rule("sgd"))
    net.steps[1] = net.steps[1]._replace(detail="tanh")
    found = charges.identity(run.laws, laws_world.arrays(run.weights), laws_world.arrays(run.gradients()[0]))
    assert found[:6].min() > 1e-3


@pytest.mark.parametrize("kind", ["dense", "base_conv"])
def test_the_packages_own_networks(kind):
    made = network(kind, (20, 20, 1), 4)
    laws = of_network(made).laws
    assert [law.kind for law in laws[-2:]] == ["translation", "translation"]
    assert len(laws) == len(made.tensors) // 2 + 1
    assert of_network(made).without == ()
    draws = np.random.default_rng(1)
    x, labels = draws.normal(size=(8, 400)).astype(np.float32), draws.integers(4, size=8).astype(np.int32)
    theta = initial(made, 3)
    theta += np.float32(0.05) * draws.normal(size=len(theta)).astype(np.float32)
    gradient = Model(made).loss_and_gradient(theta, x, labels)[2]
    split = [charges.split(made.tensors, flat) for flat in (theta, gradient)]
    assert charges.identity(laws, *split).max() < 1e-6


def test_a_charge_is_what_the_symmetry_keeps():
    """Scaling a unit up before and down behind leaves the loss alone, and the sums are those of the formula."""
    net = Net((4,)).dense(5).act("relu").dense(3).end()
    weights = laws_world.arrays(net.draw(1, "float64"))
    found = charges.charges(net.symmetries.laws, weights)
    kernel, bias, out, out_bias = weights
    np.testing.assert_allclose(found[:5], (out**2).sum(1) - (kernel**2).sum(0) - bias**2)
    np.testing.assert_allclose(found[5:10], out.sum(1))
    np.testing.assert_allclose(found[10], out_bias.sum())
    x, mask = tf.constant(np.random.default_rng(2).normal(size=(7, 4))), tf.constant([0, 0])
    a = np.array([2.0, 0.5, 3.0, 1.0, 0.1])
    scaled = [kernel * a, bias * a, out / a[:, None], out_bias]
    before, after = (net.logits([tf.constant(w) for w in ws], x, mask) for ws in (weights, scaled))
    np.testing.assert_allclose(before, after, rtol=1e-12)
