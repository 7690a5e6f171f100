"""Networks of the user's are built in a process of their own, and what is wrong with them is said at their line."""

import json
import subprocess
import sys
from datetime import timedelta

import pytest

from learners.layout import network
from topology import cli, findings, own, parse

MODULE = """
import os
import keras
print("said on standard output")
def model(example, classes):
    layers = keras.layers
    relu = layers.Dense(128, activation="relu")
    return keras.Sequential([keras.Input(example), layers.Flatten(), relu, layers.Dense(classes)])
def wide(example, classes):
    return model(example, classes + 1)
def ends(example, classes):
    os._exit(7)
"""
FILE = """version: 1
name: mine
learners:
  one:
    kind: rbd
    network: machworks_user_own:{}
    {}
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "machworks_user_own.py").write_text(MODULE)

    def written(name, more="steps: 10"):
        path = tmp_path / "mine.yaml"
        path.write_text(FILE.format(name, more))
        return path

    return written


def test_what_is_built_is_what_keras_has_and_nothing_is_loaded_here(run, tmp_path):
    file = run("model")
    script = (
        "import sys, pathlib\nfrom topology import own, parse\n"
        f"made = own.networks(parse.load({str(file)!r}), (8, 8), 10, pathlib.Path({str(tmp_path)!r}), print)\n"
        "print([t[1:] for t in made['one'].tensors], 'tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    said, found = done.stdout.splitlines()
    assert said == "building machworks_user_own:model in another process, to count its weights"
    assert found == f"{[t[1:] for t in network('dense', (8, 8), 10).tensors]} False"


def test_a_function_that_ends_its_process_is_named_with_its_learner(run, tmp_path):
    with pytest.raises(findings.Unfit) as caught:
        own.networks(parse.load(run("ends")), (8, 8), 10, tmp_path)
    ((path, message),) = caught.value.findings
    assert path == "learners.one.network" and "machworks_user_own:ends: its process ended with status 7: " in message


def test_a_function_that_never_returns_is_given_up(run, tmp_path, monkeypatch):
    monkeypatch.setattr(own, "LIMIT", timedelta(milliseconds=1))
    with pytest.raises(findings.Unfit, match=r"learners\.one\.network: .*it was not built within 0\.001 s"):
        own.networks(parse.load(run("model")), (8, 8), 10, tmp_path)


def test_what_is_no_model_is_said_at_its_line(run, capsys):
    file = run("wide")
    assert cli.main(["plan", str(file)]) == 2
    words = "learners.one.network: machworks_user_own:wide: found a model that maps to (None, 11); expected (None, 10)"
    assert f"{file}:6: {words}" in capsys.readouterr().err


@pytest.fixture
def built(monkeypatch):
    """As if the dense network had been built."""
    asked = []
    monkeypatch.setattr(own, "_built", lambda *given: asked.append(given) or network("dense", *given[1:3]))
    return asked


def test_plan_counts_its_weights_and_says_what_they_contradict(run, capsys, built, tmp_path):
    file = run("model")
    assert cli.main(["plan", str(file), "--json"]) == 0
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert made["parameters"] == 9610 and made["updates"][0]["size"] == 126
    assert said.err == "building machworks_user_own:model in another process, to count its weights\n"
    assert built == [("machworks_user_own:model", (8, 8), 10, tmp_path)]
    key = "learners.one.basis.dimensions"
    assert cli.main(["plan", str(run("model", "basis: {dimensions: 9999}"))]) == 2
    assert f"{file}:7: {key}: 9999 directions for 9610 weights" in capsys.readouterr().err
    assert cli.main(["plan", str(run("model")), "--set", f"{key}=9999"]) == 2
    assert f"--set {key}=9999: {key}: 9999 directions for 9610 weights" in capsys.readouterr().err


def test_a_run_is_refused_in_the_same_words_before_ray_starts(run, capsys, tmp_path, monkeypatch, built):
    monkeypatch.setattr("topology.cluster.connected", lambda address: pytest.fail("Ray was started"))
    file = run("model", "basis: {dimensions: 9999}")
    assert cli.main(["run", str(file), "--plain", "--runs", str(tmp_path / "runs")]) == 2
    assert f"{file}:7: learners.one.basis.dimensions: 9999 directions" in capsys.readouterr().err


def test_validate_builds_nothing_and_says_what_it_does_not_know(run, capsys, monkeypatch):
    monkeypatch.setattr(own, "_built", lambda *_: pytest.fail("it was built"))
    assert cli.main(["validate", str(run("gone"))]) == 0
    assert "learners.one.network: not built here, so what depends on its weights" in capsys.readouterr().out
    assert cli.main(["validate", str(run("gone")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == ["learners.one.network"]
    assert cli.main(["validate", str(run("gone", "steps: 7"))]) == 2  # what the options alone say
