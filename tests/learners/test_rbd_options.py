"""Options as a file gives them: defaults that depend on others, what is refused, and when weights are floats."""

import msgspec
import pytest

from learners.layout import laid_out
from learners.rbd.defaults import filled, layout, outer_weight
from learners.rbd.options import AnyLearner, Fpd, Local, Nes, Rbd, Sgd, has_rounds
from learners.rbd.refusals import arithmetic, refusals
from learners.rbd.workers import Method, start

TENSORS = laid_out(
    [
        ("a", 0, "kernel", (784, 128)),
        ("b", 0, "rest", (128,)),
        ("c", 1, "kernel", (128, 10)),
        ("d", 1, "rest", (10,)),
    ]
)
D = TENSORS[-1].stop


def read(staleness=0, **given):
    return filled(msgspec.convert(given, AnyLearner), D, staleness)


def refused(**given):
    return dict(refusals(read(**given), TENSORS))


# ---------------------------------------------------------------- defaults


@pytest.mark.parametrize(("kind", "made"), [("rbd", Rbd), ("fpd", Fpd), ("nes", Nes), ("sgd", Sgd), ("local", Local)])
def test_kinds_as_they_stand_are_sound(kind, made):
    learner = read(kind=kind)
    assert type(learner) is made and refusals(learner, TENSORS) == []
    assert filled(learner, D) == learner


def test_rbd_is_the_method_to_build_on():
    """Rounds of ten steps with sign coordinates and the residual applied locally: 12.6 bytes a step."""
    learner = read(kind="rbd")
    exchange, update = learner.exchange, learner.update
    assert (learner.basis.dimensions, exchange.every, exchange.residual, exchange.precision) == (
        1000,
        10,
        "local",
        "sign",
    )
    assert (update.rate, update.weight, update.schedule) == (0.1, 2.5, "constant")
    assert arithmetic(learner)[0] == "exact"


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({"basis": {"dimensions": 250}}, 6.0),
        ({"basis": {"dimensions": 16000}}, 0.25 * D / 16000),
        ({"basis": {"dimensions": 250}, "replicas": 4, "staleness": 15}, 0.35 * D / (250 * 4 * 16)),
        ({"basis": {"dimensions": 250}, "replicas": 4}, 8.0),
        ({"basis": {"dimensions": 250, "normalize": "none"}}, 6.0 / D),
    ],
)
def test_rates_of_plain_steps(given, rate):
    assert read(kind="rbd", exchange={"residual": "none"}, **given).update.rate == pytest.approx(rate)


def test_rates_with_a_leaky_residual():
    rates = [read(kind="rbd", batch_size=b, exchange={"residual": "leaky"}).update.rate for b in (32, 256)]
    assert rates == pytest.approx([1.0, 2.0])


def test_what_is_given_stays():
    learner = read(
        kind="rbd", basis={"dimensions": 7, "redraw": 3}, exchange={"every": 4, "precision": "int4"}, update={"rate": 9}
    )
    assert (learner.basis.dimensions, learner.basis.redraw, learner.exchange.every) == (7, 3, 4)
    assert (learner.exchange.precision, learner.update.rate) == ("int4", 9)


def test_who_takes_steps_of_his_own():
    assert [has_rounds(read(kind=kind)) for kind in ("rbd", "fpd", "nes", "sgd", "local")] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert has_rounds(read(kind="rbd", exchange={"residual": "none", "every": 2}))


def test_what_one_message_counts():
    assert outer_weight(read(kind="rbd", replicas=4)) == 2.5
    assert outer_weight(read(kind="local", replicas=4)) == 0.25
    assert outer_weight(read(kind="sgd", replicas=4)) == 0.25
    mean = {"residual": "none", "combine": "mean", "mode": "sync"}
    assert outer_weight(read(kind="rbd", replicas=4, basis={"per": "group"}, exchange=mean)) == 0.25


@pytest.mark.parametrize(
    ("compartments", "dimensions"),
    [
        ("none", [1000]),
        ("layer", [986, 14]),
        ({"by": "layer", "layers": 2}, [1000]),
        ({"by": "layer", "share": "equal"}, [500, 500]),
        ({"by": "layer", "share": "each"}, [1000, 1000]),
        ("type", [998, 2]),
        ({"by": "size", "size": 50_000}, [491, 491, 18]),
        ({"by": "dynamic", "compression": 100}, [1005, 13]),
        ({"by": "dynamic", "compression": 100, "exponent": 1.2}, [317, 8]),
    ],
)
def test_directions_of_compartments(compartments, dimensions):
    found = layout(read(kind="rbd", basis={"compartments": compartments}), TENSORS)
    assert [part.dimensions for part in found] == dimensions


def test_directions_split_among_workers():
    learner = read(kind="rbd", replicas=3, basis={"split": True})
    assert [layout(learner, TENSORS, k)[0].dimensions for k in range(3)] == [334, 333, 333]


def test_pairs_are_whole_in_every_compartment():
    found = layout(read(kind="nes", basis={"dimensions": 100, "antithetic": True, "compartments": "layer"}), TENSORS)
    assert all(part.dimensions % 2 == 0 for part in found)


# ---------------------------------------------------------------- exact or float

PLAIN = {"residual": "none"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kind": "sgd"}, "whole gradients"),
        ({"update": {"momentum": 0.9}}, "update.momentum"),
        ({"update": {"weight": 2.3}}, "not a multiple of 1/16"),
        ({"kind": "local", "replicas": 3}, "0.333333 for each message is not a multiple of 1/16"),
        ({"update": {"plain": {"layer": 0}}}, "update.plain"),
        ({"update": {"plain": {"first": 3}}}, "update.plain"),
        ({"update": {"correlation": {"plain_below": 0.1}}}, "plain_below"),
        ({"update": {"correlation": {"surgeon": 0.1}}}, "surgeon"),
        ({"basis": {"learn": {}}}, "basis.learn"),
        ({"basis": {"distribution": "gradients"}}, "gradients"),
    ],
)
def test_what_contradicts_integers_says_so(given, reason):
    mode, why = arithmetic(read(**{"kind": "rbd", **given}))
    assert mode == "float" and reason in why


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"basis": {"distribution": "normal"}},
        {"basis": {"keep": True, "redraw": 5, "distribution": "normal"}},
        {"update": {"correlation": {"scale": True}}, "exchange": PLAIN},
        {"kind": "nes"},
        {"kind": "local", "replicas": 4},
    ],
)
def test_the_rest_is_exact(given):
    learner = read(**{"kind": "rbd", **given})
    assert arithmetic(learner)[0] == "exact"


def test_the_mode_is_what_a_worker_is_made_of():
    import numpy as np

    theta = np.zeros(D, np.float32)
    made = [
        type(start(Method(read(**given), TENSORS), theta, 1).shared).__name__
        for given in ({"kind": "rbd"}, {"kind": "sgd"})
    ]
    assert made == ["Replica", "Weights"]
    replica = start(Method(read(kind="rbd", exchange={"bits": 20}), TENSORS), theta, 1).shared
    assert (replica.grid.bits, replica.grid.weight) == (20, 2.5)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"kind": "fpd", "exchange": {"residual": "local"}}, "exchange.residual", "never sent"),
        ({"kind": "fpd", "basis": {"redraw": 2}}, "basis.redraw", "never redraws"),
        ({"kind": "nes", "exchange": {"residual": "leaky"}}, "exchange.residual", "no gradient"),
        ({"kind": "nes", "exchange": {"every": 3}}, "exchange.every", "no local steps"),
        ({"kind": "nes", "update": {"plain": {"first": 1}}}, "update", "rbd and fpd"),
        ({"kind": "nes", "basis": {"distribution": "gradients"}}, "basis.distribution", "others do not know"),
        ({"kind": "sgd", "replicas": 2}, "exchange.mode", "give mode: sync"),
        ({"kind": "sgd", "update": {"weight": 2}}, "update.weight", "averages"),
        ({"kind": "local", "replicas": 3}, "exchange.mode", "give mode: sync"),
        ({"kind": "local", "exchange": {"combine": "mean"}}, "exchange.combine", "always"),
        ({"kind": "local", "exchange": {"residual": "leaky"}}, "exchange.residual", "residual: local"),
        ({"exchange": {"residual": "leaky", "every": 2}}, "exchange.residual", "residual: local"),
        ({"replicas": 2, "update": {"momentum": 0.5}}, "exchange.mode", "update.momentum"),
        ({"exchange": {"combine": "mean"}}, "exchange.combine", "per: group"),
        ({"exchange": {"mode": "sync", "held_back": 2}}, "exchange.held_back", "leave it out"),
        ({"basis": {"split": True, "per": "group"}}, "basis.split", "per: worker"),
        ({"basis": {"split": True, "dimensions": 2}, "replicas": 3}, "basis.dimensions", "at least one each"),
        ({"basis": {"split": True, "dimensions": 100}, "replicas": 3}, "basis.dimensions", "a multiple"),
        ({"basis": {"dimensions": D + 1}}, "basis.dimensions", "at most as many as weights"),
        ({"basis": {"dimensions": 9, "antithetic": True}}, "basis.dimensions", "even number"),
        ({"basis": {"dimensions": 1, "compartments": "layer"}}, "basis.dimensions", "2 compartments"),
        ({"basis": {"keep": True}}, "basis.keep", "nothing to keep"),
        ({"basis": {"keep": True, "redraw": 2, "dimensions": 9000}}, "basis.keep", "GiB"),
        ({"basis": {"learn": {}, "compartments": "layer"}}, "basis.compartments", "does not go with basis.learn"),
        ({"basis": {"learn": {}, "redraw": 2}}, "basis.redraw", "does not go with basis.learn"),
        ({"basis": {"learn": {}, "distribution": "hadamard"}}, "basis.learn", "one by one"),
        ({"replicas": 2, "exchange": {"mode": "sync", "held_back": 2}}, "exchange.held_back", "mode: async"),
        ({"exchange": {"budget": "2kB/s"}}, "exchange.budget", "replicas of 2 or more"),
        ({"replicas": 2, "exchange": {"budget": "2kB/s", "precision": "int8"}}, "exchange.budget", "precision: sign"),
        ({"kind": "local", "replicas": 2, "exchange": {"budget": "2kB/s"}}, "exchange.budget", "kind: rbd"),
        ({"basis": {"learn": {}}, "replicas": 2}, "basis.learn", "one worker"),
        ({"basis": {"distribution": "gradients", "antithetic": True}}, "basis.antithetic", "does not go"),
        ({"basis": {"compartments": {"by": "size"}}}, "basis.compartments.size", "both or neither"),
        ({"basis": {"compartments": {"by": "layer", "size": 9}}}, "basis.compartments.size", "both or neither"),
        ({"basis": {"compartments": {"by": "dynamic"}}}, "basis.compartments.compression", "both or neither"),
        ({"basis": {"compartments": {"by": "type", "layers": 2}}}, "basis.compartments.layers", "by: layer"),
        ({"basis": {"compartments": {"by": "type", "exponent": 1.2}}}, "basis.compartments.exponent", "by: dynamic"),
        (
            {"basis": {"compartments": {"by": "dynamic", "compression": 9, "share": "each"}}},
            "basis.compartments",
            "itself",
        ),
        ({"coordinates": {"keep": "top"}}, "coordinates.count", "both or neither"),
        ({"coordinates": {"fraction": 0.5}}, "coordinates.fraction", "both or neither"),
        ({"coordinates": {"keep": "top", "count": 3}}, "coordinates.keep", "cannot be 0"),
        ({"coordinates": {"reset": 0}}, "coordinates", "plain steps"),
        ({"coordinates": {"continuous": 3}, "kind": "nes"}, "coordinates", "plain steps"),
        ({"coordinates": {"continuous": 3, "reset": 4}, "exchange": PLAIN}, "coordinates.reset", "between two updates"),
        ({"coordinates": {"reset": 0}, "exchange": PLAIN, "basis": {"learn": {}}}, "coordinates", "stay what they are"),
        ({"update": {"schedule": "piecewise"}}, "update.at", "both or neither"),
        ({"update": {"at": [0.5]}}, "update.at", "both or neither"),
        ({"update": {"nesterov": True}}, "update.nesterov", "no momentum"),
        ({"update": {"plain": {"others": True}}}, "update.plain.others", "no layer"),
        ({"update": {"plain": {"layer": 2}}}, "update.plain.layer", "0 .. 1"),
        ({"update": {"plain": {"first": 9}}, "steps": 8}, "update.plain", "kind: sgd"),
    ],
)
def test_what_makes_no_sense_is_refused(given, path, said):
    found = refused(**{"kind": "rbd", **given})
    assert said in found.get(path, ""), found


@pytest.mark.parametrize(
    "given",
    [
        {"basis": {"learn": {"redraw": "large"}}},
        {"basis": {"distribution": "gradients", "dimensions": 9}, "exchange": PLAIN},
        {"coordinates": {"continuous": 3, "reset": 6}, "exchange": PLAIN},
        {"coordinates": {"keep": "best", "fraction": 0.1}, "exchange": {"precision": "int4"}},
        {"kind": "fpd", "coordinates": {"reset": 0}, "basis": {"keep": True, "dimensions": 100}},
        {
            "kind": "local",
            "replicas": 4,
            "update": {"weight": 0.7, "momentum": 0.9, "nesterov": True},
            "exchange": {"mode": "sync"},
        },
        {"replicas": 4, "basis": {"split": True, "compartments": "type"}},
        {"update": {"schedule": "piecewise", "at": [0.5, 0.8]}},
        {"network": "mine.models:small", "update": {"on_nan": "skip", "warmup": 5}},
    ],
)
def test_what_makes_sense_is_not(given):
    assert refused(**{"kind": "rbd", **given}) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "rdb"}, "Invalid value 'rdb'"),
        ({"kind": "sgd", "basis": {}}, "unknown field `basis`"),
        ({"kind": "rbd", "basis": {"dimension": 3}}, "unknown field `dimension`"),
        ({"kind": "rbd", "basis": {"distribution": "bernoulli"}}, r"\$.basis.distribution"),
        ({"kind": "rbd", "basis": {"compartments": "tensor"}}, r"\$.basis.compartments"),
        ({"kind": "rbd", "exchange": {"precision": "int2"}}, r"\$.exchange.precision"),
        ({"kind": "rbd", "network": "vgg"}, r"\$.network"),
    ],
)
def test_types_refuse_with_the_place(given, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        read(**given)


def test_the_schema_describes_every_field():
    (schemas, parts) = msgspec.json.schema_components([AnyLearner])
    assert len(schemas) == 1
    for name, part in parts.items():
        for field, value in part["properties"].items():
            nested = "$ref" in value or "allOf" in value or field == "kind"
            nested = nested or any("$ref" in one for one in value.get("anyOf", []))
            assert nested or "description" in value or field in ("exchange", "update"), f"{name}.{field}"
