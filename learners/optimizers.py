"""Update rules as pure functions; schedules of the learning rate are those of `learners.schedules`.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras. The arithmetic is written out because
the conservation laws follow the exact rule. All rules are Keras's (the velocity holds the rate), save that Adam's
epsilon is added after the bias correction, as in the paper.
"""

from typing import List, NamedTuple, Sequence, Tuple

import tensorflow as tf

from learners.footprint import SLOTS as SLOTS
from learners.schedules import rate as rate


class Rule(NamedTuple):
    """An update rule and its constants; see `learners.options.Optimizer` for their meaning."""

    name: str = "adam"
    momentum: float = 0.9
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.0
    decay: str = "coupled"


def delta(
    rule: Rule, theta: tf.Tensor, grad: tf.Tensor, slots: Sequence[tf.Tensor], rate: tf.Tensor, count: tf.Tensor
) -> Tuple[tf.Tensor, List[tf.Tensor]]:
    """What one update adds to `theta`, and the new slots.

    With d = grad (+ weight_decay theta if the decay is coupled):
        sgd       -rate d
        momentum  v <- momentum v - rate d;  v
        nesterov  v <- momentum v - rate d;  momentum v - rate d   (Sutskever et al. 2013, as in Keras)
        adam      m, s: running means of d, d^2;  -rate m' / (sqrt(s') + epsilon), ' = bias-corrected (Kingma, Ba 2015)
    Decoupled decay adds -rate weight_decay theta (Loshchilov, Hutter 2019).

    Args:
        count: updates of this objective including this one, float32, for Adam's bias correction.
    """
    if rule.weight_decay and rule.decay == "coupled":
        grad = grad + rule.weight_decay * theta
    if rule.name == "sgd":
        step, new = -rate * grad, []
    elif rule.name in ("momentum", "nesterov"):
        velocity = rule.momentum * slots[0] - rate * grad
        step = velocity if rule.name == "momentum" else rule.momentum * velocity - rate * grad
        new = [velocity]
    elif rule.name == "adam":
        first = rule.beta_1 * slots[0] + (1.0 - rule.beta_1) * grad
        second = rule.beta_2 * slots[1] + (1.0 - rule.beta_2) * tf.square(grad)
        mean = first / (1.0 - tf.pow(rule.beta_1, count))
        root = tf.sqrt(second / (1.0 - tf.pow(rule.beta_2, count)))
        step, new = -rate * mean / (root + rule.epsilon), [first, second]
    else:
        raise ValueError(f"optimizer.name: {rule.name!r} is not a rule; one of {', '.join(SLOTS)}")
    if rule.weight_decay and rule.decay == "decoupled":
        step = step - rate * rule.weight_decay * theta
    return step, new
