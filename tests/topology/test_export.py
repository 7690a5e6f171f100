"""An exported learner, loaded by a process that has Keras alone, gives the same logits."""

import subprocess
import sys

import numpy as np
import pytest

from actors import checkpoint, rbd
from learners.mach import Mach, Shape
from learners.models import Model
from learners.optimizers import Rule
from learners.rbd.defaults import filled
from learners.rbd.descent import Problem, descend
from learners.rbd.workers import Method
from topology import parse
from topology.export import export
from topology.outcome import write_manifest

LOADER = """
import sys
import keras, numpy as np
assert not any(name in sys.modules for name in ("learners", "actors", "topology"))
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[3], model(np.load(sys.argv[2])).numpy())
"""


def saved(folder, children):
    shape = Shape(12, 5, children, (16, 8), 6, (7,), batch=4, gradient_rows=0, answer_rows=0)
    network = Mach(shape, Rule(), seed=3)
    about = {"learner": "top", "example": [3, 4], "scale": 1 / 255, "offset": -0.5}
    checkpoint.write(folder / "checkpoints", 0, "top", checkpoint.pack(network.save(), about))
    checkpoint.complete(folder / "checkpoints", 0, {"top": 0})
    return network


def loaded(folder, out, example):
    """Rows as a worker has them, and what a process without this project makes of them as they were before."""
    examples = np.random.default_rng(0).integers(0, 256, (9, *example)).astype(np.uint8)
    np.save(folder / "in.npy", examples)
    command = [sys.executable, "-I", "-c", LOADER, str(out), str(folder / "in.npy"), str(folder / "out.npy")]
    subprocess.run(command, check=True, cwd=folder, capture_output=True, timeout=120)
    return examples.reshape(9, -1).astype(np.float32) / np.float32(255) - np.float32(0.5), np.load(folder / "out.npy")


@pytest.mark.parametrize("children", [(), (4, 3)])
def test_the_same_logits_without_this_project(tmp_path, children):
    network = saved(tmp_path, children)
    scaled, found = loaded(tmp_path, export(tmp_path, "top"), (3, 4))
    kernel, bias = (variable.numpy() for variable in network.head)
    np.testing.assert_allclose(found, network.embed(scaled) @ kernel + bias, rtol=1e-4, atol=1e-5)


MODULE = """
import keras
def model(example, classes):
    layers = keras.layers
    before = [keras.Input(example), layers.Flatten(), layers.BatchNormalization(momentum=0.5), layers.Dropout(0.5)]
    return keras.Sequential([*before, layers.Dense(classes)])
"""
WORKERS = {
    "dense": ("kind: rbd, network: dense", (3, 4)),
    "base_conv": ("kind: local, network: base_conv", (18, 19)),
    "the user's": ("kind: sgd, network: machworks_user_exported:model", (3, 4)),
}


@pytest.mark.parametrize(("options", "example"), WORKERS.values(), ids=WORKERS)
def test_a_worker_has_the_logits_of_its_shared_weights(tmp_path, monkeypatch, options, example):
    monkeypatch.delitem(sys.modules, "machworks_user_exported", raising=False)
    (tmp_path / "machworks_user_exported.py").write_text(MODULE)
    (tmp_path / "chain.yaml").write_text(
        f"{{version: 1, name: x, seed: 4, data: {{name: x.npz}}, learners: {{me: {{{options}, steps: 50}}}}}}"
    )
    topology = parse.load(tmp_path / "chain.yaml")
    write_manifest(tmp_path, topology, {"state": "ended", "beside": str(tmp_path)})
    model = rbd.model_of("me", 4, topology.workers["me"], example, 3, tmp_path)
    method = Method(filled(topology.workers["me"], model.network.size), model.network.tensors)
    gradients = Problem(
        lambda theta, _: (1.0, 0.1 * np.sin(np.arange(len(theta), dtype=np.float32))), lambda theta, _: 1.0
    )
    worker = rbd.begun("me", 4, method, model)
    begun = worker.shared.theta
    worker = descend(method, worker, gradients, [0] * method.batches(worker.shared.directions)).worker
    kept = {}
    if not isinstance(model, Model):  # what batch normalisation holds has moved too
        model.loss_and_gradient(begun, np.random.default_rng(1).random((9, 12), np.float32), np.zeros(9, np.int32))
        kept = model.save()
    about = {"learner": "me", "example": example, "classes": 3, "scale": 1 / 255, "offset": -0.5}
    checkpoint.write(tmp_path / "checkpoints", 0, "me", checkpoint.pack({**worker.save(), **kept}, about))
    checkpoint.complete(tmp_path / "checkpoints", 0, {"me": worker.step})

    scaled, found = loaded(tmp_path, export(tmp_path, "me"), example)
    np.testing.assert_allclose(found, model.logits(worker.shared.theta, scaled), rtol=1e-4, atol=1e-4)
    assert np.abs(found - model.logits(begun, scaled)).max() > 1e-2


@pytest.mark.parametrize(
    ("learner", "out", "words"),
    [("tpo", None, "'tpo' is not among its learners: top"), ("top", "model.h5", "must end in .keras")],
)
def test_what_cannot_be_exported_is_said(tmp_path, learner, out, words):
    saved(tmp_path, ())
    with pytest.raises(ValueError, match=words):
        export(tmp_path, learner, out and tmp_path / out)


def test_a_run_without_a_complete_set_is_named(tmp_path):
    with pytest.raises(ValueError, match="no complete checkpoint set"):
        export(tmp_path, "top")
