"""Products of a loss's Hessian with vectors, at fixed rows: the exact second derivative, not a difference of gradients.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras.
Letters: D weights, N rows, B rows of a chunk, F features.
"""

from typing import Any

import numpy as np
import tensorflow as tf


class Curvature:
    """H v for the mean cross-entropy of a network over rows that stay the same.

    Of a ReLU network, H is the second derivative of the pieces between kinks; what happens at a kink is not in it.
    """

    def __init__(self, model: Any, x_NF: np.ndarray, labels_N: np.ndarray, rows: int = 512) -> None:
        """`model`: its `logits` are (theta [D], x [B, F]) -> [B, C]. `rows`: of a chunk, the last one padded."""
        self._logits, self._x, self._labels, self._rows = model.logits, x_NF, labels_N, min(rows, len(x_NF))
        self._product = tf.function(self._chunk, jit_compile=True, autograph=False)

    def product(self, theta_D: np.ndarray, vector_D: np.ndarray) -> np.ndarray:
        """H v at theta, float32 [D]; two backward passes a chunk, chunks summed in float64."""
        total = np.zeros(len(theta_D), np.float64)
        for i in range(0, len(self._x), self._rows):
            x, labels = self._x[i : i + self._rows], self._labels[i : i + self._rows]
            missing = self._rows - len(x)
            counted = (np.arange(self._rows) < len(x)).astype(np.float32)
            x, labels = np.pad(x, ((0, missing), (0, 0))), np.pad(labels, (0, missing))
            total += self._product(theta_D, vector_D, x, labels, counted).numpy()
        return (total / len(self._x)).astype(np.float32)

    def _chunk(
        self, theta_D: tf.Tensor, vector_D: tf.Tensor, x_BF: tf.Tensor, labels_B: tf.Tensor, counted_B: tf.Tensor
    ) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(theta_D)
            with tf.GradientTape() as inner:
                inner.watch(theta_D)
                found = self._logits(theta_D, x_BF)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_B, logits=found)
                loss = tf.reduce_sum(losses * counted_B)
            along = tf.tensordot(inner.gradient(loss, theta_D), vector_D, 1)
        return outer.gradient(along, theta_D)
