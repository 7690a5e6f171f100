"""What the costly instruments look at is the learner as it was saved."""

import numpy as np
import pytest

from actors import checkpoint, data
from learners import batches
from learners.mach import Mach, Shape
from learners.optimizers import Rule
from learners.options import Data
from topology import parse, probe
from topology.outcome import write_manifest

CHAIN = """
version: 1
name: small
learners:
  bottom: {kind: mach, hidden: [8], embedding: 4}
  top: {kind: mach, child: bottom, hidden: [8, 8], embedding: 4, synthetic: {hidden: [6]}}
"""


def mach(children, hidden):
    shape = Shape(64, 10, children, hidden, 4, (6,), 16, 0, 16)
    rule = Rule(**dict.fromkeys(Rule._fields, 0.0) | {"name": "sgd", "decay": "coupled"})
    return Mach(shape, rule, seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "chain.yaml").write_text(CHAIN)
    write_manifest(folder, parse.load(folder / "chain.yaml"), {"state": "ended", "beside": str(folder)})
    machs = {"top": mach((4,), (8, 8)), "bottom": mach((), (8,))}
    for name, one in machs.items():
        checkpoint.write(folder / "checkpoints", 0, name, checkpoint.pack(one.save(), {}))
    checkpoint.complete(folder / "checkpoints", 0, {"top": 9, "bottom": 5})
    return folder, machs


def test_a_probes_loss_is_the_learners_own_with_its_synthetic_input(run):
    folder, machs = run
    dataset = data.load(Data())
    found = probe.probes(folder)
    assert [(one.learner, one.step, one.rows) for one in found] == [("bottom", 5, 512), ("top", 9, 512)]
    numbers = probe.rows(parse.load(folder / "chain.yaml").seed, dataset)
    x = batches.features(dataset.train, numbers, dataset.scale, dataset.offset)
    labels = dataset.train.labels[numbers]
    for one in found:
        own = machs[one.learner].evaluate(x, labels, [None] if one.learner == "top" else [])
        assert one.loss(one.theta_D) == pytest.approx(
            own["loss/synthetic" if one.learner == "top" else "loss/child"], rel=1e-4
        )


def test_a_probes_product_is_the_curvature_of_its_loss(run):
    """Along the last layer the loss is smooth."""
    folder, _ = run
    for one in probe.probes(folder):
        v = np.zeros_like(one.theta_D)
        v[-50:] = np.random.default_rng(0).standard_normal(50)
        v /= np.linalg.norm(v)
        step = np.float32(0.2)
        ahead, here, back = (one.loss(one.theta_D + sign * step * v) for sign in (1, 0, -1))
        assert v @ one.product(v) == pytest.approx((ahead - 2 * here + back) / step**2, rel=0.05)


def test_without_a_complete_set_there_is_nothing_to_look_at(run, tmp_path):
    with pytest.raises(ValueError, match=r"no complete checkpoint set.*every: 100"):
        probe.probes(tmp_path)
