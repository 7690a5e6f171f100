"""The 26 faults of the original: docs/assumptions.md names a test, or a reason, for each; and those of no one room."""

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from learners import options
from learners.batches import Dataset, Split
from learners.rbd import options as rbd_options
from topology import crew, outcome
from topology.parse import loads

CHECKOUT = Path(__file__).parents[1]
ROOMS = ("actors", "analysis", "learners", "topology")
THREE = "version: 1\nname: x\nlearners: {a: {kind: mach}, b: {kind: mach, child: a}, c: {kind: mach, child: b}}\n"


def rows_of_the_table():
    """Number, fault, what ours does, what holds it."""
    text = (CHECKOUT / "docs/assumptions.md").read_text()
    section = text.split("## The 26 faults of the original\n")[1].split("\n## ")[0]
    return re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)


def named(text):
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)


def functions_of(path):
    """Names of the tests in a file, without importing it."""
    return {node.name for node in ast.parse((CHECKOUT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_table_has_every_fault():
    assert [int(number) for number, *_ in rows_of_the_table()] == list(range(1, 27))


@pytest.mark.parametrize("row", rows_of_the_table(), ids=lambda row: row[0])
def test_each_fault_is_held_by_tests_that_exist_or_by_a_reason(row):
    held = row[3]
    assert named(held) or held.startswith(("cannot occur: ", "open: "))
    for path, name in named(held):
        assert name in functions_of(path), f"{path} has no {name}"
    assert held.count("`tests/") == len(named(held))  # none is misspelt past the pattern


# ---------------------------------------------------------------- faults that belong to no one room


def test_two_runs_never_share_a_folder(tmp_path, monkeypatch):
    """Fault 21: the folder was the time in seconds. Even if all that tells two apart were equal, one would fail."""
    topology = loads(THREE)
    monkeypatch.setattr(outcome.time, "strftime", lambda _: "20260101-000000")
    folders = {outcome.new_folder(tmp_path, topology) for _ in range(3)}
    assert len(folders) == 3
    monkeypatch.setattr(outcome.secrets, "token_hex", lambda _: "0000")
    outcome.new_folder(tmp_path, topology)
    with pytest.raises(FileExistsError):
        outcome.new_folder(tmp_path, topology)


@pytest.mark.parametrize("shard", ["none", "by_learner"])
def test_the_data_is_put_into_the_store_once(shard):
    """Fault 23: each component had a copy. All learners hold the same references, or each its own rows alone."""
    put = []
    store = SimpleNamespace(put=lambda value: put.append(value) or len(put))
    split = Split(np.arange(12, dtype=np.uint8).reshape(12, 1), np.zeros(12, np.int32))
    dataset = Dataset("x", "here", split, split, split, classes=1, shape=(1,), scale=1.0, offset=0.0)
    setups = crew.setups(store, loads(f"{THREE}data: {{shard: {shard}}}\n"), dataset, None, None)
    held = {(name, kind): getattr(setup.data, kind) for name, setup in setups.items() for kind in ("train", "test")}
    if shard == "none":
        assert len(put) == 3 and len(set(held.values())) == 2
    else:
        assert len(put) == 2 + 3 and len({held[name, "train"] for name in "abc"}) == 3
        own = [put[held[name, "train"][0] - 1].inputs.ravel() for name in "abc"]
        assert sorted(np.concatenate(own)) == list(range(12))


def test_every_option_is_read():
    """Fault 25: some did nothing. Each is looked at by code that runs, not only by what reads and checks files."""
    only_text = {"options.py", "check.py", "parse.py", "spec.py", "values.py", "tree.py", "draw.py", "view.py"}
    only_text |= {"rbd_options.py", "rbd_refusals.py"}
    read = {
        node.attr
        for room in ROOMS
        for file in (CHECKOUT / room).rglob("*.py")
        if file.name not in only_text
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    named = {**vars(options), **vars(rbd_options)}.values()
    kinds = [value for value in named if isinstance(value, type) and issubclass(value, options.Options)]
    # the defaults are in the learners when a file has been read
    assert {field.name for kind in kinds for field in msgspec.structs.fields(kind)} - read == {"defaults"}


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
        for room in ROOMS
        for path in (CHECKOUT / room).rglob("*.py")
    ),
)
def test_every_module_runs(module):
    """Fault 26: a draft that did not."""
    importlib.import_module(module.removesuffix(".__init__"))
