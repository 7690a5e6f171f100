"""Pictures that are not recorded but measured, from a checkpoint: Hessian, landscape, orthogonality."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from analysis.pictures import Line, Map, Panel, Part
from learners import watching
from learners.watching import Orthogonality, Probe

DIRECTIONS = 24
"""Of the directional Hessian."""
DISTANCES = 41
"""Points of a profile of the loss; the plane has half as many either way."""
FURTHEST = 1.0
"""How far the landscape goes, as a share of the length of the weights."""
COUNTS = (4, 16, 64, 256)
"""Directions of which it is shown how orthogonal they are."""


class Instrument(NamedTuple):
    """One picture of `machworks analyse` that is measured."""

    title: str
    needs: str
    look: Callable[[Sequence[Probe]], list[Part]]


def hessian(probes: Sequence[Probe]) -> list[Part]:
    """U H U^T along directions of the learner's own, else along random ones; its eigenvalues and its diagonal."""
    return [part for probe in probes for part in _hessian(probe)]


def _hessian(probe: Probe) -> list[Part]:
    if probe.directions is None:
        units, whose = watching.random_units(DIRECTIONS, len(probe.theta_D), 1), "random directions"
    else:
        units = np.stack(list(islice(watching.columns(probe.directions, probe.name), DIRECTIONS)))
        whose = "directions of its next update"
    matrix = watching.hessian(probe.product, units)
    rank = np.arange(1.0, len(matrix) + 1)
    about = f"{probe.learner}, step {probe.step}, {probe.rows} training rows"
    spectrum = Panel(
        f"curvature along {whose}: {about}",
        "rank, number from the largest",
        "curvature, nats per squared unit of weight",
        (
            Line("eigenvalues of the full matrix", rank, np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1]),
            Line("diagonal: each direction by itself", rank, np.sort(np.diag(matrix))[::-1], 1),
        ),
    )
    full = Map(
        f"{probe.learner}: full matrix, asymmetry {watching.asymmetry(matrix):.0e}",
        "direction, number",
        "direction, number",
        "curvature e_i . H e_j, nats per squared unit",
        rank,
        rank,
        matrix,
        signed=True,
    )
    return [spectrum, full]


def landscape(probes: Sequence[Probe]) -> list[Part]:
    """The loss along two random unit directions, and over their plane."""
    return [part for probe in probes for part in _landscape(probe)]


def _landscape(probe: Probe) -> list[Part]:
    length = float(np.linalg.norm(probe.theta_D))
    one, other = watching.random_units(2, len(probe.theta_D), 2)
    shares = np.linspace(-FURTHEST, FURTHEST, DISTANCES)
    profiles = [watching.profile(probe.loss, probe.theta_D, unit, shares * length) for unit in (one, other)]
    about = f"{probe.learner}, step {probe.step}, {probe.rows} training rows"
    axis = "distance along a random direction / |weights|"
    lines = tuple(Line(f"direction {i + 1}", shares, values, i) for i, values in enumerate(profiles))
    coarse = shares[::2]
    over = watching.plane(probe.loss, probe.theta_D, (one, other), coarse * length)
    loss = "mean cross-entropy, nats"
    return [
        Panel(f"loss along random directions: {about}", axis, loss, lines),
        Map(
            f"{probe.learner}: over their plane",
            "distance along direction 2 / |weights|",
            "distance along direction 1 / |weights|",
            loss,
            coarse,
            coarse,
            over,
        ),
    ]


def orthogonality(probes: Sequence[Probe]) -> list[Part]:
    """Of each learner's kind of directions: cosines over D, and the Gram matrix's spectrum over d."""
    return [part for probe in probes if probe.basis is not None for part in _orthogonality(probe)]


def _orthogonality(probe: Probe) -> list[Part]:
    assert probe.basis is not None
    size = len(probe.theta_D)
    sizes = sorted({2**n for n in range(6, 18, 2) if 2**n < size} | {size})
    found = watching.by_dimension(probe.basis, 1, sizes, COUNTS)
    about = f"{probe.basis.distribution}, {probe.learner}"
    return [_cosines(found, about, sizes), _spectrum([one for one in found if one.weights == size], about, size)]


def _cosines(found: Sequence[Orthogonality], about: str, sizes: Sequence[int]) -> Panel:
    lines = []
    for colour, count in enumerate(sorted({one.directions for one in found})):
        of = [one for one in found if one.directions == count]
        cosines = np.array([one.cosine for one in of])
        lines.append(Line(f"{count} directions", np.array([float(one.weights) for one in of]), cosines, colour))
    weights = np.array(sizes, np.float64)
    lines.append(Line("1 / sqrt(D): independent", weights, weights**-0.5, style="theory"))
    axis = "cosine of two directions, root mean square"
    return Panel(f"orthogonality by dimension: {about}", "weights D, count", axis, tuple(lines), log_x=True, log_y=True)


def _spectrum(found: Sequence[Orthogonality], about: str, size: int) -> Panel:
    d = np.array([float(one.directions) for one in found])
    ends = (
        ("greatest", np.array([one.greatest for one in found]), 1),
        ("least", np.array([one.least for one in found]), -1),
    )
    lines = [Line(f"{name} eigenvalue", d, values, i) for i, (name, values, _) in enumerate(ends)]
    lines += [
        Line(f"(1 {'+' if sign > 0 else '-'} sqrt(d / D))^2", d, (1 + sign * np.sqrt(d / size)) ** 2, style="theory")
        for _, _, sign in ends
    ]
    worst = found[-1].condition if found else float("nan")
    title = f"Gram matrix of unit directions, D = {size:,}: condition {worst:.3g} at the right"
    return Panel(title, "directions d, count", "eigenvalue, ratio to that of orthogonal ones", tuple(lines), log_x=True)


INSTRUMENTS = {
    "hessian": Instrument("Directional Hessian", "a checkpoint set and the run's data", hessian),
    "landscape": Instrument("Loss landscape", "a checkpoint set and the run's data", landscape),
    "orthogonality": Instrument(
        "Orthogonality of random directions", "a learner that goes along random directions", orthogonality
    ),
}
