import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topology
from learners.options import Topology
from topology import parse
from topology.spec import levels, schema
from topology.tree import read

CHAINS = sorted((Path(topology.__file__).parent / "chains").glob("*.yaml"))
HEAD = "version: 1\nname: chain\n"
ONE = HEAD + "learners:\n  top: {kind: mach}\n"


def problems(text: str, *overrides: str) -> tuple[parse.Problem, ...]:
    with pytest.raises(parse.Problems) as caught:
        parse.loads(text, "chain.yaml", overrides)
    return caught.value.problems


def only(text: str, *overrides: str) -> parse.Problem:
    found = problems(text, *overrides)
    assert len(found) == 1, found
    return found[0]


def top(options: str, *overrides: str) -> Any:
    return parse.loads(HEAD + f"learners:\n  top: {{kind: mach, {options}}}\n", overrides=overrides).learners["top"]


# ---------------------------------------------------------------- good files


@pytest.mark.parametrize("chain", CHAINS, ids=lambda path: path.stem)
def test_shipped_chains_load_and_resolve_to_themselves(chain: Path) -> None:
    run = parse.load(chain)
    assert run.name == chain.stem
    assert parse.loads(parse.resolved(run)) == run


def test_defaults_are_merged_deep_and_own_values_win() -> None:
    run = parse.loads(
        HEAD
        + "defaults: {steps: 10, hidden: [4], optimizer: {name: sgd, warmup: 3}, resources: {cpus: 1}}\n"
        + "learners:\n  a: {kind: mach}\n"
        + "  b: {kind: mach, hidden: [5, 6], optimizer: {name: adam}, resources: {IPU: 2}}\n"
    )
    a, b = run.learners["a"], run.learners["b"]
    assert (a.steps, a.hidden, a.optimizer.name, a.optimizer.warmup) == (10, (4,), "sgd", 3)
    assert (b.steps, b.hidden, b.optimizer.name, b.optimizer.warmup) == (10, (5, 6), "adam", 3)
    assert b.resources == {"cpus": 1.0, "IPU": 2.0}
    assert "defaults" not in parse.resolved(run)


def test_merge_keys_work_and_what_they_bring_can_be_overridden() -> None:
    run = parse.loads(
        HEAD
        + "learners:\n  a: &a {kind: mach, steps: 10, optimizer: &o {name: sgd, warmup: 2}}\n"
        + "  b: {<<: *a, steps: 20, child: a}\n"
        + "  c: {<<: [{steps: 30, kind: mach}, *a], optimizer: {<<: *o, name: adam}}\n"
    )
    assert run.learners["b"].steps == 20 and run.learners["b"].optimizer == run.learners["a"].optimizer
    assert run.learners["c"].steps == 30, "of two merged mappings the first wins"
    assert (run.learners["c"].optimizer.name, run.learners["c"].optimizer.warmup) == ("adam", 2)


@pytest.mark.parametrize(
    "written, meant",
    [("1e-5", 1e-5), ("1e5", 1e5), ("3e8", 3e8), ("1E-3", 1e-3), ("+.5", 0.5), ("1.", 1.0), ("7", 7.0), ("010", 10.0)],
)
def test_numbers_are_read_as_people_mean_them(written: str, meant: float) -> None:
    rate = top(f"optimizer: {{learning_rate: {written}}}").optimizer.learning_rate
    assert rate == meant and isinstance(rate, float)


@pytest.mark.parametrize("written, meant", [("1e3", 1000), ("2e2", 200), ("128.0", 128), ("12.5e1", 125), ("+7", 7)])
def test_whole_numbers_may_be_written_as_floats(written: str, meant: int) -> None:
    steps = top(f"steps: {written}").steps
    assert steps == meant and isinstance(steps, int)


def test_rows_or_a_share_for_validation() -> None:
    def of(written: str) -> Any:
        return parse.loads(ONE + f"data: {{validation: {written}}}\n").data.validation

    assert [of("5000"), of("5e3"), of("0.25"), of("1")] == [5000, 5000, 0.25, 1]


def test_no_is_a_word_and_true_is_a_boolean() -> None:
    run = parse.loads(
        "version: 1\nname: no\nlearners:\n  on: {kind: mach, exchange: {gradients: false}}\n"
        "  y: {kind: mach, child: on}\n"
    )
    assert run.name == "no" and run.children_of("y") == ("on",)
    assert run.learners["on"].exchange.gradients is False and run.learners["y"].exchange.gradients is True


def test_a_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_bytes(b"\xef\xbb\xbf" + ONE.encode())
    assert parse.load(tmp_path / "chain.yaml").name == "chain"


def test_null_leaves_an_optional_value_out() -> None:
    assert top("child: null").child is None


# ---------------------------------------------------------------- case 24: numbers


@pytest.mark.parametrize(
    "line, key, words",
    [
        ("optimizer: {learning_rate: .inf}", "optimizer.learning_rate", "a finite number is wanted"),
        ("optimizer: {learning_rate: -.Inf}", "optimizer.learning_rate", "a finite number is wanted"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate", "a finite number is wanted"),
        ("optimizer: {learning_rate: 1e999}", "optimizer.learning_rate", "a finite number is wanted"),
        ("optimizer: {learning_rate: 1e99999999999999999999}", "optimizer.learning_rate", "is not a number above 0"),
        ("optimizer: {learning_rate: '1e-5'}", "optimizer.learning_rate", "quoted: remove the quotes"),
        ('steps: "10"', "steps", "quoted: remove the quotes"),
        ("steps: null", "steps", "give a value or remove the key"),
        ("steps:", "steps", "give a value or remove the key"),
        ("steps: ~", "steps", "give a value or remove the key"),
        ("optimizer:", "optimizer", "give a value or remove the key"),
        ("steps: 1.5", "steps", "1.5 is not a whole number of at least 1"),
        ("steps: 1e-3", "steps", "1e-3 is not a whole number of at least 1"),
        ("steps: 1e30", "steps", "1e30 is not a whole number of at least 1"),
        ("steps: 0", "steps", "0 is not a whole number of at least 1"),
        ("steps: 1_000", "steps", "write 1000"),
        ("steps: true", "steps", "'true' is not a whole number"),
        ("dropout: 1.0", "dropout", "1.0 is not a number of at least 0 and below 1"),
        ("exchange: {gradients: yes}", "exchange.gradients", "'yes' is not true or false"),
        ("exchange: {gradients: 1}", "exchange.gradients", "1 is not true or false"),
        ("hidden: 512", "hidden", "write [512]"),
        ("hidden: []", "hidden", "at least 1 value is wanted"),
        ("hidden: [4, 0]", "hidden[1]", "0 is not a whole number of at least 1"),
        ("children: {}", "children", "a mapping is not a list"),
        ("child: 3", "child", "3 is not a name"),
        ("child: -x", "child", "'-x' is not a name"),
        ("steps: !big 3", "steps", "the tag !big has no meaning here"),
        ("optimizer: {name: adma}", "optimizer.name", "did you mean 'adam'?"),
        ("resources: {IPU: '1'}", "resources.IPU", "quoted: remove the quotes"),
        ("resources: {IPU: -1}", "resources.IPU", "-1 is not a number of at least 0"),
    ],
)
def test_a_wrong_value_is_refused_with_line_and_key(line: str, key: str, words: str) -> None:
    found = only(HEAD + f"learners:\n  top:\n    kind: mach\n    {line}\n")
    assert (found.file, found.line, found.path) == ("chain.yaml", 6, f"learners.top.{key}")
    assert words in found.message


def test_text_that_reads_as_something_else_wants_quotes() -> None:
    found = only(ONE + "data: {name: x.npz, path: 2024}\n")
    assert (found.line, found.path) == (5, "data.path") and "put it in quotes" in found.message
    assert parse.loads(ONE + "data: {name: x.npz, path: '2024'}\n").data.path == "2024"


# ---------------------------------------------------------------- case 25: keys


@pytest.mark.parametrize(
    "text, line, path, words",
    [
        ("optimizer: {learing_rate: 1}", 6, "learners.top.optimizer.learing_rate", "did you mean 'learning_rate'?"),
        ("learning_rate: 1e-3", 6, "learners.top.learning_rate", "elsewhere: learners.top.optimizer.learning_rate"),
        ("learing_rate: 1e-3", 6, "learners.top.learing_rate", "elsewhere: learners.top.optimizer.learning_rate"),
        ("lr: 1e-3", 6, "learners.top.lr", "elsewhere: learners.top.optimizer.learning_rate"),
        ("every: 5", 6, "learners.top.every", "elsewhere: record.every"),
        ("batch-size: 5", 6, "learners.top.batch-size", "did you mean 'batch_size'?"),
        ("batchSize: 5", 6, "learners.top.batchSize", "did you mean 'batch_size'?"),
        ("optimizer: {learning-rate: 1}", 6, "learners.top.optimizer.learning-rate", "did you mean 'learning_rate'?"),
        ("epochs: 5", 6, "learners.top.epochs", "did you mean 'steps'?"),
        ("zzzz: 5", 6, "learners.top.zzzz", "known are kind, child, children"),
        ("steps: 5\n    steps: 6", 7, "learners.top.steps", "given twice, first in line 6"),
        ("steps: 5\n    <<: {steps: 7}\n    <<: {}", 8, "learners.top.<<", "given twice, first in line 7"),
        ("<<: 5", 6, "learners.top.<<", "only mappings can be merged"),
        ("? [a]\n    : 5", 6, "learners.top", "a key must be a single word"),
        ("\n  top: {kind: mach}", 7, "learners.top", "two learners are named 'top', the first in line 4"),
        ("\n  2nd: {kind: mach}", 7, "learners.2nd", "'2nd' is not a name"),
        ("\nsteps: 5", 7, "steps", "defaults.steps or learners.NAME.steps"),
        ("\ndefaults: {child: top}", 7, "defaults.child", "elsewhere: learners.NAME.child"),
        ("\ndefaults: {lr: 1}", 7, "defaults.lr", "elsewhere: defaults.optimizer.learning_rate"),
        ("\nlearner: {}", 7, "learner", "did you mean 'learners'?"),
    ],
)
def test_a_wrong_key_is_refused_with_what_was_meant(text: str, line: int, path: str, words: str) -> None:
    found = only(HEAD + f"learners:\n  top:\n    kind: mach\n    {text}\n")
    assert (found.file, found.line, found.path) == ("chain.yaml", line, path)
    assert words in found.message


@pytest.mark.parametrize(
    "learner, path, words",
    [
        (
            "{kind: zzz}",
            "learners.top.kind",
            "'zzz' is not a kind of learner; known are mach, rbd, fpd, nes, sgd, local",
        ),
        ("{kind: mahc, steps: 10}", "learners.top.kind", "did you mean 'mach'?"),
        ("{steps: 5}", "learners.top", "its kind is missing; add kind: mach"),
        ("[]", "learners.top", "a list is not a mapping"),
        ("", "learners.top", "null is not a mapping"),
    ],
)
def test_a_learner_needs_a_known_kind(learner: str, path: str, words: str) -> None:
    found = only(HEAD + f"learners:\n  low: {{kind: mach, child: top}}\n  top: {learner}\n")
    assert (found.line, found.path) == (5, path) and words in found.message


def told(text: str) -> set[str]:
    return {problem.path.removeprefix("learners.") for problem in problems(HEAD + text)}


def test_a_learner_of_unknown_kind_is_judged_by_what_all_that_it_may_be_have_in_common() -> None:
    lines = "learners:\n  low: {kind: mach, child: top}\n"
    near = "  top: {kind: mahc, steps: ten, dropout: 2, hiden: [3], child: lo, basis: {}}\n"
    assert told(lines + near) == {f"top.{key}" for key in ("kind", "steps", "dropout", "hiden", "child", "basis")}
    several = (
        "  top: {kind: zzz, steps: ten, basis: {dimensions: 0, redraw: 1}, update: {rat: 1}, offspring: {sigma: 0}}\n"
    )
    assert told(lines + several) == {
        "top.kind",
        "top.steps",
        "top.basis.dimensions",
        "top.update.rat",
        "top.offspring.sigma",
    }
    any_ = "  top: {kind: zzz, batch_size: 0, update: {rate: 0}}\n"
    assert told(lines + any_) == {"top.kind", "top.batch_size", "top.update.rate"}
    missing = "  top: {steps: ten, exchange: {every: 0, patience: 1}}\n"
    assert "top" in told(lines + missing) and "top.steps" in told(lines + missing)


def test_a_part_that_lacks_what_it_needs_hides_no_other_fault() -> None:
    lines = (
        "learners:\n  top: {kind: rbd, steps: 7, basis: {compartments: {size: 7}}}\n  low: {kind: mach, child: lo}\n"
    )
    assert told(lines) == {"top.basis.compartments.by", "top.steps", "low.child"}


def test_what_is_missing_is_named() -> None:
    found = problems("seed: 1\n")
    assert [problem.path for problem in found] == ["version", "name", "learners"]
    assert "at least 1" in only(HEAD + "learners: {}\n").message


def test_a_fault_behind_an_anchor_is_told_once() -> None:
    text = HEAD + "learners:\n  a: &a {kind: mach, steps: 0}\n  b: {<<: *a, child: a}\n  c: {<<: *a, child: b}\n"
    assert only(text).line == 4


def test_all_problems_of_a_file_come_at_once_in_the_order_of_its_lines() -> None:
    text = """\
version: 1
name: chain
sed: 7
data: {validation: 1.5}
defaults:
  batch-size: 64
  optimizer: {learning_rate: '1e-3'}
learners:
  bottom: {kind: mach, steps: 0, resources: {CPU: 1}}
  middle: {kind: mach, child: botom}
  top: {kind: mach, child: middle}
  top: {kind: mach, learing_rate: .inf}
  a: {kind: mach, child: b}
  b: {kind: mach, child: a}
record: {every: null}
"""
    found = problems(text)
    assert [(problem.line, problem.path) for problem in found] == [
        (3, "sed"),
        (4, "data.validation"),
        (6, "defaults.batch-size"),
        (7, "defaults.optimizer.learning_rate"),
        (9, "learners.bottom.steps"),
        (9, "learners.bottom.resources.CPU"),
        (10, "learners.middle.child"),
        (12, "learners.top"),
        (12, "learners.top.learing_rate"),
        (13, "learners.a.child"),
        (15, "record.every"),
    ]
    error = parse.Problems(found)
    assert str(error).splitlines()[6] == (
        "chain.yaml:10: learners.middle.child: 'botom' is not a learner; did you mean 'bottom'?"
    )
    assert pickle.loads(pickle.dumps(error)).problems == found


# ---------------------------------------------------------------- overrides


def test_overrides_win_over_file_and_defaults() -> None:
    text = HEAD + "defaults: {steps: 5}\nlearners:\n  top: {kind: mach, embedding: 3}\n  low: {kind: mach}\n"
    run = parse.loads(
        text,
        overrides=[
            "learners.top.steps=1e1",
            "learners.top.optimizer.name=sgd",
            "learners.top.hidden=[7, 8]",
            "learners.top.child=low",
            "defaults.batch_size=9",
            "data.name=mnist",
            "name=other",
        ],
    )
    one = run.learners["top"]
    assert (one.steps, one.optimizer.name, one.hidden, one.child) == (10, "sgd", (7, 8), "low")
    assert (one.batch_size, run.learners["low"].batch_size, run.learners["low"].steps) == (9, 9, 5)
    assert (run.name, run.data.name, one.embedding) == ("other", "mnist", 3)


def test_an_override_through_an_anchor_changes_one_learner() -> None:
    text = HEAD + "learners:\n  a: &a {kind: mach, optimizer: {warmup: 2}}\n  b: *a\n"
    run = parse.loads(text, overrides=["learners.a.optimizer.warmup=1"])
    assert [run.learners[name].optimizer.warmup for name in "ab"] == [1, 2]


@pytest.mark.parametrize(
    "override, path, words",
    [
        ("learners.top.steps=ten", "learners.top.steps", "'ten' is not a whole number of at least 1"),
        ("learners.top.steps=", "learners.top.steps", "null is not a whole number"),
        ("learners.top.stesp=10", "learners.top.stesp", "did you mean 'steps'?"),
        ("learners.tpo.steps=10", "learners.tpo", "'tpo' is not a learner; did you mean 'top'?"),
        ("learners.top.steps.x=10", "learners.top.steps", "a mapping is not a whole number"),
        ("lerners.top.steps=10", "lerners", "did you mean 'learners'?"),
        ("steps=10", "steps", "defaults.steps or learners.NAME.steps"),
        ("learners.top.child=botom", "learners.top.child", "'botom' is not a learner"),
        ("learners.top.hidden=[1", "", "not valid YAML"),
        ("steps", "", "write key=value"),
        ("learners..x=1", "", "write key=value"),
        ("=1", "", "write key=value"),
    ],
)
def test_a_faulty_override_is_named_as_it_was_typed(override: str, path: str, words: str) -> None:
    found = only(ONE, override)
    assert (found.file, found.line, found.path) == (f"--set {override}", None, path)
    assert words in found.message and str(found).startswith(f"--set {override}: ")


# ---------------------------------------------------------------- what is no run file


@pytest.mark.parametrize(
    "text, line, words",
    [
        ("", None, "is empty"),
        ("# nothing\n", None, "is empty"),
        ("- 1\n", 1, "a list where keys are wanted"),
        ("\nword\n", 2, "'word' where keys are wanted"),
        ("version: 1\nname: [a\n", 2, "the bracket that begins here"),
        ("version: 1\nname: 'a\nseed: 3\n", 2, "the quote that begins here"),
        ("version: 1\nname: a: b\n", 2, "a second ': ' in one line"),
        ("version: 1\nname: a\n  seed: 3\n", 3, "indented unlike"),
        ("version: 1\n  seed: 3\nname: a\n", 2, "indented unlike"),
        (ONE + "   low: {kind: mach}\n", 5, "indented unlike"),
        ("version: 1\n\tname: a\n", 2, "not valid YAML"),
        ("version: 1\nname: *a\n", 2, "undefined alias"),
        ("version: 1\nname: \x01\n", 2, "not valid YAML"),
        (ONE + "---\nversion: 1\n", 5, "single document"),
        ("[" * 5000, None, "nested hundreds deep"),
    ],
)
def test_what_is_no_run_file_is_one_problem(text: str, line: int | None, words: str) -> None:
    found = only(text)
    assert found.line == line and words in found.message, found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version: 1\nname x\nseed: 3\n", 2),
        ("version: 1\nname:x\nseed: 3\n", 2),
        ("version 1\nname: x\n", 1),
        ("version: 1\nlearners\n# of the run\n\n  top: {kind: mach}\n", 2),
        ("version: 1\nlearners:\n  top\n\n    kind: mach\n", 3),
        ("version: 1\nlearners:\n  top:\n    kind:mach\n    steps: 3\n", 4),
        ("version: 1\nlearners: {}\nseed 3\n", 3),
    ],
)
def test_a_missing_colon_is_named_where_it_is_missing(text: str, line: int) -> None:
    """The parser notices it in the line after."""
    found = only(text)
    assert found.line == line and "no ': ' behind the key" in found.message


@pytest.mark.parametrize(
    "text", ["learners:\n  low: {kind: mach\n  top: {kind: mach}\n", "data: {\n  name: digits\n  seed: 3}\n"]
)
def test_a_bracket_or_comma_is_missed_at_the_end_of_the_line_before(text: str) -> None:
    found = only(text)
    assert found.line == 2 and "missing at the end of this line" in found.message


def test_an_alias_of_itself_is_refused() -> None:
    assert any("holds an alias of itself" in problem.message for problem in problems(ONE + "data: &d {path: *d}\n"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"version: 1\nname: caf\xe9\n")
    for name, line, words in [
        ("latin.yaml", 2, "not UTF-8"),
        ("none.yaml", None, "No such file"),
        ("", None, "folder"),
    ]:
        with pytest.raises(parse.Problems) as caught:
            parse.load(tmp_path / name)
        (found,) = caught.value.problems
        assert (found.file, found.line) == (str(tmp_path / name), line) and words in found.message


# ---------------------------------------------------------------- properties


def options(path: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Any valid values for the keys at a level of the file."""
    whole, rate = st.integers(1, 2**63 - 1), st.floats(1e-300, 1e300)
    share = st.floats(0.0, 1.0, exclude_max=True)
    widths = st.lists(whole, min_size=1, max_size=3)
    choices: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "optimizer": {
            "name": st.sampled_from(["sgd", "momentum", "nesterov", "adam"]),
            "learning_rate": rate,
            "schedule": st.sampled_from(["constant", "linear", "cosine"]),
            "warmup": st.integers(0, 1),
            "momentum": share,
            "beta_1": share,
            "beta_2": share,
            "epsilon": rate,
            "weight_decay": rate,
            "decay": st.sampled_from(["coupled", "decoupled"]),
        },
        "synthetic": {"hidden": widths, "weight": rate},
        "exchange": {
            "in_flight": st.integers(1, 3),
            "pack": st.integers(1, 64),
            "patience": share,
            "time_limit": st.floats(1.0, 1e9),
            "max_staleness": whole,
            "clip": rate,
            "gradient_rate": rate,
            "queue": st.integers(13, 99),
            "gradients": st.booleans(),
        },
        "learner": {
            "hidden": widths,
            "embedding": whole,
            "dropout": share,
            "batch_size": whole,
            "steps": whole,
            "resources": st.dictionaries(st.sampled_from(["cpus", "gpus", "IPU", "a b: 'c'"]), st.integers(1, 8)),
        },
        "data": {
            "name": st.sampled_from(["digits", "mnist", "a: b.npz", "# .npz", "module:function", "x\ny.npz", "é.npz"]),
            "path": st.one_of(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])), st.none()),
            "validation": st.one_of(whole, st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)),
            "shard": st.sampled_from(["none", "by_learner"]),
        },
        "record": {"every": whole, "rows": whole, "attribution": st.integers(0, 9)},
    }
    return st.fixed_dictionaries({}, optional=choices[path[-1]])


LEARNER = st.builds(
    lambda own, inner: {**own, **inner},
    options(("learner",)),
    st.fixed_dictionaries({}, optional={name: options((name,)) for name in ("optimizer", "synthetic", "exchange")}),
)
RUN = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "name": st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True),
        "learners": st.fixed_dictionaries(
            {
                "true": LEARNER.map(lambda own: {"kind": "mach", **own}),
                "b": LEARNER.map(lambda own: {"kind": "mach", "child": "true", **own}),
                "c": LEARNER.map(lambda own: {"kind": "mach", "children": ["b", "true"], **own}),
            }
        ),
    },
    optional={
        "seed": st.integers(0, 2**63 - 1),
        "data": options(("data",)),
        "record": options(("record",)),
        "defaults": LEARNER,
    },
)


@settings(max_examples=60, deadline=None)
@given(RUN)
def test_any_valid_run_resolves_to_yaml_that_loads_back_equal(run: dict[str, Any]) -> None:
    loaded = parse.loads(json.dumps(run))  # JSON is YAML
    assert parse.loads(parse.resolved(loaded)) == loaded
    assert loaded.children_of("c") == ("b", "true")
    for name, own in run["learners"].items():
        for key in own.keys() & {"steps", "embedding", "dropout"}:
            assert getattr(loaded.learners[name], key) == own[key]
        if "steps" in run.get("defaults", {}) and "steps" not in own:
            assert loaded.learners[name].steps == run["defaults"]["steps"]


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("abk:{}[]-*&!#'\"|>% \n\t\\0e1~<"), max_size=40))
def test_no_text_makes_it_fail_in_another_way(text: str) -> None:
    for whole in (text, ONE + text, HEAD + "learners:\n  top: {kind: mach}\n  " + text):
        try:
            assert isinstance(parse.loads(whole), Topology)
        except parse.Problems as error:
            assert error.problems and all(problem.message for problem in error.problems)


def at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree[part]
    return tree


TWO = HEAD + "learners:\n  low: {kind: mach}\n  top: {kind: mach}\n"
PLAIN = msgspec.json.decode(msgspec.json.encode(parse.loads(TWO)))
#: key path of every option outside the defaults; `top` stands for any learner
OPTIONS = [
    ".".join("top" if part == "*" else part for part in (*level, key))
    for level, keys, kind in levels()
    for key in keys
    if kind in ("", "mach") and level[:1] != ("defaults",)
    if (*level, key) not in {part for part, _, kind in levels() if kind in ("", "mach")}
    if key not in ("version", "kind", "learners")
]
#: for options of which no value can be made up from the default
UNLIKE = {
    "name": "y",
    "data.name": "mnist",
    "data.path": "/x",
    "data.shard": "by_learner",
    "learners.top.child": "low",
    "learners.top.children": ["low"],
    "learners.top.resources": {"IPU": 1.0},
    "learners.top.optimizer.name": "sgd",
    "learners.top.optimizer.schedule": "cosine",
    "learners.top.optimizer.decay": "decoupled",
    "learners.top.exchange.in_flight": 2,
    "learners.top.exchange.precision": "int8",
}


@pytest.mark.parametrize("path", OPTIONS)
def test_every_option_can_be_set_in_the_file_and_arrives(path: str) -> None:
    old = at(PLAIN, path)
    made_up = {bool: lambda: not old, list: lambda: [3], int: lambda: old + 1, float: lambda: (old + 0.5) / 2}
    value = UNLIKE[path] if path in UNLIKE else made_up[type(old)]()
    text = value
    for part in reversed(path.split(".")):
        text = {part: text}
    run = parse.loads(json.dumps(merged(PLAIN, text)))
    assert at(msgspec.json.decode(msgspec.json.encode(run)), path) == value != old


def merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


# ---------------------------------------------------------------- schema


def test_schema_accepts_the_shipped_chains_and_refuses_faults() -> None:
    check = jsonschema.Draft202012Validator(schema())
    good = {"version": 1, "name": "x", "defaults": {"steps": 5}, "learners": {"top": {"kind": "mach"}}}
    assert check.is_valid(good)
    for fault in (
        {"defaults": {"stesp": 5}},
        {"defaults": {"kind": "mach"}},
        {"defaults": {"optimizer": {"learning_rate": 0}}},
        {"learners": {}},
        {"learners": {"top": {}}},
        {"learners": {"2": {"kind": "mach"}}},
        {"sed": 3},
    ):
        assert not check.is_valid({**good, **fault}), fault
    for chain in CHAINS:
        assert check.is_valid(msgspec.json.decode(msgspec.json.encode(parse.load(chain))))


def test_every_key_of_the_schema_is_described() -> None:
    for name, struct in schema()["$defs"].items():
        for key, value in struct["properties"].items():
            assert "description" in value or "$ref" in value or "enum" in value, f"{name}.{key}"


def test_reading_knows_lines() -> None:
    tree = read("a: 1\nb:\n  c: [x,\n   y]\n", "f", [])
    assert tree.entries[1].value.entries[0].value.values[1].where[:2] == ("f", 4)
