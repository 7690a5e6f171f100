"""The sums of `learners.mechanics.charges` inside a compiled step.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras. A tensor that is None counts as 0.
Float32 is enough for what is small beside a charge; for the charges themselves tensors are cast to float64 before.

The sums over the last axis go through a product with ones: XLA's own are one long chain of additions on a CPU.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from learners.mechanics.symmetries import Law, Term

Tensors = Sequence[Optional[tf.Tensor]]


def products(laws: Sequence[Law], one: Tensors, other: Tensors) -> Tuple[tf.Tensor, tf.Tensor]:
    """<one, other> of every unit [N], signed (0 for laws of degree 1), and unsigned with what stands beside."""
    made: Dict[int, Any] = {}
    signed: List[tf.Tensor] = []
    unsigned: List[tf.Tensor] = []
    for law in laws:
        parts = [(term.sign, _summed(term, _product(made, one, other, term.tensor))) for term in law.terms]
        beside = [_summed(term, _product(made, one, other, term.tensor)) for term in law.beside]
        zero = tf.zeros([law.units], next(t.dtype for t in [*one, *other] if t is not None))
        signed.append(_added([sign * part for sign, part in parts if part is not None], zero, law.degree == 2))
        unsigned.append(_added([part for _, part in parts if part is not None] + _known(beside), zero))
    return tf.concat(signed, 0), tf.concat(unsigned, 0)


def linear(laws: Sequence[Law], vector: Tensors) -> Tuple[tf.Tensor, tf.Tensor]:
    """<1, vector> and <1, |vector|> of every unit [N] of the laws of degree 1; 0 for the others."""
    found: List[tf.Tensor] = []
    sizes: List[tf.Tensor] = []
    for law in laws:
        zero = tf.zeros([law.units], next(t.dtype for t in vector if t is not None))
        of = [vector[term.tensor] for term in law.terms]
        parts = [term.sign * _summed(term, x) for term, x in zip(law.terms, of) if x is not None]
        found.append(_added(parts, zero, law.degree == 1))
        around = [(term, vector[term.tensor]) for term in law.terms + law.beside]
        sizes.append(_added([_summed(t, tf.abs(x)) for t, x in around if x is not None], zero, law.degree == 1))
    return tf.concat(found, 0), tf.concat(sizes, 0)


def _product(made: Dict[int, Any], one: Tensors, other: Tensors, tensor: int) -> Any:
    if tensor not in made:
        left, right = one[tensor], other[tensor]
        made[tensor] = None if left is None or right is None else left * right
    return made[tensor]


def _known(parts: Sequence[Any]) -> List[Any]:
    return [part for part in parts if part is not None]


def _added(parts: Sequence[Any], zero: tf.Tensor, wanted: bool = True) -> tf.Tensor:
    return tf.add_n(list(parts)) if parts and wanted else zero


def _summed(term: Term, values: Any) -> Any:
    """Over all axes but the units'; None of None."""
    if values is None:
        return None
    last = len(term.view) - 1
    values = tf.reshape(values, term.view)
    if term.axis is not None and term.axis == last - 1:
        values = tf.reshape(tf.linalg.matvec(values, tf.ones([term.view[last]], values.dtype)), term.view[:last])
        last -= 1
    others = [axis for axis in range(last + 1) if axis != term.axis]
    return tf.reshape(tf.reduce_sum(values, others), [-1])
