"""Which inputs a network uses: integrated gradients, and the loss that removing a weight would cost.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras.
Letters: B rows, I inputs of the first layer (features, then the children's embeddings), H its outputs, C classes.
"""

from typing import Callable, NamedTuple

import tensorflow as tf

Logits = Callable[[tf.Tensor], tf.Tensor]


def integrated_gradients(logits: Logits, z_BI: tf.Tensor, labels_B: tf.Tensor, points: int = 32) -> tf.Tensor:
    """Share of each input in the logit of the row's label, against an input of zeros; [B, I].

    IG_i = z_i * mean over alpha of dF/dz_i (alpha z), alpha at the midpoints of `points` equal parts of [0, 1]
    (Sundararajan, Taly, Yan 2017). Sum over i is F(z) - F(0) up to the error of the midpoint rule.
    """
    alpha_P = (tf.range(points, dtype=z_BI.dtype) + 0.5) / points
    with tf.GradientTape() as tape:
        # all points of all rows as one large batch: one pass instead of `points`
        scaled = tf.reshape(alpha_P[:, None, None] * z_BI, [-1, z_BI.shape[1]])
        tape.watch(scaled)
        chosen = tf.gather(logits(scaled), tf.tile(labels_B, [points]), axis=1, batch_dims=1)
    slopes = tf.reshape(tape.gradient(chosen, scaled), [points, -1, z_BI.shape[1]])
    return z_BI * tf.reduce_mean(slopes, 0)


class Scores(NamedTuple):
    """Per input of the first layer, [I] each."""

    pruning: tf.Tensor  #: estimated change of the mean loss when the input's weights are removed
    gradient: tf.Tensor  #: mean absolute gradient of its weights
    weight: tf.Tensor  #: mean absolute weight


def first_layer(above: Logits, kernel_IH: tf.Tensor, bias_H: tf.Tensor, z_BI: tf.Tensor, labels_B: tf.Tensor) -> Scores:
    """Scores of the first layer's weights v, grouped by input.

    pruning = sum over the input's weights of -g v + H v^2 / 2, g the gradient of the mean loss and H the mean of
    *per-example* squared gradients (Theis et al. 2018, section 3). A weight's per-example gradient is z_i delta_h,
    so sum over rows of its square is one product, (z^2)^T (delta^2).

    Args:
        above: logits [B, C] from the first layer's pre-activation [B, H].
    """
    rows = tf.cast(tf.shape(z_BI)[0], z_BI.dtype)
    with tf.GradientTape() as tape:
        pre_BH = z_BI @ kernel_IH + bias_H
        tape.watch(pre_BH)
        losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_B, logits=above(pre_BH))
    delta_BH = tape.gradient(losses_B, pre_BH)
    grad_IH = tf.matmul(z_BI, delta_BH, transpose_a=True) / rows
    curvature_IH = tf.matmul(tf.square(z_BI), tf.square(delta_BH), transpose_a=True) / rows
    pruning_IH = -grad_IH * kernel_IH + 0.5 * curvature_IH * tf.square(kernel_IH)
    return Scores(
        pruning=tf.reduce_sum(pruning_IH, 1),
        gradient=tf.reduce_mean(tf.abs(grad_IH), 1),
        weight=tf.reduce_mean(tf.abs(kernel_IH), 1),
    )
