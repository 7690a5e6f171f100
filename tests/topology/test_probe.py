"""What the costly instruments look at is the learner as it was saved."""

import numpy as np
import pytest

from actors import checkpoint, data
from actors.rbd import begun
from learners import batches
from learners.layout import network
from learners.mach import Mach, Shape
from learners.models import Model
from learners.optimizers import Rule
from learners.options import Data
from learners.rbd.descent import Problem, descend
from learners.rbd.workers import Method
from learners.watching import columns
from topology import parse, probe, workers
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


WORKERS = {
    "rbd": ("kind: rbd, basis: {dimensions: 12}", "Drawn"),
    "layers": ("kind: fpd, basis: {dimensions: 12, compartments: layer, distribution: normal}", "Drawn"),
    "learned": ("kind: rbd, basis: {dimensions: 6, learn: {every: 2}}, exchange: {residual: none}", "Learned"),
    "past": ("kind: rbd, basis: {dimensions: 4, distribution: gradients}, exchange: {residual: none}", "Past"),
    "sgd": ("kind: sgd", None),
    "local": ("kind: local, exchange: {every: 2}", None),
}


@pytest.mark.parametrize(("options", "kind"), WORKERS.values(), ids=WORKERS)
def test_a_worker_is_looked_at_where_it_is_and_along_the_directions_of_its_next_update(options, kind, tmp_path):
    (tmp_path / "chain.yaml").write_text(
        f"{{version: 1, name: x, seed: 4, learners: {{me: {{{options}, steps: 40}}}}}}"
    )
    topology, dataset = parse.load(tmp_path / "chain.yaml"), data.load(Data())
    write_manifest(tmp_path, topology, {"state": "ended", "beside": str(tmp_path)})
    topology = workers.completed(topology, dataset.shape, dataset.classes)
    made = network("dense", dataset.shape, dataset.classes)
    method = Method(topology.workers["me"], made.tensors)
    towards_0 = Problem(lambda theta, _: (1.0, theta), lambda theta, _: 1.0)
    worker = begun("me", 4, method, Model(made))
    for _ in range(3):
        worker = descend(method, worker, towards_0, [0] * method.batches(worker.shared.directions)).worker
    checkpoint.write(tmp_path / "checkpoints", 0, "me", checkpoint.pack(worker.save(), {}))
    checkpoint.complete(tmp_path / "checkpoints", 0, {"me": worker.step})

    (found,) = probe.probes(tmp_path)
    assert found.step == worker.step and np.array_equal(found.theta_D, worker.shared.theta)
    numbers = probe.rows(4, dataset)
    x = batches.features(dataset.train, numbers, dataset.scale, dataset.offset)
    assert found.loss(found.theta_D) == Model(made).evaluate(worker.shared.theta, x, dataset.train.labels[numbers])[0]
    if kind is None:
        assert found.directions is None and found.basis is None
        return
    assert type(found.directions).__name__ == kind and found.name == worker.name and found.name.sequence == 3
    assert (found.basis is None) == (kind == "Past")
    there, here = (np.stack(list(columns(d, worker.name))) for d in (found.directions, worker.shared.directions))
    assert np.array_equal(there, here)


def test_without_a_complete_set_there_is_nothing_to_look_at(run, tmp_path):
    with pytest.raises(ValueError, match=r"no complete checkpoint set.*every: 100"):
        probe.probes(tmp_path)
