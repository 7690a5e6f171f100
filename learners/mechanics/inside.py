"""What a compiled training step measures of itself for the laws: the sums of every step, and more of it now and then.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras. Letters: N units of all laws.
"""

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from learners.mechanics import sums
from learners.mechanics.symmetries import Law

SUMS = ("square", "moved", "own", "parents", "drive")
"""Rows of what every step measures [5, N], float32. square: <D, D>, moved: the same unsigned, own and parents: <D, u_k>
of the two buffers, drive: <theta, g> of the parents' gradient where it lacks the symmetry."""
LOOKED = ("charge", "size", "along", "gradient", "signed", "linear", "square", "moved")
"""Rows of what a step measures now and then [8, N], float64. charge, size: of the weights before it; along: of the
learner's own gradient, gradient and signed: |g|^2, unsigned and signed; linear, square, moved: <theta, delta theta> or
<1, delta theta>, |delta theta|^2 signed and unsigned (0 where the update rule has exact recursions)."""


class Objective(NamedTuple):
    """What one objective does in this step, a value per tensor of the network; None where it moves nothing."""

    gradients: List[Optional[tf.Tensor]]
    deltas: List[Optional[tf.Tensor]]  #: what is added to the weights, without decoupled decay
    buffers: List[Optional[tf.Tensor]]  #: after the step; None: the rule has none
    steps: bool = True


class Measuring(NamedTuple):
    """What to measure."""

    laws: Tuple[Law, ...]
    driven: Tuple[bool, ...]  #: per law: whether the parents' gradient lacks its symmetry
    rule: str  #: name of the update rule

    @property
    def exact(self) -> bool:
        """Whether the rule has exact recursions, which need the sums of every step."""
        return self.rule != "adam"


def every_step(what: Measuring, theta: Sequence[tf.Tensor], own: Objective, parents: Objective) -> tf.Tensor:
    """The rows of SUMS [5, N]; nothing [0, 0] where the rule has no exact recursions."""
    if not what.exact:
        return tf.zeros([0, 0])
    both = [_sum(one, other) for one, other in zip(own.deltas, parents.deltas)] if parents.steps else own.deltas
    square, moved = sums.products(what.laws, both, both)
    rows = [square, moved, *_crosses(what, square, both, own, parents)]
    parts = []
    for law, driven in zip(what.laws, what.driven):
        drive = driven and parents.steps
        parts.append(along([law], theta, parents.gradients) if drive else tf.zeros([law.units]))
    return tf.stack([*rows, tf.concat(parts, 0)])


def _crosses(
    what: Measuring, square: tf.Tensor, both: List[Optional[tf.Tensor]], own: Objective, parents: Objective
) -> Tuple[tf.Tensor, tf.Tensor]:
    """<D, u_k>, with as few sums as the rule needs."""
    nothing = tf.zeros_like(square)
    if what.rule == "sgd":
        return nothing, nothing
    alone = not any(buffer is not None for buffer in parents.buffers)
    other = nothing if alone else sums.products(what.laws, both, parents.buffers)[0]
    if what.rule == "nesterov":
        return sums.products(what.laws, both, own.buffers)[0], other
    return (square - other if parents.steps else square), other  # the deltas are the buffers


def now_and_then(
    what: Measuring,
    theta: Sequence[tf.Tensor],
    own: Objective,
    whole: Callable[[], List[Optional[tf.Tensor]]],
) -> tf.Tensor:
    """The rows of LOOKED [8, N].

    Args:
        whole: gives what is added to every tensor, with all decay.
    """
    found = sums.products(what.laws, own.gradients, own.gradients)
    rows = [*charges(what.laws, theta), along(what.laws, theta, own.gradients), found[1], found[0]]
    if what.exact:
        rows += [tf.zeros_like(found[0])] * 3
    else:
        steps = whole()
        rows += [along(what.laws, theta, steps), *sums.products(what.laws, steps, steps)]
    return tf.stack([tf.cast(row, tf.float64) for row in rows])


def charges(laws: Sequence[Law], theta: Sequence[tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Charges and sizes of every unit [N], float64."""
    doubles = [tf.cast(w, tf.float64) for w in theta]
    of_squares, of_sums = sums.products(laws, doubles, doubles), sums.linear(laws, doubles)
    squares = tf.concat([tf.fill([law.units], law.degree == 2) for law in laws], 0)
    return of_squares[0] + of_sums[0], tf.where(squares, of_squares[1], of_sums[1])


def along(laws: Sequence[Law], theta: Sequence[tf.Tensor], vector: Sequence[Optional[tf.Tensor]]) -> tf.Tensor:
    """<theta, vector> of every unit [N], signed; <1, vector> where the degree is 1."""
    return sums.products(laws, theta, vector)[0] + sums.linear(laws, vector)[0]


def _sum(one: Optional[tf.Tensor], other: Optional[tf.Tensor]) -> Optional[tf.Tensor]:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def objective(
    tensors: int, moves: Dict[int, Tuple[tf.Tensor, tf.Tensor, Optional[tf.Tensor]]], steps: bool
) -> Objective:
    """From (gradient, delta, buffer) of those tensors that it moves."""
    columns: List[List[Optional[tf.Tensor]]] = [[None] * tensors for _ in range(3)]
    for tensor, parts in moves.items():
        for column, part in zip(columns, parts):
            column[tensor] = part
    return Objective(columns[0], columns[1], columns[2], steps)
