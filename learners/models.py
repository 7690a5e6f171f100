"""Networks whose weights are one flat vector: loss, accuracy and gradient as one compiled call.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras.
Kernels are (in, out), or (height, width, in, out). Letters: D weights, B rows of a batch, F features, C classes.
"""

from typing import Any, Tuple

import numpy as np
import tensorflow as tf

from learners.layout import POOLED, Network, image


def initial(network: Network, seed: int) -> np.ndarray:
    """Weights, float32 [D]: He et al. 2015, kernels normal with variance 2 / fan-in, the rest zeros."""
    generator = np.random.Generator(np.random.Philox(seed))
    theta = np.zeros(network.size, np.float32)
    for tensor in network.tensors:
        if tensor.kind == "kernel":
            fan_in = int(np.prod(tensor.shape[:-1]))
            values = generator.standard_normal(tensor.stop - tensor.start, dtype=np.float32)
            theta[tensor.place] = values * np.float32((2.0 / fan_in) ** 0.5)
    return theta


def logits(network: Network, theta_D: tf.Tensor, x_BF: tf.Tensor) -> tf.Tensor:
    """The network's output before the softmax, [B, C]."""
    parts = [tf.reshape(theta_D[t.start : t.stop], t.shape) for t in network.tensors]
    layers = list(zip(parts[::2], parts[1::2]))
    if network.kind == "base_conv":
        x = tf.reshape(x_BF, (-1, *image(network.example)))
        for (kernel, bias), pooled in zip(layers, POOLED):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "VALID") + bias)
            x = _pooled(x) if pooled else x
        layers = layers[len(POOLED) :]
        x_BF = tf.reshape(x, (-1, int(np.prod(x.shape[1:]))))
    for kernel, bias in layers[:-1]:
        x_BF = tf.nn.relu(x_BF @ kernel + bias)
    kernel, bias = layers[-1]
    return x_BF @ kernel + bias


def _pooled(x: tf.Tensor) -> tf.Tensor:
    """The largest of every 2 x 2. By reshaping: XLA's own gradient of pooling is slow on a CPU."""
    height, width, channels = x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    x = tf.reshape(x[:, : 2 * height, : 2 * width], (-1, height, 2, width, 2, channels))
    return tf.reduce_max(x, (2, 4))


class Model:
    """A network's compiled functions. It holds no weights: they come with every call.

    Batches of other sizes than the first are compiled anew; `evaluate` takes any number of rows in chunks of one size.
    """

    def __init__(self, network: Network, rows: int = 512) -> None:
        """`rows`: of a chunk of `evaluate`."""
        self.network, self._rows = network, rows
        self._gradient = tf.function(self._loss_and_gradient, jit_compile=True, autograph=False)
        self._sums = tf.function(self._summed, jit_compile=True, autograph=False)

    def loss_and_gradient(
        self, theta_D: np.ndarray, x_BF: np.ndarray, labels_B: np.ndarray
    ) -> Tuple[float, float, np.ndarray]:
        """Mean cross-entropy, accuracy, and the loss's gradient, float32 [D]."""
        loss, accuracy, gradient_D = self._gradient(theta_D, x_BF, labels_B)
        return float(loss), float(accuracy), gradient_D.numpy()

    def evaluate(self, theta_D: np.ndarray, x_NF: np.ndarray, labels_N: np.ndarray) -> Tuple[float, float]:
        """Mean cross-entropy and accuracy over any number of rows."""
        sums, size = np.zeros(2), self._rows
        for i in range(0, len(x_NF), size):
            x, labels = x_NF[i : i + size], labels_N[i : i + size]
            missing = size - len(x)
            counted = np.arange(size) < len(x)
            x, labels = np.pad(x, ((0, missing), (0, 0))), np.pad(labels, (0, missing))
            sums += self._sums(theta_D, x, labels, counted.astype(np.float32)).numpy()
        return float(sums[0] / len(x_NF)), float(sums[1] / len(x_NF))

    def logits(self, theta_D: tf.Tensor, x_BF: tf.Tensor) -> Any:
        """What the cross-entropy is taken of, [B, C]; within compiled functions of others."""
        return logits(self.network, theta_D, x_BF)

    def _scored(self, theta_D: tf.Tensor, x_BF: tf.Tensor, labels_B: tf.Tensor) -> Tuple[Any, Any]:
        found = self.logits(theta_D, x_BF)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_B, logits=found)
        hits = tf.equal(tf.argmax(found, 1, output_type=tf.int32), labels_B)
        return losses, tf.cast(hits, tf.float32)

    def _loss_and_gradient(self, theta_D: tf.Tensor, x_BF: tf.Tensor, labels_B: tf.Tensor) -> Tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(theta_D)
            losses, hits = self._scored(theta_D, x_BF, labels_B)
            loss = tf.reduce_mean(losses)
        return loss, tf.reduce_mean(hits), tape.gradient(loss, theta_D)

    def _summed(self, theta_D: tf.Tensor, x_BF: tf.Tensor, labels_B: tf.Tensor, counted_B: tf.Tensor) -> Any:
        return tf.linalg.matvec(tf.stack(self._scored(theta_D, x_BF, labels_B)), counted_B)
