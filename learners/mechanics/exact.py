"""What an update rule makes of every charge: exactly, one step at a time, in O(units) memory.

The rules are those of `learners.optimizers`. Each of the objectives on a weight has a buffer of its own; all gradients
are taken at one theta. Letters: N units (of all laws), K buffers.

    theta' = c theta + sum of the delta_k,   c = 1 - rate lam if the decay is decoupled, else 1
    d_k = g_k + lam_k theta (coupled decay), u_k = beta v_k - rate_k d_k the new buffer
    delta_k = -rate_k d_k (sgd), u_k (momentum), beta u_k - rate_k d_k (nesterov)

With C_k = <theta, v_k>, D the sum of the delta_k that step now, E_k = <theta, g_k> (0 by the symmetry, or measured),
all signed sums over a unit's synapses:
    P_k = beta C_k - rate_k (E_k + lam_k Q);  R_k = <theta, delta_k>: -rate_k (E_k + lam_k Q), P_k, or
    beta P_k - rate_k (E_k + lam_k Q)
    Q <- c^2 Q + 2 c sum R_k + <D, D>,  C_k <- c P_k + <D, u_k>
A buffer that does not step keeps v_k: P_k = C_k, u_k = v_k, R_k = 0. A charge of degree 1 (translation) is the same
with <1, .> for <theta, .>: T <- c T + sum R_k, C_k <- P_k. With dampening alpha, `rate` is eta (1 - alpha).
"""

from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
RULES = ("sgd", "momentum", "nesterov")
"""Those with exact recursions; of others there is the budget."""


class Motion(NamedTuple):
    """An update rule as the laws need it."""

    name: str  #: one of RULES
    beta: float = 0.0  #: momentum


class Buffer(NamedTuple):
    """What one objective does in one step."""

    rate: float
    coupled: float = 0.0  #: lam of its coupled decay
    decoupled: float = 0.0  #: lam of its decoupled decay
    steps: bool = True  #: whether it has a gradient in this step


class State(NamedTuple):
    """Predicted charges; a value, never changed in place."""

    q_N: Doubles
    c_KN: Tuple[Doubles, ...]  #: per buffer: <theta, v_k>, or <1, v_k> where the degree is 1


class Sums(NamedTuple):
    """Measured in one step, signed; 0 where the degree is 1."""

    square_N: Doubles  #: <D, D>
    cross_KN: Tuple[Doubles, ...]  #: <D, u_k>; not looked at for sgd
    drive_KN: Tuple[Optional[Doubles], ...] = ()  #: E_k where an objective lacks the symmetry; None or (): 0


def start(q_N: Doubles, buffers: int, c_KN: Optional[Sequence[Doubles]] = None) -> State:
    """From measured charges; `c_KN` where the buffers are not 0 (a run that is resumed)."""
    made = tuple(np.zeros_like(q_N) for _ in range(buffers)) if c_KN is None else tuple(c_KN)
    return State(np.asarray(q_N, np.float64), made)


def advance(motion: Motion, state: State, degree_N: Doubles, buffers: Sequence[Buffer], sums: Sums) -> State:
    """The charges after one step.

    Args:
        degree_N: 1 or 2, of each charge.
        buffers: of each objective, in the state's order.
        sums: of this step, in the same order.
    """
    q, drives = state.q_N, sums.drive_KN or (None,) * len(buffers)
    shrink = 1.0 - sum(one.rate * one.decoupled for one in buffers if one.steps)
    other = shrink ** (degree_N - 1.0)  # what multiplies products of theta with steps
    moved = np.zeros_like(q)
    made = []
    for buffer, c, cross, drive in zip(buffers, state.c_KN, sums.cross_KN, drives):
        pull = buffer.rate * buffer.coupled * q
        if drive is not None:
            pull = pull + buffer.rate * drive
        carried = motion.beta * c - pull if buffer.steps else c
        if buffer.steps:
            moved += {"sgd": -pull, "momentum": carried}.get(motion.name, motion.beta * carried - pull)
        made.append(other * carried + cross)
    return State(shrink**degree_N * q + degree_N * other * moved + sums.square_N, tuple(made))


class Budget(NamedTuple):
    """Where the change of a charge in one step comes from, whatever the rule."""

    linear_N: Doubles  #: 2 <theta, delta theta>, or <1, delta theta>
    square_N: Doubles  #: <delta theta, delta theta>

    @property
    def change_N(self) -> Doubles:
        """Of the charge."""
        return self.linear_N + self.square_N
