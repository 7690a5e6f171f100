"""Charges and scalar products, summed over each unit's synapses. NumPy, float64.

A network is a list of tensors of any float type; what is returned has a value for every unit of all laws, one law
after the other [N]. Signed sums count a law's signs; unsigned ones are the norms that errors are relative to.
"""

from typing import Any, List, Sequence

import numpy as np
from numpy.typing import NDArray

from learners.layout import Tensor
from learners.mechanics.symmetries import Law, Term

Doubles = NDArray[np.float64]
Tensors = Sequence[NDArray[Any]]


def split(tensors: Sequence[Tensor], theta_D: NDArray[Any]) -> List[NDArray[Any]]:
    """A flat vector as its tensors; no copies."""
    return [theta_D[t.place].reshape(t.shape) for t in tensors]


def charges(laws: Sequence[Law], weights: Tensors) -> Doubles:
    """T, S or R of every unit [N]."""
    return _joined([_one(law, weights, weights) if law.degree == 2 else _linear(law, weights) for law in laws])


def products(laws: Sequence[Law], one: Tensors, other: Tensors) -> Doubles:
    """<one, other> of every unit [N], signed; 0 for laws of degree 1."""
    return _joined([_one(law, one, other) if law.degree == 2 else np.zeros(law.units) for law in laws])


def along(laws: Sequence[Law], weights: Tensors, vector: Tensors) -> Doubles:
    """What the charge's own direction makes of a vector [N]: <theta, x>_signed, or <1, x> for laws of degree 1.

    0 for a gradient: that is the identity.
    """
    return _joined([_one(law, weights, vector) if law.degree == 2 else _linear(law, vector) for law in laws])


def sizes(laws: Sequence[Law], weights: Tensors) -> Doubles:
    """What errors of charges are relative to [N]: |W|^2 of all of a unit's synapses, or the sum of |w|."""
    return _joined([_size(law, weights) for law in laws])


def lengths(laws: Sequence[Law], weights: Tensors, gradient: Tensors) -> Doubles:
    """What `along` of a gradient is relative to [N]: |theta| |g| of the unit's synapses, or sqrt(n) |g|."""
    return _joined([_length(law, weights, gradient) for law in laws])


def identity(laws: Sequence[Law], weights: Tensors, gradient: Tensors) -> Doubles:
    """The identity's residual |along| / length [N]; 0 where the gradient is."""
    found, length = np.abs(along(laws, weights, gradient)), lengths(laws, weights, gradient)
    return np.divide(found, length, out=np.zeros_like(found), where=length > 0)


def by_law(laws: Sequence[Law], values_N: NDArray[Any]) -> List[NDArray[Any]]:
    """What has a value for every unit [N], law by law [U]; no copies."""
    return np.split(values_N, np.cumsum([law.units for law in laws], dtype=int)[:-1]) if laws else []


def degrees(laws: Sequence[Law]) -> Doubles:
    """Of every unit's charge [N]."""
    return _joined([np.full(law.units, float(law.degree)) for law in laws])


def _joined(parts: List[Doubles]) -> Doubles:
    return np.concatenate(parts) if parts else np.zeros(0)


def _summed(term: Term, values: NDArray[Any]) -> Doubles:
    viewed = values.reshape(term.view).astype(np.float64, copy=False)
    others = tuple(axis for axis in range(len(term.view)) if axis != term.axis)
    found: Doubles = np.sum(viewed, axis=others).reshape(-1)
    return found


def _double(values: NDArray[Any]) -> Doubles:
    return np.asarray(values, np.float64)


def _one(law: Law, one: Tensors, other: Tensors) -> Doubles:
    parts = [t.sign * _summed(t, _double(one[t.tensor]) * _double(other[t.tensor])) for t in law.terms]
    found: Doubles = np.sum(parts, axis=0)
    return found


def _linear(law: Law, vector: Tensors) -> Doubles:
    found: Doubles = np.sum([t.sign * _summed(t, vector[t.tensor]) for t in law.terms], axis=0)
    return found


def _squares(law: Law, vector: Tensors) -> Doubles:
    terms = law.terms + law.beside
    found: Doubles = np.sum([_summed(t, _double(vector[t.tensor]) ** 2) for t in terms], axis=0)
    return found


def _size(law: Law, weights: Tensors) -> Doubles:
    if law.degree == 2:
        return _squares(law, weights)
    found: Doubles = np.sum([_summed(t, np.abs(weights[t.tensor])) for t in law.terms + law.beside], axis=0)
    return found


def _length(law: Law, weights: Tensors, gradient: Tensors) -> Doubles:
    around = _squares(law, weights) if law.degree == 2 else _counts(law)
    found: Doubles = np.sqrt(around * _squares(law, gradient))
    return found


def _counts(law: Law) -> Doubles:
    """Synapses of each unit."""
    found: Doubles = np.sum([_summed(t, np.ones(t.view)) for t in law.terms + law.beside], axis=0)
    return found
