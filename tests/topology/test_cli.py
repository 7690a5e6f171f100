"""The command line without Ray: what it says, where, and with which exit status."""

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from actors import quiet
from learners.records import Record
from topology import cli
from topology import outcome as outcome_

CHECKOUT = Path(__file__).parents[2]
CHAINS = CHECKOUT / "topology" / "chains"
COMMANDS = (
    "run",
    "resume",
    "stop",
    "export",
    "validate",
    "options",
    "plan",
    "graph",
    "status",
    "analyse",
    "tensorboard",
    "bench",
)


@pytest.fixture
def says(capsys):
    """Runs a command; gives (status, standard output, standard error)."""

    def call(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def faulty(tmp_path):
    path = tmp_path / "faulty.yaml"
    path.write_text(
        "version: 1\nname: faulty\ndefaults: {learing_rate: 1}\nlearners:\n"
        "  bottom: {kind: mach, steps: '10'}\n  top: {kind: mach, child: botom}\n"
    )
    return path


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example_that_parses(says, command):
    status, out, _ = says(command, "--help")
    assert status == 0
    (example,) = [line for line in out.splitlines() if line.startswith("example: machworks ")]
    arguments = example.removeprefix("example: machworks ").split()
    assert arguments[0] == command
    cli._parser().parse_args(arguments)


def test_help_names_every_command_and_the_exit_statuses(says):
    status, out, _ = says("--help")
    assert status == 0 and all(command in out for command in COMMANDS)
    assert "130 interrupted" in out


def test_version(says):
    status, out, _ = says("--version")
    assert status == 0 and out.startswith("machworks ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nothing",),
        ("run",),
        ("run", "a.yaml", "--nonsense"),
        ("graph", "a.yaml", "--format", "svg"),
        ("run", "a.yaml", "--det"),
    ],
)
def test_a_wrong_command_is_status_2(says, arguments):
    status, out, err = says(*arguments)
    assert status == 2 and not out and "usage: machworks" in err


@pytest.mark.parametrize("command", ["validate", "graph", "plan"])
def test_the_command_line_starts_without_anything_heavy(command):
    """Three imports would cost seconds before the first word: TensorFlow, Ray, matplotlib."""
    heavy = {"tensorflow", "matplotlib", *([] if command == "plan" else ["ray"])}
    script = "import sys; from topology import cli; cli.main(sys.argv[1:]); print('loaded', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, command, str(CHAINS / "digits.yaml")],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not heavy & set(done.stdout.splitlines()[-1].split())


# ---------------------------------------------------------------- validate


def test_validate_says_all_problems_at_once(says, faulty):
    status, out, err = says("validate", faulty)
    assert status == 2 and not out
    assert f"{faulty}:3" in err and "learing_rate" in err and "learning_rate" in err
    assert "'10'" in err and "'bottom'" in err and "Traceback" not in err
    assert len(err.splitlines()) >= 3
    status, out, err = says("validate", faulty, "--json")
    assert status == 2 and not err
    answer = json.loads(out)
    assert answer["status"] == 2 and len(answer["problems"]) >= 3


@pytest.mark.parametrize("command", ["validate", "run", "plan", "graph"])
def test_every_command_that_reads_a_file_refuses_a_faulty_or_missing_one(says, faulty, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for path in (faulty, tmp_path / "nowhere.yaml", tmp_path):
        status, out, err = says(command, path)
        assert status == 2 and str(path) in err and not out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faulty.yaml"]  # nothing was started


@pytest.mark.parametrize("path", sorted(CHAINS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_chains_are_valid(says, path):
    status, out, err = says("validate", path)
    assert status == 0 and "valid" in out and not err
    status, out, _ = says("validate", path, "--json")
    assert status == 0 and json.loads(out)["status"] == 0 and json.loads(out)["learners"]


def test_validate_says_what_may_surprise(says):
    changed = ("--set", "learners.worker.exchange.residual=none")
    status, out, _ = says("validate", CHAINS / "rbd.yaml", *changed)
    first, note = out.splitlines()
    assert status == 0 and first.endswith("valid: 1 learner: worker")
    assert "basis.dimensions 250, not 1,000" in note
    status, out, _ = says("validate", CHAINS / "rbd.yaml", *changed, "--json")
    assert status == 0 and json.loads(out)["notes"] == [note]
    assert ": valid: 3 learners: bottom, middle, top\n" in says("validate", CHAINS / "digits.yaml")[1]


def test_a_wrong_override_is_refused_like_a_wrong_file(says):
    status, _, err = says("validate", CHAINS / "digits.yaml", "--set", "learners.tpo.steps=3", "--set", "sed=1")
    assert status == 2 and "tpo" in err and "sed" in err


def test_the_schema(says):
    status, out, _ = says("validate", "--schema")
    assert status == 0 and json.loads(out)["title"] == "machworks run file, version 1"
    status, _, err = says("validate")
    assert status == 2 and "a file is wanted" in err


def test_options_of_a_word_or_of_none(says):
    status, out, _ = says("options", "residual")
    assert status == 0 and out.startswith("exchange.residual  (rbd, fpd, nes, local)\n    one of leaky, local, none; ")
    assert len(says("options")[1]) > 20 * len(out)
    status, out, err = says("options", "nothing")
    assert status == 2 and not out and "no key holds 'nothing'" in err
    assert says("options", "residual", "--md")[0] == 2


# ---------------------------------------------------------------- plan, graph


def test_plan_says_learners_memory_bytes_and_what_leaves(says):
    status, out, err = says("plan", CHAINS / "digits.yaml", "--set", "defaults.resources.cpus=0.1")
    assert status == 0 and not err
    assert "middle -> bottom" in out and "99,530" in out and "labels stay" in out
    status, out, _ = says("plan", CHAINS / "digits.yaml", "--json", "--set", "defaults.resources.cpus=0.1")
    plan = json.loads(out)
    assert status == 0 == plan["status"] and plan["problems"] == []
    assert [row["learner"] for row in plan["rows"]] == ["bottom", "middle", "top"]
    assert plan["memory"] == sum(row["memory"] for row in plan["rows"])


def test_set_changes_the_plan(says):
    _, out, _ = says("plan", CHAINS / "digits.yaml", "--json", "--set", "learners.top.steps=12", "--set", "seed=3")
    assert {row["learner"]: row["steps"] for row in json.loads(out)["rows"]}["top"] == 12


def test_plan_names_what_is_lacking(says):
    lacking = ("--set", "learners.top.resources.IPU=1", "--set", "defaults.resources.cpus=0.1")
    status, out, _ = says("plan", CHAINS / "digits.yaml", *lacking)
    assert status == 2 and "learners.top.resources.IPU: 1 wanted, no host has any" in out
    status, out, _ = says("plan", CHAINS / "digits.yaml", "--json", *lacking)
    answer = json.loads(out)
    assert status == 2 == answer["status"] and len(answer["problems"]) == 1
    assert (answer["lacks"][0]["learner"], answer["lacks"][0]["resource"]) == ("top", "IPU")


@pytest.mark.parametrize(("form", "mark"), [("text", "top"), ("mermaid", "flowchart"), ("dot", "digraph")])
def test_graph_in_each_format(says, form, mark):
    status, out, _ = says("graph", CHAINS / "two-children.yaml", "--format", form)
    assert status == 0 and mark in out and all(name in out for name in ("left", "right", "top"))


def test_graph_into_a_file(says, tmp_path):
    path = tmp_path / "chain.png"
    status, out, _ = says("graph", CHAINS / "digits.yaml", "--out", path)
    assert status == 0 and out.strip() == str(path) and path.read_bytes().startswith(b"\x89PNG")
    status, _, err = says("graph", CHAINS / "digits.yaml", "--out", tmp_path / "no" / "chain.png")
    assert status == 2 and str(tmp_path / "no") in err


# ---------------------------------------------------------------- status


def folder(runs, name, *, state="ended", process=None, step=20, cut=b"", outcome=None):
    """A run folder as the driver and the recorder leave it."""
    run = runs / name
    (run / "records").mkdir(parents=True)
    (run / "tensorboard").mkdir()
    (run / "chain.yaml").write_text("{version: 1, name: x, learners: {top: {kind: mach}}}\n")
    supervisor = process or os.getpid()
    manifest = {"state": state, "host": os.uname().nodename, "process": supervisor, "seed": 1}
    manifest["born"] = outcome_.born(supervisor)
    (run / "run.json").write_text(json.dumps(manifest | ({"outcome": outcome} if outcome else {})))
    values = {"validation/accuracy/child": 0.0, "exchange/fallbacks": 1.0}
    lines = [
        Record("top", 0, s, 0.0, "train", values | {"validation/accuracy/child": s / 100}) for s in range(1, step + 1)
    ]
    (run / "records/top.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + cut)
    return run


def aged(*runs):
    """Started one after the other, and written to in the opposite order."""
    for age, run in enumerate(runs):
        os.utime(run / "chain.yaml", (1000 + age, 1000 + age))
        os.utime(run / "run.json", (2000 - age, 2000 - age))


def test_status_is_of_the_newest_run_or_of_the_one_that_is_named(says, tmp_path):
    aged(*(folder(tmp_path, name, step=step) for name, step in (("old", 5), ("in between", 6), ("new", 7))))
    status, out, _ = says("status", "--runs", tmp_path)
    assert status == 0 and "new" in out and "old" not in out
    for which, step in (((), 7), (("in between",), 6), ((tmp_path / "old",), 5)):
        status, out, _ = says("status", *which, "--runs", tmp_path, "--json")
        assert status == 0 and json.loads(out)["learners"]["top"]["step"] == step
    status, _, err = says("status", "old", "--runs", tmp_path, "--all")
    assert status == 2 and "not both" in err


def test_the_state_of_a_run_is_one_word(says, tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    runs = {
        "live": folder(tmp_path, "live", state="running", cut=b'{"learner": "top", "st'),
        "done": folder(tmp_path, "done", outcome={"status": 0}),
        "failed": folder(tmp_path, "failed", outcome={"status": 1}),
        "stopped": folder(tmp_path, "stopped", outcome={"status": 130}),
        "broken": folder(tmp_path, "broken", state="running", process=gone.pid, step=7),
    }
    aged(*runs.values())
    status, out, _ = says("status", "--all", "--runs", tmp_path, "--json")
    found = {Path(one["run"]).name: one for one in json.loads(out)["runs"]}
    assert status == 0 and list(found) == list(runs)  # oldest first
    assert [found[name]["state"] for name in runs] == ["running", "done", "failed", "stopped", "broken off"]
    assert found["failed"]["status"] == 1 and found["live"]["status"] is None
    assert found["live"]["learners"]["top"]["step"] == 20 and found["broken"]["learners"]["top"]["step"] == 7
    status, out, _ = says("status", "--runs", tmp_path, "--all")
    assert status == 0 and "20.00%" in out
    assert all(re.search(rf"/{Path(one['run']).name} +{one['state']}  ", out) for one in found.values())
    status, out, _ = says("status", runs["live"], "--json")
    assert status == 0 and json.loads(out)["learners"]["top"]["validation/accuracy/child"] == 0.2


def test_status_without_runs_and_of_something_else(says, tmp_path):
    status, out, _ = says("status", "--runs", tmp_path, "--all", "--json")
    assert status == 0 and json.loads(out) == {"runs": []}
    status, _, err = says("status", "--runs", tmp_path)
    assert status == 2 and f"{tmp_path}: holds no run" in err
    (tmp_path / "run.json").write_text('{"state": "run')
    status, _, err = says("status", tmp_path)
    assert status == 2 and f"{tmp_path / 'run.json'}: not readable" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "not a run's"), ('{"state": "ended"}', "not a run's"), (None, "format 2, where 1 is known")],
)
@pytest.mark.parametrize("command", ["status", "resume"])
def test_a_run_folder_of_another_version_is_refused_in_words(says, tmp_path, command, content, words):
    run = folder(tmp_path, "later")
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(content or json.dumps(manifest | {"format": 2}))
    status, out, err = says(command, run)
    assert status == 2 and not out and err.startswith(f"{run / 'run.json'}: {words}")


def test_one_process_at_a_time_goes_on_with_a_run(says, tmp_path):
    run = folder(tmp_path, "one", outcome={"status": 130})
    status, _, err = says("resume", run)
    assert status == 2 and "no complete checkpoint set" in err  # it came that far
    other = os.open(run, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    status, _, err = says("resume", run)
    os.close(other)
    assert status == 2 and f"{run}: another process is about to go on" in err


def test_a_folder_for_runs_that_cannot_be_written_is_refused_before_anything_starts(says, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    status, out, err = says("run", CHAINS / "digits.yaml", "--runs", tmp_path / "file" / "runs")
    assert status == 2 and not out and f"{tmp_path / 'file'} is a file" in err
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    status, out, err = says("run", CHAINS / "digits.yaml", "--runs", tmp_path / "runs")
    assert status == 2 and not out and f"{tmp_path} can't be written to" in err


@pytest.mark.parametrize("command", [("status",), ("resume",), ("stop",), ("export", "top")], ids=lambda c: c[0])
def test_what_is_no_run_folder_is_said_with_how_to_find_one(says, tmp_path, command):
    status, out, err = says(command[0], tmp_path, *command[1:])
    assert status == 2 and not out
    assert f"there is no {tmp_path / 'run.json'}; machworks status --all lists runs" in err


def test_a_damaged_run_does_not_hide_the_others(says, tmp_path):
    folder(tmp_path, "good")
    (folder(tmp_path, "bad") / "run.json").write_text('{"state": "run')
    status, out, _ = says("status", "--all", "--runs", tmp_path, "--json")
    assert status == 0
    assert {Path(one["run"]).name: one["state"] for one in json.loads(out)["runs"]} == {
        "good": "ended",
        "bad": "unreadable",
    }


def test_status_reads_only_the_end_of_long_records(says, tmp_path):
    run = folder(tmp_path, "long", step=50_000)
    began = time.monotonic()
    _, out, _ = says("status", run, "--json")
    assert json.loads(out)["learners"]["top"]["step"] == 50_000 and time.monotonic() - began < 1.0


# ---------------------------------------------------------------- tensorboard, bench


def test_tensorboard_opens_the_newest_run_on_this_machine_only(says, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments) or sys.exit(0))
    for age, name in enumerate(("old", "new")):
        os.utime(folder(tmp_path, name) / "chain.yaml", (1000 + age, 1000 + age))
    status, out, _ = says("tensorboard", "--runs", tmp_path, "--port", 6099)
    assert status == 0 and "http://127.0.0.1:6099/" in out
    (arguments,) = started
    assert arguments[1:3] == [quiet.__file__, "tensorboard.main"]
    assert arguments[arguments.index("--logdir") + 1] == str(tmp_path / "new" / "tensorboard")
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"


def test_tensorboard_without_a_run(says, tmp_path):
    status, _, err = says("tensorboard", "--runs", tmp_path)
    assert status == 2 and "holds no run" in err
    status, _, err = says("tensorboard", tmp_path)
    assert status == 2 and str(tmp_path / "tensorboard") in err


def test_bench_outside_a_checkout_says_so(says, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site" / "topology" / "cli.py"))
    status, _, err = says("bench", "fashion")
    assert status == 2 and "runs from a checkout" in err


def test_bench_names_what_there_is(says):
    status, _, err = says("bench", "nothing")
    assert status == 2 and "'nothing' is not a benchmark" in err and "fashion" in err


def test_bench_hands_options_on(says, monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "call", lambda command, cwd: called.append((command, cwd)) or 0)
    status, _, _ = says("bench", "fashion", "--json", "--seeds", "1")
    assert status == 0
    ((command, cwd),) = called
    assert command[1:] == ["-m", "benchmarks.fashion", "--json", "--seeds", "1"] and cwd == CHECKOUT


def test_bench_takes_a_hyphen_for_an_underscore(says, monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "call", lambda command, cwd: called.append(command) or 0)
    status, _, _ = says("bench", "rbd-table", "--tune")
    assert status == 0 and called[0][1:] == ["-m", "benchmarks.rbd_table", "--tune"]


@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("validate", "--schema"),
        ("validate", CHAINS / "digits.yaml"),
        ("plan", CHAINS / "digits.yaml", "--set", "defaults.resources.cpus=0.1"),
        ("status", "--all"),
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(command, tmp_path):
    """More than a buffer holds, or less: then the last flush meets the broken pipe."""
    folder(tmp_path / "runs", "one")
    with started(command, tmp_path, stdout=subprocess.PIPE) as writer:
        writer.stdout.close()
        assert writer.stderr.read() == ""
        assert writer.wait(60) == 0


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_fault_that_nobody_reads_is_a_fault(options, faulty, tmp_path):
    with started(("validate", faulty, *options), tmp_path, stdout=subprocess.PIPE) as writer:
        writer.stdout.close()
        assert (writer.stderr.read() == "") == bool(options)
        assert writer.wait(60) == 2


def test_standard_output_on_a_full_disk_is_said(tmp_path):
    with open("/dev/full", "w") as full, started(("validate", CHAINS / "digits.yaml"), tmp_path, stdout=full) as writer:
        assert writer.stderr.read() == "standard output: No space left on device\n"
        assert writer.wait(60) == 1


def started(command, cwd, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "topology.cli", *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
