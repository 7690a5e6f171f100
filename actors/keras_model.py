"""A user's Keras model, `module:function`, behind the same calls as `learners.models`.

The model is called statelessly: its trainable variables are slices of the flat vector theta [D] that comes with every
call, and what Keras created for them is only the start. `function(example shape, classes)` must return a built model
that maps [B, *example] to logits [B, C], or to probabilities if its last layer's activation is softmax.

**Non-trainable state** (moving means of batch normalisation, seeds of dropout) is not among the weights: directions do
not move it, and it does not travel. Each worker keeps its own, changed by its own training batches and by nothing else;
evaluation uses the state of the worker that evaluates. It is part of a worker's checkpoint (`save`, `restore`), not of
what replicas are compared by: workers with equal weights may evaluate a little differently.
On TensorFlow's CPU and GPU; Keras must use TensorFlow as its backend.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from learners.layout import Tensor, laid_out

Array = NDArray[Any]


def build(place: str, example: tuple[int, ...], classes: int) -> Any:
    """The model that `module:function` returns.

    Raises:
        ValueError: there is no such function, or what it returned is not a built Keras model for these examples.
    """
    import keras

    module, _, name = place.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"network: {place}: {error}; a function of yours was wanted, as module:function") from error
    model = function(example, classes)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"network: Keras uses {keras.backend.backend()}; set KERAS_BACKEND=tensorflow")
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"network: {place} returned {model!r}; a built Keras model was wanted: begin with keras.Input")
    if model.output_shape != (None, classes):
        raise ValueError(f"network: {place} maps to {model.output_shape}; (None, {classes}) was wanted")
    return model


class KerasModel:
    """A model's compiled functions and its non-trainable state."""

    def __init__(self, model: Any, example: tuple[int, ...]) -> None:
        self._model, self._example = model, example
        self._layers = {id(v): i for i, layer in enumerate(model.layers) for v in layer.trainable_variables}
        self.tensors: tuple[Tensor, ...] = laid_out([self._described(v) for v in model.trainable_variables])
        self._state: list[Array] = [v.numpy() for v in model.non_trainable_variables]
        last = getattr(model.layers[-1], "activation", None)
        self._probabilities = getattr(last, "__name__", "") == "softmax"
        self._gradient = tf.function(self._loss_and_gradient, jit_compile=True, autograph=False)
        self._scores = tf.function(self._evaluated, autograph=False)

    @property
    def initial(self) -> NDArray[np.float32]:
        """The weights that Keras has drawn, float32 [D]."""
        return np.concatenate([np.ravel(v.numpy()) for v in self._model.trainable_variables])

    def loss_and_gradient(
        self, theta_D: NDArray[np.float32], x_BF: Array, labels_B: Array
    ) -> tuple[float, float, NDArray[np.float32]]:
        """Mean cross-entropy, accuracy and gradient [D] in training mode; the non-trainable state goes on."""
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

    def save(self) -> dict[str, Array]:
        """The non-trainable state, by name."""
        return {f"non_trainable/{i}": array for i, array in enumerate(self._state)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over a state that `save` gave."""
        self._state = [state[f"non_trainable/{i}"] for i in range(len(self._state))]

    def _described(self, variable: Any) -> tuple[str, int, str, tuple[int, ...]]:
        shape = tuple(variable.shape)
        return variable.path, self._layers[id(variable)], "kernel" if len(shape) > 1 else "rest", shape

    def _called(self, theta_D: Any, state: list[Any], x_BF: Any, training: bool) -> tuple[Any, list[Any]]:
        weights = [tf.reshape(theta_D[t.start : t.stop], t.shape) for t in self.tensors]
        x = tf.reshape(x_BF, (-1, *self._example))
        found, state = self._model.stateless_call(weights, state, x, training=training)
        return found, state

    def _scored(self, found: Any, labels_B: Any) -> tuple[Any, Any]:
        logits = tf.math.log(tf.maximum(found, 1e-12)) if self._probabilities else found
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_B, logits=logits)
        return losses, tf.cast(tf.equal(tf.argmax(found, 1, output_type=tf.int32), labels_B), tf.float32)

    def _loss_and_gradient(self, theta_D: Any, state: list[Any], x_BF: Any, labels_B: Any) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            tape.watch(theta_D)
            found, state = self._called(theta_D, state, x_BF, training=True)
            losses, hits = self._scored(found, labels_B)
            loss = tf.reduce_mean(losses)
        return loss, tf.reduce_mean(hits), tape.gradient(loss, theta_D), state

    def _evaluated(self, theta_D: Any, state: list[Any], x_BF: Any, labels_B: Any) -> Any:
        losses, hits = self._scored(self._called(theta_D, state, x_BF, training=False)[0], labels_B)
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(hits)])
