"""From a law that does not hold to the likely cause. Pure rules: arrays in, an alarm or nothing out.

Every so often a learner compares its charges with what the recursions make of its steps. `judge` looks at the jump,
what has come between the two since the comparison before, and at the identity of the gradient of that very step:

    non-finite        something is NaN or infinite
    gradient stale    the identity fails in most layers, by no more than weights have moved lately, and along the
                      gradient itself
    gradient poisoned the identity fails otherwise; or a jump that a step may have made, but none by the symmetry
    update lost       the jump is what charges lack without one of the steps: -2 <theta', D> + |D|^2, and what follows
    update doubled    the jump is what one of the steps makes if it comes twice: 2 <theta', D> + |D|^2, ...
    weight corrupted  a few units jump, and no others; or all by more than the steps were long
    replica diverged  replicas that have applied the same updates have other charges

Jumps are relative to the sizes of `charges.sizes`. Letters: N units of all laws.
"""

from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from learners.mechanics import charges, exact
from learners.mechanics.symmetries import Law

Doubles = NDArray[np.float64]
UNIT = 3e-6
"""Jump of one unit that rounding does not make, float32."""
POOLED = 3e-7
"""The same, root mean square over the units of a law."""
IDENTITY = {1: 5e-2, 2: 2e-5}
"""Residual of the identity, pooled over the units of a law, that rounding does not make, by the charge's degree."""
SURE = 1e-5
"""And <1, g> of the logits' weights: when a network is sure, little is left of p - y but the rounding of p."""
FEW = 3
"""Units that one weight is a synapse of: of the layer before it, of its own, of the logits."""
ALIKE = 0.03
"""Misfit, as a share of the jump, up to which a cause explains it."""
NOISE = 1e-7
"""And what rounding may add to the misfit, root mean square over all units."""
ALONG = 0.3
"""Cosine from which a broken identity goes along with the gradient's own squares."""


class Alarm(NamedTuple):
    """What is wrong."""

    learner: str
    layers: Tuple[str, ...]  #: names of the laws
    step: int  #: steps done before the one that went wrong, as far as is known
    seen: int  #: and before the one in which it was seen
    cause: str  #: one of those above
    size: float  #: of the greatest unit's jump, or residual of the identity

    def __str__(self) -> str:
        where = ", ".join(self.layers)
        return (
            f"learners.{self.learner}: mechanics: {self.cause} at step {self.step} (seen at step {self.seen}): "
            f"{where}: off by {self.size:.1e}"
        )


class Taken(NamedTuple):
    """A step that was taken since the last comparison."""

    step: int  #: steps done before it
    before: exact.State
    after: exact.State
    buffers: Tuple[exact.Buffer, ...]
    sums: exact.Sums
    moved_N: Doubles  #: unsigned |D|^2


class Look(NamedTuple):
    """What is compared at one step."""

    learner: str
    laws: Tuple[Law, ...]
    motion: exact.Motion
    step: int  #: steps done before the one that is looked at
    taken: Tuple[Taken, ...]  #: since the last comparison, oldest first
    jump_N: Doubles  #: of what is measured over what was predicted, since the last comparison
    size_N: Doubles
    along_N: Doubles  #: of the learner's own gradient: 0 by the symmetry
    gradient_N: Doubles  #: |g|^2, unsigned
    signed_N: Doubles  #: |g|^2, signed


def judge(look: Look) -> Optional[Alarm]:
    """The likely cause of what a look shows; None if all is well."""
    if not all(np.isfinite(values).all() for values in (look.jump_N, look.size_N, look.along_N, look.gradient_N)):
        return _not_finite(look)
    jump = look.jump_N / np.maximum(look.size_N, np.finfo(np.float64).tiny)
    where = _jumping(look.laws, jump)
    if where:
        cause, step = _of_a_jump(look, jump, where)
        return Alarm(look.learner, where, step, look.step, cause, float(np.max(np.abs(jump))))
    broken = _broken(look)
    if broken:
        cause = "gradient stale" if _most(look.laws, broken) and _stale(look) else "gradient poisoned"
        return Alarm(look.learner, tuple(broken), look.step, look.step, cause, max(broken.values()))
    return None


def diverged(laws: Sequence[Law], step: int, charges_by_replica: Sequence[Tuple[str, Doubles]]) -> List[Alarm]:
    """Replicas that have applied the same updates, by name: those whose charges are not the most common ones."""
    kept = [values.tobytes() for _, values in charges_by_replica]
    usual = max(kept, key=kept.count, default=b"")
    common = next((values for _, values in charges_by_replica if values.tobytes() == usual), np.zeros(0))
    alarms = []
    for (name, values), bits in zip(charges_by_replica, kept):
        if bits != usual:
            off = charges.by_law(laws, values - common)
            where = tuple(law.name for law, part in zip(laws, off) if part.any())
            alarms.append(Alarm(name, where, step, step, "replica diverged", float(np.max(np.abs(values - common)))))
    return alarms


# ---------------------------------------------------------------- what is off


def _not_finite(look: Look) -> Alarm:
    wrong = ~(np.isfinite(look.jump_N) & np.isfinite(look.along_N) & np.isfinite(look.gradient_N))
    where = tuple(law.name for law, part in zip(look.laws, charges.by_law(look.laws, wrong)) if part.any())
    first = next((one.step for one in look.taken if not np.isfinite(one.after.q_N).all()), look.step)
    return Alarm(look.learner, where, first, look.step, "non-finite", float("inf"))


def _jumping(laws: Sequence[Law], jump_N: Doubles) -> Tuple[str, ...]:
    parts = charges.by_law(laws, jump_N)
    return tuple(law.name for law, part in zip(laws, parts) if np.max(np.abs(part)) > UNIT or _rms(part) > POOLED)


def _rms(values: Doubles) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _broken(look: Look) -> "dict[str, float]":
    """Residual of the identity of those laws for which it fails."""
    lengths = np.sqrt(look.size_N * look.gradient_N)
    found = {}
    parts = zip(look.laws, charges.by_law(look.laws, look.along_N), charges.by_law(look.laws, lengths))
    for law, along, length in parts:
        whole = float(np.linalg.norm(length))
        residual = float(np.linalg.norm(along)) / whole if whole else 0.0
        if residual > IDENTITY[law.degree] and (law.degree == 2 or float(np.max(np.abs(along))) > SURE):
            found[law.name] = residual
    return found


def _most(laws: Sequence[Law], named: Iterable[str]) -> bool:
    """Whether most laws of degree 2 are named: an old gradient is old in every layer."""
    found = set(named)
    known = [law.name for law in laws if law.degree == 2]
    return 2 * sum(name in found for name in known) > len(known)


def _stale(look: Look) -> bool:
    """Whether the gradient may have been taken at weights of a few steps before.

    Then <theta, g> = <theta - theta_old, g>: no longer than the way, and against the gradient, which it went down.
    """
    path = np.zeros_like(look.size_N)
    for one in look.taken:
        path += np.sqrt(np.maximum(one.moved_N, 0.0))
    within = np.abs(look.along_N) <= 1.5 * np.sqrt(look.gradient_N) * path + 1e-12
    return bool(np.mean(within) > 0.95) and _cosine(-look.along_N, look.signed_N) > ALONG


def _stale_step(look: Look, jump_N: Doubles) -> bool:
    """The same of a step before, by the jump -2 rate <theta - theta_old, g> that it has left."""
    if not look.taken:
        return False
    path = np.sum([np.sqrt(np.maximum(one.moved_N, 0.0)) for one in look.taken], axis=0)
    longest = np.sqrt(np.max([one.moved_N for one in look.taken], axis=0))
    squares = np.sum([one.sums.square_N for one in look.taken], axis=0)
    within = np.abs(jump_N) * look.size_N <= 3.0 * longest * path * _follows(look) + 1e-12
    return bool(np.mean(within) > 0.95) and _cosine(jump_N, squares / look.size_N) > ALONG


def _follows(look: Look) -> float:
    """What becomes of a change of a momentum buffer in the steps after it."""
    return 1.0 / max(1e-3, 1.0 - look.motion.beta)


def _cosine(one: Doubles, other: Doubles) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.dot(one, other)) / lengths if lengths else 0.0


# ---------------------------------------------------------------- why


def _of_a_jump(look: Look, jump_N: Doubles, where: Sequence[str]) -> Tuple[str, int]:
    """Cause and step of a jump, relative to sizes."""
    length = float(np.linalg.norm(jump_N))
    cause, step, misfit = "", look.step, ALIKE + NOISE * len(jump_N) ** 0.5 / length
    for index, one in enumerate(look.taken):
        for name, times in (("update lost", -1.0), ("update doubled", 1.0)):
            wanted = _propagated(look, index, times) / look.size_N
            off = float(np.linalg.norm(jump_N - wanted)) / length
            if off < misfit:
                cause, step, misfit = name, one.step, off
    if cause:
        return cause, step
    last = look.taken[-1].step if look.taken else look.step
    if np.count_nonzero(np.abs(jump_N) > max(UNIT, 1e-3 * float(np.max(np.abs(jump_N))))) <= FEW:
        return "weight corrupted", last
    if _most(look.laws, where) and _stale_step(look, jump_N):
        return "gradient stale", last
    reach = _reach(look)
    if np.mean(np.abs(jump_N) * look.size_N <= reach) < 0.95:
        return "weight corrupted", last
    return "gradient poisoned", last


def _propagated(look: Look, index: int, times: float) -> Doubles:
    """What the charges are off by now if the step of that index was taken 1 + `times` times."""
    one, degree = look.taken[index], charges.degrees(look.laws)
    square = one.sums.square_N
    linear = (one.after.q_N - one.before.q_N - square) / degree  # <theta, D>, or <1, D>
    quadratic = (degree - 1.0) * square
    q = times * degree * (linear + quadratic) + times**2 * quadratic
    state = exact.State(q, tuple(times * cross for cross in one.sums.cross_KN))
    nothing = np.zeros_like(q)
    for later in look.taken[index + 1 :]:
        sums = exact.Sums(nothing, tuple(nothing for _ in state.c_KN))
        state = exact.advance(look.motion, state, degree, later.buffers, sums)
    return state.q_N


def _reach(look: Look) -> Doubles:
    """How far a wrong gradient in one of the steps could have moved each charge: 2 |theta| |D|, and what follows."""
    longest = np.max([one.moved_N for one in look.taken], axis=0) if look.taken else np.zeros_like(look.size_N)
    degree = charges.degrees(look.laws)
    # a charge of degree 1 moves by <1, D>; the size of its unit bounds nothing, its length does
    room = np.where(degree == 2, 2.0 * np.sqrt(look.size_N * longest), np.inf)
    return (room + longest) * _follows(look)
