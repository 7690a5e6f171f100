"""A user's Keras model, `module:function`, behind the same calls as `learners.models`.

The model is called statelessly: its trainable variables are slices of the flat vector theta [D] that comes with every
call, and what Keras created for them is only the start. `function(example shape, classes)` must return a built model
that maps [B, *example] to logits [B, C], or to probabilities if its last layer is a softmax. It must come to the same
start whenever it is called; the seeds of Python, NumPy, Keras and TensorFlow are set before. Losses that its layers add
(penalties on weights, say) are part of the loss in training.

**Non-trainable state** (moving means of batch normalisation, seeds of dropout) is not among the weights: directions do
not move it, and it does not travel. Each worker keeps its own, changed by its own training batches and by nothing else;
evaluation uses the state of the worker that evaluates, and so do the offspring of nes, which leave it as it began. It
is part of a worker's checkpoint (`save`, `restore`), not of what replicas are compared by: workers with equal weights
may evaluate a little differently.
On TensorFlow's CPU and GPU; Keras must use TensorFlow as its backend.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from actors import own
from actors.formats import fault
from learners.layout import Network, Tensor, laid_out

Array = NDArray[Any]


def build(place: str, example: tuple[int, ...], classes: int, folder: Path = Path(), seed: int = 0) -> Any:
    """The model that `module:function` returns; `folder` is the run file's.

    Raises:
        ValueError: there is no such function, or what it returned is not a built Keras model for these examples.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise fault(place, f"the backend {keras.backend.backend()}", "tensorflow", "set KERAS_BACKEND=tensorflow")
    keras.utils.set_random_seed(seed % 2**32)
    takes = f"that takes {example} and {classes}, the shape of an example and the number of classes"
    model = own.called(place, place, folder, example, classes, takes=takes, expected="a built Keras model")
    if not isinstance(model, keras.Model) or not model.built:
        found = f"a {type(model).__name__}{' that is not built' if isinstance(model, keras.Model) else ''}"
        raise fault(place, found, "a built Keras model", "return one that begins with keras.Input")
    maps = _mapped(place, model, example)
    if maps != (None, classes):
        raise fault(place, f"a model that maps to {maps}", f"(None, {classes})", "end with a value for each class")
    if not model.trainable_variables:
        raise fault(place, "a model without trainable weights", "some", "leave a layer trainable")
    if odd := [f"{v.path} of type {v.dtype}" for v in model.trainable_variables if v.dtype != "float32"]:
        raise fault(place, ", ".join(odd), "weights of type float32", "set the dtype of its layers")
    return model


def _mapped(place: str, model: Any, example: tuple[int, ...]) -> Any:
    """The shape that examples are mapped to."""
    import keras

    wanted = (None, *example)
    takes = getattr(model, "input_shape", wanted)  # a model that is a class need not know
    fits = isinstance(takes, tuple) and len(takes) == len(wanted)
    try:
        if not fits or any(a not in (None, b) for a, b in zip(takes, wanted, strict=True)):
            raise ValueError(f"a model that takes {takes}")
        found = model(keras.KerasTensor(wanted))
    except Exception as error:  # whatever its layers say of a shape
        said = " ".join(str(error).split())
        remedy = "begin with keras.Input of the shape that the function is given"
        raise fault(place, said, f"a model that takes {wanted}", remedy) from error
    return tuple(found.shape) if isinstance(found, keras.KerasTensor) else f"a {type(found).__name__}"


class KerasModel:
    """A model's compiled functions and its non-trainable state."""

    def __init__(self, model: Any, example: tuple[int, ...], classes: int, name: str = "module:function") -> None:
        self._model, self._example = model, example
        self.network = Network(name, example, classes, _tensors(model))
        self._state: list[Array] = [v.numpy() for v in model.non_trainable_variables]
        self._probabilities = _ends_in_softmax(model)
        # without XLA: not all layers of Keras go through it, and its gradient of pooling takes twice the time on a CPU
        self._gradient = tf.function(self._loss_and_gradient, autograph=False)
        self._scores = tf.function(self._evaluated, autograph=False)

    @property
    def initial(self) -> NDArray[np.float32]:
        """The weights that Keras has drawn, float32 [D]."""
        return np.concatenate([np.ravel(v.numpy()) for v in self._model.trainable_variables])

    def loss_and_gradient(
        self, theta_D: NDArray[np.float32], x_BF: Array, labels_B: Array
    ) -> tuple[float, float, NDArray[np.float32]]:
        """Mean cross-entropy and added losses, accuracy, gradient [D] in training mode; non-trainable state goes on."""
        loss, accuracy, gradient_D, state = self._gradient(theta_D, self._state, x_BF, labels_B)
        self._state = [one.numpy() for one in state]
        return float(loss), float(accuracy), gradient_D.numpy()

    def evaluate(
        self, theta_D: NDArray[np.float32], x_NF: Array, labels_N: Array, rows: int = 512
    ) -> tuple[float, float]:
        """Mean cross-entropy and accuracy, in inference mode."""
        sums = np.zeros(2)
        for i in range(0, len(x_NF), rows):
            sums += self._scores(theta_D, self._state, x_NF[i : i + rows], labels_N[i : i + rows]).numpy()
        return float(sums[0] / len(x_NF)), float(sums[1] / len(x_NF))

    def logits(self, theta_D: Any, x_BF: Any) -> Any:
        """What the cross-entropy is taken of, [B, C], in inference mode."""
        return self._as_logits(self._called(theta_D, self._state, x_BF, training=False)[0])

    def at(self, theta_D: NDArray[np.float32]) -> Any:
        """The user's model itself, with these weights and the present state in its variables."""
        values = [theta_D[t.place].reshape(t.shape) for t in self.network.tensors] + self._state
        variables = self._model.trainable_variables + self._model.non_trainable_variables
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return self._model

    def save(self) -> dict[str, Array]:
        """The non-trainable state, by name."""
        return {f"non_trainable/{i}": array for i, array in enumerate(self._state)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state that `save` gave."""
        self._state = [state[f"non_trainable/{i}"] for i in range(len(self._state))]

    def _called(self, theta_D: Any, state: list[Any], x_BF: Any, training: bool) -> tuple[Any, list[Any], list[Any]]:
        import keras

        weights = [tf.reshape(theta_D[t.start : t.stop], t.shape) for t in self.network.tensors]
        x = tf.reshape(x_BF, (-1, *self._example))
        variables = self._model.trainable_variables + self._model.non_trainable_variables
        mapping = list(zip(variables, [*weights, *state], strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            # not `stateless_call`, which asks more of a class's `call`: that it takes `training`
            found, added = self._model(x, training=training), self._model.losses
        return found, [scope.get_current_value(v) for v in self._model.non_trainable_variables], added

    def _as_logits(self, found: Any) -> Any:
        return tf.math.log(tf.maximum(found, 1e-12)) if self._probabilities else found

    def _scored(self, found: Any, labels_B: Any) -> tuple[Any, Any]:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_B, logits=self._as_logits(found))
        return losses, tf.cast(tf.equal(tf.argmax(found, 1, output_type=tf.int32), labels_B), tf.float32)

    def _loss_and_gradient(self, theta_D: Any, state: list[Any], x_BF: Any, labels_B: Any) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            tape.watch(theta_D)
            found, state, added = self._called(theta_D, state, x_BF, training=True)
            losses, hits = self._scored(found, labels_B)
            loss = tf.add_n([tf.reduce_mean(losses), *added])
        return loss, tf.reduce_mean(hits), tape.gradient(loss, theta_D), state

    def _evaluated(self, theta_D: Any, state: list[Any], x_BF: Any, labels_B: Any) -> Any:
        losses, hits = self._scored(self._called(theta_D, state, x_BF, training=False)[0], labels_B)
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(hits)])


def _tensors(model: Any) -> tuple[Tensor, ...]:
    """The trainable variables, in Keras's order. Layers that have none are not counted, nor are layers of layers.

    Keras numbers names by what its process has made before; here they say which layer of this model it is.
    """
    owners = {id(variable): layer for layer in _leaves(model) for variable in layer.trainable_variables}
    numbers: dict[int, int] = {}
    rows = []
    for variable in model.trainable_variables:
        owner = owners.get(id(variable), model)
        number, shape = numbers.setdefault(id(owner), len(numbers)), tuple(variable.shape)
        rest = variable.path.partition(f"{owner.name}/")[2] or variable.name
        name = f"{re.sub('_[0-9]+$', '', owner.name)}_{number}/{rest}"
        rows.append((name, number, "kernel" if len(shape) > 1 else "rest", shape))
    return laid_out(rows)


def _leaves(model: Any) -> Iterator[Any]:
    """Its layers, and in place of a model among them that model's."""
    for layer in model.layers:
        yield from _leaves(layer) if getattr(layer, "layers", None) else [layer]


def _ends_in_softmax(model: Any) -> bool:
    import keras

    *_, last = [model, *_leaves(model)]
    named = getattr(getattr(last, "activation", None), "__name__", "")
    return isinstance(last, keras.layers.Softmax) or named == "softmax"


def answer(place: str, example: str, classes: str, folder: str, out: str) -> None:
    """For a process that only builds a model: what its tensors are, or what is wrong with it, as JSON in a file."""
    try:
        tensors = _tensors(build(place, tuple(json.loads(example)), int(classes), Path(folder)))
        found: dict[str, Any] = {"tensors": [tensor[:4] for tensor in tensors]}
    except ValueError as error:
        found = {"fault": str(error)}
    Path(out).write_text(json.dumps(found))
