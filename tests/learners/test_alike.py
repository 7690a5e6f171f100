"""Members that would not end with the same bits are told apart before they train, and what differs is named."""

import numpy as np
import pytest

from learners import bases
from learners.group.alike import group_digest, traits, unlike
from learners.layout import laid_out
from learners.rbd.defaults import filled
from learners.rbd.options import Basis, Exchange, Local, Rbd, Sgd, Step
from learners.rbd.workers import Method, start

TENSORS = laid_out([("a", 0, "kernel", (8, 5)), ("b", 0, "rest", (5,))])
D = TENSORS[-1].stop
THETA = np.random.default_rng(0).standard_normal(D).astype(np.float32)


def member(kind=Rbd, seed=7, theta=THETA, tensors=TENSORS, versions=None, **options):
    if kind is Rbd:
        options.setdefault("basis", Basis(dimensions=12))
    method = Method(filled(kind(**{"steps": 100, **options}), D), tensors)
    return traits(method, start(method, theta, seed), seed, versions or {"numpy": "2.0"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 8}, {"seed", "directions"}),
        ({"theta": THETA + 1}, {"starting weights"}),
        ({"tensors": laid_out([("a", 0, "kernel", (5, 8)), ("b", 0, "rest", (5,))])}, {"network"}),
        ({"basis": Basis(dimensions=12, redraw=3)}, {"directions"}),
        ({"basis": Basis(dimensions=12, per="group")}, {"directions"}),
        ({"basis": Basis(dimensions=12, distribution="normal")}, {"directions"}),
        ({"basis": Basis(dimensions=13)}, {"coordinates", "directions"}),
        ({"exchange": Exchange(precision="int8")}, {"coordinates"}),
        ({"exchange": Exchange(bits=22)}, {"arithmetic"}),
        ({"update": Step(weight=1.5)}, {"arithmetic"}),
        ({"versions": {"numpy": "1.26"}}, {"version of numpy"}),
        ({"versions": {"numpy": "2.0", "ray": "2.60"}}, {"version of ray"}),
    ],
)
def test_what_differs_is_named(change, named):
    words = unlike(member(), member(**change))
    assert {word.split(":")[0] for word in words} == named
    assert group_digest(member()) != group_digest(member(**change))


def test_steps_and_rates_are_everybodys_own():
    assert unlike(member(), member(steps=200, update=Step(rate=0.3))) == []
    assert group_digest(member()) == group_digest(dict(reversed(member(steps=200).items())))


def test_a_kernel_with_other_bits_is_noticed(monkeypatch):
    mine = member()
    project = bases.project
    monkeypatch.setattr(bases, "project", lambda *given: np.nextafter(project(*given), np.float32(9)))
    assert unlike(mine, member())[0].startswith("directions: ")


@pytest.mark.parametrize("kind", [Sgd, Local])
def test_what_random_bases_are_compared_with_has_traits_too(kind):
    assert unlike(member(kind), member(kind)) == [] != unlike(member(kind), member(Rbd))
