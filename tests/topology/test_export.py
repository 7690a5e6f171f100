"""An exported learner, loaded by a process that has Keras alone, gives the same logits."""

import subprocess
import sys

import numpy as np
import pytest

from actors import checkpoint
from learners.mach import Mach, Shape
from learners.optimizers import Rule
from topology.export import export

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


@pytest.mark.parametrize("children", [(), (4, 3)])
def test_the_same_logits_without_this_project(tmp_path, children):
    network = saved(tmp_path, children)
    out = export(tmp_path, "top")
    examples = np.random.default_rng(0).integers(0, 256, (9, 3, 4)).astype(np.uint8)
    np.save(tmp_path / "in.npy", examples)
    command = [sys.executable, "-I", "-c", LOADER, str(out), str(tmp_path / "in.npy"), str(tmp_path / "out.npy")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, timeout=120)
    scaled = examples.reshape(9, 12).astype(np.float32) / np.float32(255) - np.float32(0.5)
    kernel, bias = (variable.numpy() for variable in network.head)
    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), network.embed(scaled) @ kernel + bias, rtol=1e-4, atol=1e-5
    )


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
