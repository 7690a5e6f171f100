"""Run files with workers of random bases: what is read, refused, completed and planned."""

import io
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from ruamel.yaml import YAML

from learners.options import kind_of
from topology import draw, parse, view, workers
from topology.plan import as_json, plan, render

HEAD = "version: 1\nname: x\n"
EXAMPLE, CLASSES = (8, 8), 10
#: one of every kind, with options of each group that are not the default
FULL = """
data: {name: fashion_mnist}
defaults: {steps: 100, batch_size: 16, resources: {cpus: 1}}
learners:
  a:
    kind: rbd
    network: base_conv
    basis: {dimensions: 64, distribution: hadamard, redraw: 2, compartments: {by: size, size: 50000, share: equal}}
    coordinates: {transform: minmax, keep: best, fraction: 0.5}
    exchange: {every: 5, residual: none, precision: int8, mode: sync, max_staleness: 3, same_data: true, bits: 24}
    update: {rate: 0.2, schedule: piecewise, at: [0.5, 0.75], factor: 0.5, warmup: 10, weight: 2, on_nan: skip}
  b:
    kind: fpd
    basis: {compartments: layer, normalize: column, keep: true}
    update: {plain: {first: 2, last: 2, rate: 0.05}, correlation: {plain_below: 0.1, scale: true, surgeon: 0.01}}
  c: {kind: nes, basis: {antithetic: true}, offspring: {sigma: 0.1, batches: shared}}
  d: {kind: sgd, update: {momentum: 0.9, nesterov: true}, exchange: {mode: sync}}
  e: {kind: local, exchange: {every: 20}}
  f: {kind: rbd, basis: {learn: {redraw: large, fraction: 0.25, every: 2}}, exchange: {residual: none}}
  m: {kind: mach}
"""


def problems(text: str, *overrides: str) -> dict[str, str]:
    """Messages by key path."""
    with pytest.raises(parse.Problems) as caught:
        parse.loads(HEAD + text, overrides=overrides)
    return {problem.path: problem.message for problem in caught.value.problems}


def one(options: str) -> str:
    return f"learners:\n  w: {{{options}}}\n"


# ---------------------------------------------------------------- read


def test_every_kind_is_read_beside_a_chain_and_what_is_resolved_loads_back_to_it() -> None:
    run = parse.loads(HEAD + FULL)
    assert [kind_of(learner) for learner in run.learners.values()] == "rbd fpd nes sgd local rbd mach".split()
    assert run.learners["a"].update.at == (0.5, 0.75) and run.learners["a"].basis.compartments.share == "equal"
    assert {(one.steps, one.batch_size, one.cpus) for one in run.learners.values()} == {(100, 16, 1.0)}
    assert parse.loads(parse.resolved(run)).learners == run.learners
    filled = workers.completed(run, (28, 28), 10)
    assert parse.loads(parse.resolved(filled)).learners == filled.learners
    assert workers.completed(filled, (28, 28), 10) == filled


def test_the_schema_takes_every_kind_and_knows_their_keys() -> None:
    check = jsonschema.Draft202012Validator(parse.schema())
    base = {"version": 1, "name": "x"}
    for kind in ("rbd", "fpd", "nes", "sgd", "local"):
        assert check.is_valid({**base, "learners": {"w": {"kind": kind, "update": {"rate": 0.1}}}})
        assert not check.is_valid({**base, "learners": {"w": {"kind": kind, "hidden": [3]}}})
    assert not check.is_valid({**base, "learners": {"w": {"kind": "sgd", "basis": {}}}})


# ---------------------------------------------------------------- refused


def test_all_that_is_wrong_is_said_at_once_each_at_its_line() -> None:
    text = HEAD + (
        "learners:\n"
        "  w:\n"
        "    kind: rbd\n"
        "    hidden: [3]\n"
        "    basis: {dimension: 5, distribution: bernoulli}\n"
        "    update: {lr: 3}\n"
        "    exchange: {precision: int2}\n"
        "  v: {kind: rbdd}\n"
    )
    with pytest.raises(parse.Problems) as caught:
        parse.loads(text, "x.yaml")
    found = [(problem.line, problem.path) for problem in caught.value.problems]
    paths = ["hidden", "basis.dimension", "basis.distribution", "update.lr", "exchange.precision"]
    assert found == [
        *zip((6, 7, 7, 8, 9), (f"learners.w.{path}" for path in paths), strict=True),
        (10, "learners.v.kind"),
    ]
    said = " ".join(problem.message for problem in caught.value.problems)
    for words in ("it goes with kind: mach", "did you mean 'dimensions'", "did you mean 'rate'", "'rbd'", "int8, sign"):
        assert words in said


@pytest.mark.parametrize(
    "text, path, words",
    [
        (one("kind: sgd, replicas: 2"), "learners.w.exchange.mode", "async replicas need exact sums"),
        (one("kind: rbd, network: 'my:net', steps: 1003"), "learners.w.steps", "1000 or 1010 are"),
        (
            one("kind: rbd, network: 'my:net', basis: {dimensions: 9, antithetic: true}"),
            "learners.w.basis.dimensions",
            "pairs",
        ),
        (
            "data: {name: x.npz}\n" + one("kind: local, steps: 20"),
            "learners.w.steps",
            "rounds of 50 steps each; 50 are",
        ),
        (one("kind: rbd, network: base_conv"), "learners.w.network", "18 x 18 or more; found (8, 8)"),
        (
            one("kind: rbd, network: dens"),
            "learners.w.network",
            "'dens' is not dense, base_conv or module:function; did",
        ),
        (one("kind: rbd, network: dens"), "learners.w.network", "did you mean 'dense'?"),
        (one("kind: rbd, network: mine"), "learners.w.network", "'mine' is not dense, base_conv or module:function"),
        (one("kind: rbd, steps: 1003"), "learners.w.steps", "not whole rounds of 10 steps each; 1000 or 1010 are"),
        (one("kind: local, steps: 20"), "learners.w.steps", "rounds of 50 steps each; 50 are"),
        (
            one("kind: rbd, basis: {dimensions: 9999}"),
            "learners.w.basis.dimensions",
            "9999 directions for 9610 weights",
        ),
        (one("kind: fpd, exchange: {residual: local}"), "learners.w.exchange.residual", "give residual: none"),
        (one("kind: nes, exchange: {residual: local}"), "learners.w.exchange.residual", "give residual: none"),
        (
            one("kind: fpd, exchange: {residual: local}, steps: 7"),
            "learners.w.exchange.residual",
            "give residual: none",
        ),
        (one("kind: sgd, update: {warmup: 2000}"), "learners.w.update.warmup", "more than the learner's 1000 steps"),
        (one("kind: sgd, basis: {}"), "learners.w.basis", "it goes with kind: rbd or fpd or nes"),
        (one("basis: {dimensions: 5}"), "learners.w", "its kind is missing; add kind: mach or rbd or fpd"),
        (one("kind: sgd, resources: {CPU: 1}"), "learners.w.resources.CPU", "did you mean 'cpus'?"),
        ("defaults: {hidden: [3]}\n" + one("kind: sgd"), "defaults.hidden", "no learner of this file takes it"),
        (one("kind: sgd") + "  m: {kind: mach, child: w}\n", "learners.m.child", "'w' has no embedding to ask for"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(text: str, path: str, words: str) -> None:
    found = problems(text)
    assert found.keys() == {path} and words in found[path]


CONTRADICTIONS = """
data: {name: fashion_mnist}
learners:
  a: {kind: rbd, steps: 1003, update: {nesterov: true, warmup: 9999}, coordinates: {keep: top}}
  b: {kind: local, steps: 20, exchange: {combine: mean}}
  c: {kind: rbd, basis: {dimensions: 999999}, network: base_conv}
  m: {kind: mach, steps: 10, optimizer: {warmup: 20}, exchange: {patience: 3}}
"""
CONTRADICTED = {
    "learners.a.steps",
    "learners.a.update.nesterov",
    "learners.a.update.warmup",
    "learners.a.coordinates.count",
    "learners.a.coordinates.keep",  # a sign cannot be 0
    "learners.b.steps",
    "learners.b.exchange.combine",
    "learners.c.basis.dimensions",
    "learners.m.optimizer.warmup",
    "learners.m.exchange.patience",
}


CONTRADICTED_A = {path for path in CONTRADICTED if ".a." in path}


def test_contradictions_come_together() -> None:
    assert problems(CONTRADICTIONS).keys() == CONTRADICTED


@pytest.mark.parametrize(
    "override, hidden",
    [
        ("sed=1", CONTRADICTED),  # an override may have been meant for anything
        ("learners.a.network=dens", set()),
        ("learners.a.resources.cpus=x", set()),
        ("learners.a.batch_size=0", set()),
        ("learners.a.exchange.precision=int2", CONTRADICTED_A - {"learners.a.update.warmup"}),
        ("learners.a.steps=ten", {"learners.a.steps", "learners.a.update.nesterov", "learners.a.update.warmup"}),
        ("learners.a.kind=rbdd", CONTRADICTED_A),
        ("learners.b.exchange.every=x", {"learners.b.steps", "learners.b.exchange.combine"}),
        ("learners.c.network=dens", {"learners.c.basis.dimensions"}),
        ("data.name=3", {"learners.c.basis.dimensions"}),
        ("learners.m.optimizer.name=x", {"learners.m.optimizer.warmup"}),
        ("learners.m.steps=x", {"learners.m.optimizer.warmup"}),
        ("learners.m.exchange.pack=x", {"learners.m.exchange.patience"}),
    ],
)
def test_one_more_fault_hides_only_what_depends_on_it(override: str, hidden: set[str]) -> None:
    path = override.partition("=")[0]
    assert problems(CONTRADICTIONS, override).keys() == {path} | (CONTRADICTED - hidden)


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Any:
    """The path of every key."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*path, key)
        yield from leaves(value, (*path, key))


def changed(tree: Any, path: tuple[str, ...], change: Any) -> Any:
    """The same with one (key, value) replaced."""
    return dict(
        (key, changed(value, path[1:], change)) if key == path[0] and path[1:]
        else change(key, value) if key == path[0]
        else (key, value)
        for key, value in tree.items()
    )  # fmt: skip


WHOLE = {"version": 1, "name": "x", **YAML(typ="safe").load(FULL)}
NAMED = [("data",), ("learners",), *(("learners", name) for name in WHOLE["learners"])]
PLACES = [path for path in leaves(WHOLE) if path not in NAMED]


def told(tree: Any) -> list[str]:
    with pytest.raises(parse.Problems) as caught:
        parse.loads(json.dumps(tree))
    return [problem.path for problem in caught.value.problems]


@pytest.mark.parametrize("path", PLACES, ids=".".join)
def test_a_faulty_value_is_one_problem_and_brings_no_other(path: tuple[str, ...]) -> None:
    faulty = changed(WHOLE, path, lambda key, value: (key, "@" if isinstance(value, (dict, list)) else [[]]))
    assert told(faulty) == [".".join(path)]


@pytest.mark.parametrize("path", [path for path in PLACES if "resources" not in path[:-1]], ids=".".join)
@pytest.mark.parametrize("end", ["s", "_xyzxyz"])
def test_an_unknown_key_is_one_problem_and_brings_no_other(path: tuple[str, ...], end: str) -> None:
    faulty = changed(WHOLE, path, lambda key, value: (key + end, value))
    needed = {("version",), ("name",), ("learners", "a", "basis", "compartments", "by")}
    where = path[:-1] if path[-1] == "kind" else path
    lacking = [".".join(where)] if path in needed or path[-1] == "kind" else []
    assert sorted(told(faulty)) == sorted([".".join(path) + end, *lacking])


def test_what_depends_on_data_without_a_name_is_refused_when_it_has_been_read() -> None:
    run = parse.loads(HEAD + "data: {name: x.npz}\n" + one("kind: rbd, network: base_conv, basis: {dimensions: 99999}"))
    with pytest.raises(ValueError, match=r"learners\.w\.network: base_conv takes images"):
        workers.completed(run, (8, 8), 3)
    with pytest.raises(ValueError, match=r"learners\.w\.basis\.dimensions: 99999 directions for 9\d+ weights"):
        workers.completed(run, (28, 28), 3)


# ---------------------------------------------------------------- planned


def test_the_plan_says_what_an_update_takes_and_why_sums_are_exact_or_float() -> None:
    text = "learners:\n  w: {kind: rbd}\n  v: {kind: sgd}\n  u: {kind: local, update: {momentum: 0.9}}\n"
    run = workers.completed(parse.loads(HEAD + text), EXAMPLE, CLASSES)
    made = plan(run, EXAMPLE, CLASSES, 1)
    w, v, u = made.updates
    assert (w.coordinates, w.precision, w.every, w.size, w.arithmetic) == (1000, "sign", 10, 126, "exact")
    assert (v.coordinates, v.precision, v.every, v.size, v.arithmetic) == (9610, "float32", 1, 8 + 4 * 9610, "float")
    assert (u.every, u.size, u.arithmetic) == (50, 1 + 9610, "float") and "update.momentum" in u.why
    assert [row.kind for row in made.rows] == ["rbd", "sgd", "local"] and made.parameters == 3 * 9610
    assert [row.memory for row in made.rows] == [9610 * size for size in (4 + 4 + 8, 4, 4 + 4)]
    assert made.data.startswith("A worker alone sends nothing") and made.notes == ()
    console = Console(file=io.StringIO(), width=200)
    console.print(render(made))
    printed = console.file.getvalue()
    assert (
        "12.6" in printed
        and "38,448" in printed
        and "e+0" not in printed
        and "asks another" not in printed
        and "exact: sums of integers" in printed
        and "9,610" in printed
    )
    assert json.loads(json.dumps(as_json(made)))["updates"][0]["size"] == 126


def notes(options: str, *about: Any) -> list[str]:
    return workers.notes(parse.loads(HEAD + one(options)), *(about or (EXAMPLE, CLASSES)))


def test_a_residual_that_is_given_says_which_defaults_it_changes() -> None:
    assert notes("kind: rbd") == notes("kind: rbd, exchange: {residual: local, every: 1}") == []
    assert notes("kind: fpd, exchange: {residual: none}") == notes("kind: sgd") == []
    (note,) = notes("kind: rbd, exchange: {residual: none, every: 1}, update: {schedule: linear}")
    assert note == (
        "learners.w: exchange.residual: none changes what the file leaves out: basis.dimensions 250, not 1,000; "
        "exchange.precision int8, not sign; update.rate 6, not 0.1; update.weight 1, not 2.5"
    )
    (note,) = notes("kind: rbd, exchange: {residual: leaky}", None, 0)
    assert "exchange.every 1, not 10" in note and "precision" not in note and "rate" not in note  # which needs D


@settings(max_examples=30)
@given(st.sampled_from(["none", "leaky", "local"]), st.booleans(), st.booleans(), st.booleans())
def test_nothing_that_is_said_to_change_was_given(residual: str, every: bool, precision: bool, d: bool) -> None:
    exchange = f"exchange: {{residual: {residual}{', every: 1' * every}{', precision: int4' * precision}}}"
    found = " ".join(notes(f"kind: rbd, {exchange}{', basis: {dimensions: 7}' * d}"))
    given_ = {"exchange.every": every, "exchange.precision": precision, "basis.dimensions": d}
    assert not any(path in found for path, was in given_.items() if was)
    assert bool(found) == (residual != "local")


def test_nes_says_how_many_evaluations_a_step_takes() -> None:
    each = "basis: {dimensions: 30, compartments: {by: layer, share: each}}"
    for options, count in (("kind: nes", 250), (f"kind: nes, {each}", 60)):
        (note,) = notes(options)
        assert f"takes {count} evaluations of the loss a step" in note
        run = parse.loads(HEAD + one(options))
        made = plan(workers.completed(run, EXAMPLE, CLASSES), EXAMPLE, CLASSES, 1, notes=[note])
        assert made.updates[0].evaluations == count and made.notes == (note,)
        console = Console(file=io.StringIO(), width=500)
        console.print(render(made))
        assert note in console.file.getvalue()


def test_a_worker_is_drawn_alone() -> None:
    run = parse.loads(HEAD + one("kind: nes") + "  m: {kind: mach}\n")
    assert draw.text(run).splitlines()[0] == "w  nes on dense, 1000 steps of 32"
    assert "-->" not in draw.mermaid(run) and "nes on dense" in draw.mermaid(run) and "nes on dense" in draw.dot(run)


# ---------------------------------------------------------------- watched


def test_the_live_table_has_the_columns_that_say_something_of_a_learner_of_the_run(capsys) -> None:
    alone = {"step": 20.0, "speed/steps_per_second": 2.0, "validation/accuracy": 0.5, "bytes/updates": 252.0}
    asks = {"step": 9.0, "validation/accuracy/child": 0.25, "bytes/sent_inline": 1000.0, "exchange/fallbacks": 3.0}
    view.View({"w": 40}, plain=True, quiet=False).show({"w": alone})
    view.View({"w": 40, "m": 10}, plain=True, quiet=False).show({"w": alone, "m": asks})
    assert capsys.readouterr().out.splitlines() == [
        "learner w  step 20/40  steps/s 2.0  accuracy 50.0%  updates 252 B",
        "learner w  step 20/40  steps/s 2.0  accuracy 50.0%  fall-backs -  sent -  updates 252 B",
        "learner m  step 9/10  steps/s -  accuracy 25.0%  fall-backs 3  sent 1 kB  updates -",
    ]
