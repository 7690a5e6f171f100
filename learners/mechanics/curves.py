"""The paper's continuous curves, beside the exact recursions: they approximate, with errors that tests bound.

    sgd       Z <- e^(-n lam eta) (Z + V), n the charge's degree, V = signed |delta theta|^2 (0 for degree 1); this is
              the published closed form without its overflow
    momentum  Q'' + 2 gam Q' + om^2 Q = 2 |theta'|^2 in the time t = h x step, gam = (1 - beta) / (h (1 + beta)),
              om^2 = 2 n lam / (h (1 + beta)); the force acts half before and half behind each step

The published code evaluates sums of e^(+gam t): it overflows float32 at step 843 for beta = 0.9. Here a step is a
matrix whose spectral radius is at most 1, and nothing grows.
"""

import math
from typing import NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


class Curve(NamedTuple):
    """Charges, and their derivatives by h x step (0 for sgd)."""

    q_N: Doubles
    velocity_N: Doubles


def start(q_N: Doubles) -> Curve:
    """At rest."""
    return Curve(np.asarray(q_N, np.float64), np.zeros(len(q_N)))


def sgd(curve: Curve, degree_N: Doubles, rate: float, decay: float, square_N: Doubles) -> Curve:
    """One step; `square_N` is the signed |delta theta|^2, without the decay where that is decoupled."""
    return Curve(np.exp(-degree_N * decay * rate) * (curve.q_N + square_N), curve.velocity_N)


def momentum(curve: Curve, degree_N: Doubles, rate: float, beta: float, decay: float, square_N: Doubles) -> Curve:
    """One step of heavy ball with coupled decay; `rate` is h, `square_N` as for `sgd`. A rate of 0 stands still."""
    if rate == 0.0:
        return curve
    half = square_N / rate  # of h f = 2 V / h
    q, velocity = curve.q_N, curve.velocity_N + half
    found_q, found_v = np.empty_like(q), np.empty_like(q)
    for degree in (1.0, 2.0):
        chosen = degree_N == degree
        (qq, qv), (vq, vv) = flow(rate, beta, 2.0 * degree * decay / (rate * (1.0 + beta)))
        found_q[chosen] = qq * q[chosen] + qv * velocity[chosen]
        found_v[chosen] = vq * q[chosen] + vv * velocity[chosen]
    return Curve(found_q, found_v + half)


def flow(rate: float, beta: float, omega2: float) -> Tuple[Tuple[float, float], Tuple[float, float]]:
    """The matrix Phi that carries (Q, Q') over a time h = rate: over-, critically and under-damped alike."""
    damping = (1.0 - beta) / (1.0 + beta)  # gam h
    gamma = damping / rate
    x2 = damping**2 - omega2 * rate**2
    if abs(x2) < 1e-4:
        c, s = 1.0 + x2 / 2.0 + x2**2 / 24.0 + x2**3 / 720.0, 1.0 + x2 / 6.0 + x2**2 / 120.0 + x2**3 / 5040.0
    elif x2 > 0.0:
        x = math.sqrt(x2)
        c, s = math.cosh(x), math.sinh(x) / x
    else:
        x = math.sqrt(-x2)
        c, s = math.cos(x), math.sin(x) / x
    s *= rate
    shrunk = math.exp(-damping)
    return (shrunk * (c + gamma * s), shrunk * s), (-shrunk * omega2 * s, shrunk * (c - gamma * s))
