"""One learner as a Keras model of its own, from the newest checkpoint set: it needs neither its children nor us."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from actors import checkpoint, quiet
from learners.layout import POOLED, Network, image
from learners.options import group_of
from learners.records import file_name


def export(run: Path, learner: str, out: Optional[Path] = None) -> Path:
    """Write `learner`, as of the newest complete checkpoint set of `run`, to a .keras file; returns its path.

    The model maps examples as the data set has them (unscaled, in their own shape) to logits [B, C]. A Mach learner has
    its synthetic input inside. A worker of random bases has the weights T, which all workers share; a network of the
    user's gives what it gives (probabilities if it ends in a softmax), and whoever loads it needs its own classes.

    Raises:
        ValueError: no complete set, no such learner, a file name that Keras does not take, or a network of the user's
            that can't be built here as it was.
    """
    found, ignored = checkpoint.newest(run / "checkpoints")
    if found is None:
        raise ValueError(
            "\n".join([f"{run}: no complete checkpoint set: checkpoint: {{every: 100}} makes them", *ignored])
        )
    if learner not in found.steps:
        raise ValueError(f"{run}: {learner!r} is not among its learners: {', '.join(found.steps)}")
    out = out or run / f"{file_name(learner)}.keras"
    if out.suffix != ".keras":
        raise ValueError(f"{out}: the name must end in .keras")
    quiet.load("keras")
    state, about = checkpoint.unpack(checkpoint.read(found, learner))
    made = _worker(run, learner, state, about) if "shared/clock" in state else model(state, about)
    out.parent.mkdir(parents=True, exist_ok=True)
    made.save(out)
    return out


def model(state: checkpoint.State, about: Mapping[str, Any]) -> Any:
    """A Mach learner's model with the weights of `state`; `about` has the data's example shape, scale and offset."""
    import keras

    def stack(x: Any, part: str, *, last: Optional[str] = "relu") -> Any:
        kernels = sum(name.startswith(f"{part}/") for name in state) // 2
        for i in range(kernels):
            kernel, bias = state[f"{part}/{2 * i}"], state[f"{part}/{2 * i + 1}"]
            activation = last if i == kernels - 1 else "relu"
            layer = keras.layers.Dense(len(bias), activation=activation, name=f"{part}_{i}")
            x = layer(x)
            layer.set_weights([kernel, bias])
        return x

    examples, x = _scaled(about)
    x = keras.layers.Flatten()(x)
    if "synthetic/0" in state:
        x = keras.layers.Concatenate()([x, stack(x, "synthetic")])
    return keras.Model(examples, stack(stack(x, "encoder"), "head", last=None), name=about["learner"])


def _worker(run: Path, name: str, state: checkpoint.State, about: Mapping[str, Any]) -> Any:
    """A worker's model with the weights T."""
    import keras

    from actors.rbd import saved
    from learners.models import Model
    from topology import parse

    topology = parse.load(run / "chain.yaml")
    options = topology.workers[group_of(name)]
    beside = Path(json.loads((run / "run.json").read_text()).get("beside", "."))
    example, classes = tuple(about["example"]), about["classes"]
    network, worker = saved(name, topology.seed, options, example, classes, beside, state)
    theta_D = worker.shared.theta
    examples, x = _scaled(about)
    found = _layers(network.network, theta_D, x) if isinstance(network, Model) else network.at(theta_D)(x)
    return keras.Model(examples, found, name=file_name(name))


def _scaled(about: Mapping[str, Any]) -> tuple[Any, Any]:
    """Examples as they are, and as learners see them."""
    import keras

    examples = keras.Input(shape=tuple(about["example"]), name="examples")
    return examples, keras.layers.Rescaling(about["scale"], about["offset"])(examples)


def _layers(network: Network, theta_D: NDArray[np.float32], x: Any) -> Any:
    """The logits of a network of ours, as layers of Keras."""
    from keras import layers

    if network.kind == "base_conv":
        x = layers.Reshape(image(network.example))(x)
    pairs = list(zip(network.tensors[::2], network.tensors[1::2], strict=True))
    for i, (kernel, bias) in enumerate(pairs):
        width, activation = kernel.shape[-1], "relu" if i + 1 < len(pairs) else None
        convolution = len(kernel.shape) == 4
        if convolution:
            layer = layers.Conv2D(width, kernel.shape[:2], activation=activation)
        else:
            x, layer = layers.Flatten()(x), layers.Dense(width, activation=activation)
        x = layer(x)
        layer.set_weights([theta_D[tensor.place].reshape(tensor.shape) for tensor in (kernel, bias)])
        if convolution and POOLED[i]:
            x = layers.MaxPooling2D(2)(x)
    return x
