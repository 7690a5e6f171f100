"""One learner as a Keras model of its own: the synthetic input is inside, so it needs neither its children nor us."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from actors import checkpoint


def export(run: Path, learner: str, out: Optional[Path] = None) -> Path:
    """Write `learner`, as of the newest complete checkpoint set of `run`, to a .keras file; returns its path.

    The model maps examples as the data set has them (unscaled, in their own shape) to logits [B, C].

    Raises:
        ValueError: no complete set, no such learner or not of kind mach, or a file name that Keras does not take.
    """
    found, ignored = checkpoint.newest(run / "checkpoints")
    if found is None:
        raise ValueError(
            "\n".join([f"{run}: no complete checkpoint set: checkpoint: {{every: 100}} makes them", *ignored])
        )
    if learner not in found.steps:
        raise ValueError(f"{run}: {learner!r} is not among its learners: {', '.join(found.steps)}")
    out = out or run / f"{learner}.keras"
    if out.suffix != ".keras":
        raise ValueError(f"{out}: the name must end in .keras")
    state, about = checkpoint.unpack(checkpoint.read(found, learner))
    if "shared/clock" in state:
        raise ValueError(f"{run}: {learner!r} is not of kind mach; only these can be exported yet")
    out.parent.mkdir(parents=True, exist_ok=True)
    model(state, about).save(out)
    return out


def model(state: checkpoint.State, about: Mapping[str, Any]) -> Any:
    """A Keras model with the weights of `state`; `about` has the data's example shape, scale and offset."""
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

    examples = keras.Input(shape=tuple(about["example"]), name="examples")
    x = keras.layers.Flatten()(keras.layers.Rescaling(about["scale"], about["offset"])(examples))
    if "synthetic/0" in state:
        x = keras.layers.Concatenate()([x, stack(x, "synthetic")])
    return keras.Model(examples, stack(stack(x, "encoder"), "head", last=None), name=about["learner"])
