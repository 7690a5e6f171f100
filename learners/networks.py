"""Dense layers as flat tuples (kernel, bias, kernel, bias, ...), and their forward pass.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras.
Kernels are (in, out). Letters: B rows of a batch.
"""

from typing import List, Sequence

import numpy as np
import tensorflow as tf


def initial(seed: int, widths: Sequence[int]) -> List[np.ndarray]:
    """Weights of a stack of layers: He et al. 2015, kernels normal with variance 2 / fan-in, biases zero.

    Args:
        seed: of a Philox generator; equal seeds give equal bits everywhere.
        widths: of input, hidden layers and output.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    layers = []
    for fan_in, fan_out in zip(widths[:-1], widths[1:]):
        kernel = generator.standard_normal((fan_in, fan_out), dtype=np.float32)
        layers += [kernel * np.float32((2.0 / fan_in) ** 0.5), np.zeros(fan_out, np.float32)]
    return layers


def dense(layers: Sequence[tf.Tensor], x_BI: tf.Tensor) -> tf.Tensor:
    """ReLU layers one after the other; [B, in] to [B, out of the last]."""
    for kernel, bias in zip(layers[::2], layers[1::2]):
        x_BI = tf.nn.relu(x_BI @ kernel + bias)
    return x_BI


def linear(layer: Sequence[tf.Tensor], x_BI: tf.Tensor) -> tf.Tensor:
    """One layer without activation; [B, in] to [B, out]."""
    kernel, bias = layer
    return x_BI @ kernel + bias


def dropout(x_BI: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Zero a share `rate` of the entries and scale the others by 1 / (1 - rate); equal `seed` [2], equal mask."""
    if rate == 0.0:
        return x_BI
    kept = tf.random.stateless_uniform(tf.shape(x_BI), seed) >= rate
    return tf.where(kept, x_BI / (1.0 - rate), tf.zeros_like(x_BI))
