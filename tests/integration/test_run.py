"""Runs from end to end, through the command line, on real Ray."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_file_loader

from actors import checkpoint

CHECKOUT = Path(__file__).parents[2]
CHAINS = CHECKOUT / "topology" / "chains"

pytestmark = pytest.mark.timeout(600)


def steps_in_tensorboard(run, learner, tag):
    steps = []
    for path in Path(run, "tensorboard", learner).iterdir():
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            steps += [event.step for value in event.summary.value if value.tag == tag]
    return sorted(steps)


# ---------------------------------------------------------------- to the end


def test_a_fresh_run_ends_with_everything_written_and_nothing_left(machworks, chain, records, leftovers):
    """Case 19: 20 steps, read at once."""
    run = machworks("run", chain, "--json", "--set", "record.every=20")
    assert run.status() == 0, run.err
    outcome = run.json
    assert outcome["status"] == 0 and outcome["problems"] == []
    assert list(outcome["learners"]) == ["bottom", "middle", "top"]
    for name, reached in outcome["learners"].items():
        assert (reached["status"], reached["steps"], reached["restarts"], reached["error"]) == ("done", 20, 0, "")
        assert set(reached) >= {"accuracies", "fallbacks", "bytes", "seconds", "counts"}
        found = records(outcome["run"], name)
        assert [r["step"] for r in found if r["kind"] == "train"] == list(range(1, 21))
        assert {r["step"] for r in found if r["kind"] == "final"} == {20}
        assert steps_in_tensorboard(outcome["run"], name, "train/learning_rate") == list(range(2, 21, 2))
        assert f"{name}: process" in Path(outcome["run"], "logs", f"{name}.log").read_text()
    assert 0.0 < outcome["learners"]["bottom"]["accuracies"]["test/accuracy/child"] <= 1.0
    assert outcome["learners"]["top"]["bytes"]["sent inline"] > 0
    assert "training bottom, middle, top" in Path(outcome["run"], "logs", "driver.log").read_text()
    manifest = json.loads(Path(outcome["run"], "run.json").read_text())
    assert manifest["state"] == "done" and manifest["outcome"] == outcome
    assert leftovers(run, within=10) == {}


def test_two_chains_at_once_on_a_running_cluster(machworks, cluster):
    """private.yaml sends features, two-children.yaml joins embeddings of unlike widths; each has its own folder."""
    sets = ("defaults.steps=20", "defaults.hidden=[16]", "defaults.synthetic.hidden=[16]", "record.attribution=0")
    options = ("--json", "--address", cluster, *(part for one in sets for part in ("--set", one)))
    runs = {name: machworks("run", CHAINS / f"{name}.yaml", *options) for name in ("private", "two-children")}
    outcomes = {}
    for name, run in runs.items():
        assert run.status() == 0, run.err
        outcomes[name] = run.json
        assert {reached["status"] for reached in run.json["learners"].values()} == {"done"}
    assert outcomes["private"]["run"] != outcomes["two-children"]["run"]
    # a request is 64 rows: their numbers (int32) or 64 features of a byte each
    private, top = outcomes["private"]["learners"], outcomes["two-children"]["learners"]["top"]
    asked, used = private["top"]["counts"]["asked"], private["top"]["counts"].get("used", 0)
    assert private["top"]["bytes"]["sent inline"] >= asked * 36 * 64 + used * 64 * 64 * 4
    assert top["counts"]["used"] > 0 and set(outcomes["two-children"]["learners"]) == {"left", "right", "top"}


def test_wide_embeddings_go_through_the_object_store_and_an_ipu_is_taken(machworks, cluster, records):
    placed = ("--set", "defaults.steps=20", "--set", "learners.top.resources.IPU=2", "--json", "--address", cluster)
    run = machworks("run", CHAINS / "wide.yaml", *placed)
    assert run.status() == 0, run.err
    bottom, top = run.json["learners"]["bottom"], run.json["learners"]["top"]
    assert bottom["bytes"]["sent store"] >= 512 * 128 * 4 and bottom["bytes"]["received inline"] > 0
    assert top["bytes"]["received store"] > 0 and top["bytes"]["sent inline"] > 0
    assert top["bytes"].get("received inline", 0) < 512 * 128 * 4  # only the remainders of held-out rows
    # of the parent: the child may have done its steps before it is asked for the first time
    written = {key for record in records(run.json["run"], "top") for key in record["values"]}
    assert {"bytes/sent_inline", "bytes/received_store"} <= written


@pytest.mark.needs("fashion")
def test_fashion_runs(machworks, cluster):
    few = ("--set", "defaults.steps=10", "--set", "defaults.hidden=[32]", "--set", "learners.bottom.hidden=[32]")
    run = machworks(
        "run", CHAINS / "fashion.yaml", *few, "--set", "record.attribution=0", "--json", "--address", cluster
    )
    assert run.status() == 0, run.err
    assert [reached["steps"] for reached in run.json["learners"].values()] == [10, 10, 10]


def test_a_worker_of_random_bases_learns_and_is_checkpointed_as_a_chain_is(machworks, cluster, records):
    run = machworks("run", CHAINS / "rbd.yaml", "--set", "checkpoint.every=500", "--json", "--address", cluster)
    assert run.status() == 0, run.err
    folder, reached = Path(run.json["run"]), run.json["learners"]["worker"]
    assert (reached["status"], reached["steps"]) == ("done", 2000) and reached["accuracies"]["test/accuracy"] > 0.9
    assert reached["bytes"] == {"updates": 200 * 126} and reached["counts"]["updates"] == 200
    found = records(folder, "worker")
    assert [r["step"] for r in found if r["kind"] == "train"] == list(range(10, 2001, 10))
    assert [r["step"] for r in found if r["kind"] == "evaluate"] == list(range(200, 2000, 200))
    assert steps_in_tensorboard(folder, "worker", "update/correlation") == list(range(20, 2001, 20))
    assert steps_in_tensorboard(folder, "worker", "test/accuracy") == [2000]
    written, ignored = checkpoint.newest(folder / "checkpoints")
    assert written.steps == {"worker": 2000} and ignored == []
    assert "dimensions: 1000" in (folder / "chain.yaml").read_text()  # with all defaults
    status = machworks("status", folder, "--json")
    assert status.status() == 0 and status.json["learners"]["worker"]["test/accuracy"] > 0.9
    exported = machworks("export", folder, "worker")
    assert exported.status() == 0 and (folder / "worker.keras").exists(), exported.err


def test_a_network_of_the_users_beside_the_file_is_trained_looked_at_and_exported(machworks, cluster, tmp_path):
    (tmp_path / "machworks_user_run.py").write_text(
        "import keras\n"
        "def model(example, classes):\n"
        "    layers = keras.layers\n"
        "    before = [keras.Input(example), layers.Flatten(), layers.BatchNormalization(), layers.Dropout(0.1)]\n"
        "    return keras.Sequential([*before, layers.Dense(classes)])\n"
    )
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{version: 1, name: mine, data: {name: digits, validation: 0.15}, learners: "
        "{worker: {kind: rbd, network: 'machworks_user_run:model', basis: {dimensions: 100}, steps: 1000}}}"
    )
    run = machworks("run", file, "--json", "--address", cluster)
    assert run.status() == 0, run.err
    folder = Path(run.json["run"])
    assert run.json["learners"]["worker"]["accuracies"]["test/accuracy"] > 0.9
    looked, exported = machworks("analyse", folder, "--json"), machworks("export", folder, "worker")
    assert exported.status() == 0 and (folder / "worker.keras").exists(), exported.err
    assert looked.status() == 0 and {"hessian", "landscape", "correlation"} <= looked.json["written"].keys(), looked.err


def test_a_worker_that_was_interrupted_is_resumed_to_the_same_figures(machworks, cluster, records, tmp_path):
    def finals(folder):
        return [
            {key: value for key, value in record["values"].items() if "accuracy" in key or "loss" in key}
            for record in records(folder, "worker")
            if record["kind"] == "final"
        ]

    sets = ("--set", "learners.worker.steps=8000", "--set", "checkpoint.every=0", "--address", cluster, "--json")
    whole = machworks("run", CHAINS / "rbd.yaml", *sets)
    broken = machworks("run", CHAINS / "rbd.yaml", *sets)
    broken.says("; run folder")
    broken.signal(signal.SIGTERM)
    assert broken.status() == 130 and whole.status() == 0, broken.err + whole.err
    assert 0 < broken.json["learners"]["worker"]["steps"] < 8000
    resumed = machworks("resume", broken.json["run"], "--address", cluster, "--json")
    assert resumed.status() == 0, resumed.err
    assert finals(broken.json["run"]) == finals(whole.json["run"]) != []
    steps = [r["step"] for r in records(broken.json["run"], "worker") if r["kind"] == "train"]
    assert steps == list(range(10, 8001, 10))


def test_messages_of_10_mb_pass_a_store_of_80(machworks, chain, cluster):
    """Case 10, shortened: 40 messages of 10 MB, five times what the store holds."""
    large = [f"defaults.{key}" for key in ("batch_size=2048", "embedding=1280", "steps=20", "exchange.time_limit=20")]
    sets = [part for key in (*large, "data.validation=64") for part in ("--set", key)]
    run = machworks("run", chain, *sets, "--json", "--address", cluster)
    assert run.status() == 0, run.err
    assert run.json["learners"]["bottom"]["bytes"]["sent store"] > 2 * 80e6
    assert {reached["status"] for reached in run.json["learners"].values()} == {"done"}


# ---------------------------------------------------------------- refused


REFUSALS = """
import contextlib, io, json, sys, time
from topology import cli
for command in json.loads(sys.argv[1]):
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(command)
    print(json.dumps([status, out.getvalue() + err.getvalue(), time.monotonic() - began]))
"""

LACKING = {
    "learners.top.resources.IPU=3": ("learners.top.resources.IPU: 3 wanted", "no host has more than 2"),
    "learners.top.resources.ipu=1": ("learners.top.resources.ipu: 1 wanted", "did you mean 'IPU'"),
    "learners.middle.resources.TPU=1": ("learners.middle.resources.TPU: 1 wanted", "no host has any", "CPU 4"),
    "learners.top.resources.cpus=3.5": ("resources.cpus: 0.5 wanted", "taken by other learners"),
}


def refused(program, chain, extra, runs):
    """[status, text, seconds] of `run` and of `plan` for each of LACKING, in one process."""
    commands = []
    for setting in LACKING:
        commands.append(["run", str(chain), "--set", setting, "--runs", str(runs), *extra])
        commands.append(["plan", str(chain), "--set", setting, *extra])
    done = program("-c", REFUSALS, json.dumps(commands))
    assert done.status() == 0, done.err
    assert "Traceback" not in done.err
    return list(
        zip([setting for setting in LACKING for _ in range(2)], map(json.loads, done.out.splitlines()), strict=True)
    )


def test_what_a_cluster_lacks_is_named_within_15_seconds(program, chain, cluster, tmp_path):
    """Case 3: missing, of another case, more than one host has, more learners than CPUs."""
    for setting, (status, text, seconds) in refused(program, chain, ["--address", cluster], tmp_path / "runs"):
        assert status == 2 and seconds < 15.0 and "Traceback" not in text
        assert all(part in text for part in LACKING[setting]), text
    assert not (tmp_path / "runs").exists()


def test_what_this_machine_lacks_is_named_before_ray_starts(program, chain, tmp_path):
    many = "learners.top.resources.cpus=100000"
    commands = [
        ["run", str(chain), "--set", many, "--runs", str(tmp_path / "runs")],
        ["plan", str(chain), "--set", many],
    ]
    done = program("-c", REFUSALS, json.dumps(commands))
    assert done.status() == 0, done.err
    for line in done.out.splitlines():
        status, text, seconds = json.loads(line)
        assert status == 2 and seconds < 10.0 and "learners.top.resources.cpus: 100000 wanted" in text
    assert not (tmp_path / "runs").exists()


def test_no_cluster_at_the_address_and_none_on_this_machine(machworks, chain):
    for address in ("127.0.0.1:1", "ray://127.0.0.1:10001"):
        run = machworks("run", chain, "--address", address)
        assert run.status(30) == 2 and f"--address {address}" in run.err and "Traceback" not in run.err


def test_a_foreign_room_is_refused_in_words(program, chain, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "learners.py").write_text("raise SystemExit('the wrong one')\n")
    # as an installed console script: the working directory is not on its own path
    script = "import sys; sys.path.remove(''); from topology.cli import main; sys.exit(main(sys.argv[1:]))"
    run = program("-c", script, "run", chain, cwd=foreign)
    assert run.status() == 2, run.err
    assert f"{foreign / 'learners.py'} shadows machworks' own package 'learners'" in run.err
    assert not (foreign / "runs").exists()


# ---------------------------------------------------------------- in the company of other programs


SCRIPT = """
import logging, os, sys
from pathlib import Path

import ray
from loguru import logger

address, chain, log, runs = sys.argv[1:]


class InterceptHandler(logging.Handler):
    def emit(self, record):
        logger.opt(depth=6, exception=record.exc_info).log(record.levelname, record.getMessage())


logger.remove()
logger.add(log, filter=lambda record: record["level"].no >= 20, format="{level} {message}")
logging.basicConfig(handlers=[InterceptHandler()], level=logging.INFO, force=True)
logger.info("before")

ray.init(address=address, log_to_driver=False)
import tensorflow as tf  # after Ray

read = list(tf.data.Dataset.range(10).map(lambda x: x + 1).as_numpy_iterator())
total = int(tf.reduce_sum(tf.convert_to_tensor(read)))
child = os.fork()  # after an operation
if child == 0:
    os._exit(0)
os.waitpid(child, 0)


@ray.remote(num_cpus=0)
class Reader:
    def read(self):
        import tensorflow as tf

        return sum(int(x) for x in tf.data.Dataset.range(10).batch(3).unbatch())


reader = Reader.remote()
assert (total, ray.get(reader.read.remote(), timeout=60)) == (55, 45)

from topology import driver, parse

outcome = driver.run(parse.load(chain), runs=Path(runs))
assert outcome.status == 0, outcome
assert ray.is_initialized() and ray.get(reader.read.remote(), timeout=60) == 45  # the connection is left as it was
logging.getLogger("mine").warning("from the standard library")
logger.info("after")
print(outcome.folder)
"""


def test_a_script_with_its_own_loguru_ray_and_tf_data(program, chain, cluster, tmp_path):
    """Cases 4 and 6."""
    log = tmp_path / "mine.log"
    script = program("-c", SCRIPT, cluster, chain, log, tmp_path / "runs")
    assert script.status() == 0, script.err
    mine = log.read_text().splitlines()
    assert mine[0] == "INFO before" and mine[-2:] == ["WARNING from the standard library", "INFO after"]
    assert any("training bottom, middle, top" in line for line in mine)  # the run's events are logged as usual
    folder = Path(script.out.splitlines()[-1])
    ours = (folder / "logs" / "driver.log").read_text()
    assert "training bottom, middle, top" in ours and "before" not in ours and "standard library" not in ours
    for name in ("bottom", "middle", "top"):
        theirs = (folder / "logs" / f"{name}.log").read_text()
        assert f"{name}: process" in theirs and "before" not in theirs and "standard library" not in theirs


PROBE = """
import json, sys
import ray
from actors import device

ray.init(address=sys.argv[1], log_to_driver=False)


@ray.remote
class Probe:
    def threads(self, cpus):
        device.configure(cpus)
        import os
        import tensorflow as tf

        tf.reduce_sum(tf.ones([512, 512]) @ tf.ones([512, 512]))
        get = tf.config.threading
        return (
            get.get_intra_op_parallelism_threads(),
            get.get_inter_op_parallelism_threads(),
            os.environ.get("OMP_NUM_THREADS"),
        )


probes = {cpus: Probe.options(num_cpus=cpus).remote() for cpus in (0.25, 1, 2)}
print(json.dumps({cpus: ray.get(probe.threads.remote(cpus), timeout=60) for cpus, probe in probes.items()}))
"""


def test_threads_follow_the_cpus_asked_for(program, cluster):
    """Case 5: TensorFlow takes every core of the host unless it is told before its first operation."""
    probe = program("-c", PROBE, cluster)
    assert probe.status() == 0, probe.err
    assert {cpus: found[:2] for cpus, found in probe.json.items()} == {"0.25": [1, 1], "1": [1, 1], "2": [2, 1]}
    assert {cpus: found[2] for cpus, found in probe.json.items()} == {"0.25": "1", "1": "1", "2": "2"}


def test_16_learners_on_few_cpus(machworks, cluster, tmp_path):
    """Case 5."""
    names = [f"l{number}" for number in range(16)]
    path = tmp_path / "sixteen.yaml"
    path.write_text(
        "{version: 1, name: sixteen, data: {name: digits}, record: {attribution: 0}, defaults: {batch_size: 16,"
        " steps: 20, hidden: [8], embedding: 4, synthetic: {hidden: [8]}, resources: {cpus: 0.125}}, learners: {"
        + ", ".join(f"{name}: {{kind: mach}}" for name in names)
        + "}}"
    )
    run = machworks("run", path, "--json", "--address", cluster)
    assert run.status() == 0, run.err
    assert {name: reached["steps"] for name, reached in run.json["learners"].items()} == dict.fromkeys(names, 20)


# ---------------------------------------------------------------- learners that fail


FAILING = """
version: 1
name: failing
seed: 7
data: {name: digits}
record: {every: 1000, attribution: 0}
supervise: {restarts: 0}
defaults: {batch_size: 16, steps: 1500, hidden: [64, 64], embedding: 8, synthetic: {hidden: [8]}}
learners:
  wild: {kind: mach, optimizer: {name: sgd, learning_rate: 1e30}, resources: {cpus: 0.25}}
  above: {kind: mach, child: wild, resources: {cpus: 0.25}}
  bottom: {kind: mach}
  middle: {kind: mach, child: bottom, steps: 1000000}
  top: {kind: mach, child: middle}
"""


def test_one_learner_diverges_and_another_is_killed_and_the_others_finish(
    machworks, cluster, tmp_path, eventually, records
):
    """Cases 7 and 28: each is named, with what it had reached; its neighbours go on; exit status 1."""
    path = tmp_path / "failing.yaml"
    path.write_text(FAILING)
    run = machworks("run", path, "--json", "--plain", "--address", cluster)
    (folder,) = eventually(lambda: list((tmp_path / "runs").glob("*/records/middle.jsonl")), 120)
    folder = folder.parents[1]
    eventually(lambda: any(one["step"] > 20 for one in records(folder, "middle")), 60)
    pid = int(re.search(r"middle: process (\d+)", (folder / "logs" / "middle.log").read_text())[1])
    os.kill(pid, signal.SIGKILL)
    assert run.status() == 1, run.err
    outcome = run.json
    status = {name: reached["status"] for name, reached in outcome["learners"].items()}
    assert status == {"wild": "failed", "above": "done", "bottom": "done", "middle": "failed", "top": "done"}
    assert {outcome["learners"][name]["steps"] for name in ("above", "bottom", "top")} == {1500}
    assert 20 < outcome["learners"]["middle"]["steps"] < 1_000_000
    (wild,) = [line for line in outcome["problems"] if "wild" in line]
    assert re.search(r"learners\.wild: step \d+: .*no longer finite; try a smaller optimizer.learning_rate", wild)
    (middle,) = [line for line in outcome["problems"] if "middle" in line]
    assert middle == "learners.middle: its process has died" and middle in run.err and wild in run.err
    assert outcome["learners"]["top"]["fallbacks"] > 0 and "Traceback" not in run.err
    assert "no longer finite" in (folder / "logs" / "wild.log").read_text()


def test_a_learner_that_cannot_start_ends_the_run_in_words(machworks, chain, cluster, leftovers):
    """The constructor of an actor fails: here for want of memory for its weights."""
    run = machworks("run", chain, "--json", "--set", "learners.middle.hidden=[2000000000]", "--address", cluster)
    assert run.status() == 1, run.err
    (problem,) = run.json["problems"]
    assert problem.startswith("learners.middle could not start: ") and "Traceback" not in run.err
    assert {reached["status"] for reached in run.json["learners"].values()} == {"not started"}
    manifest = json.loads(Path(run.json["run"], "run.json").read_text())
    assert manifest["state"] == "failed" and manifest["outcome"]["status"] == 1
    assert leftovers(run, within=5) == {}


# ---------------------------------------------------------------- interrupted


def test_an_interrupt_at_the_start_and_a_second_one_leave_nothing(machworks, chain, tmp_path, leftovers):
    """Case 11."""
    run = machworks("run", chain, "--json")
    run.says("starting bottom")
    began = time.monotonic()
    run.signal(signal.SIGINT)
    run.signal(signal.SIGINT)
    assert run.status(10) == 130 and time.monotonic() - began < 10, run.err
    assert leftovers(run, within=10) == {} and "Traceback" not in run.err
    assert not re.search(r"raylet|core_worker|\(pid=|Worker|ray::", run.err), run.err  # no words of Ray's own
    (manifest,) = (tmp_path / "runs").glob("*/run.json")
    assert json.loads(manifest.read_text())["state"] == "stopped"


def test_sigterm_while_ray_starts(machworks, chain, leftovers):
    run = machworks("run", chain)
    run.started("gcs_server")
    run.signal(signal.SIGTERM)
    assert run.status(20) == 130, run.err
    assert leftovers(run, within=10) == {} and "Traceback" not in run.err


def test_a_killed_driver_leaves_nothing_running_and_readable_files(machworks, chain, records, tmp_path, leftovers):
    """Case 11: nobody has had the chance to tidy up."""
    run = machworks("run", chain, "--set", "defaults.steps=1000000")
    run.says("learner top")
    run.signal(signal.SIGKILL)
    run.status(10)
    # two of Ray's own agents go on looking for the dead control service, for a minute at most
    assert leftovers(run, within=10, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent")) == {}
    (folder,) = (tmp_path / "runs").iterdir()
    steps = [record["step"] for record in records(folder, "top") if record["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 10
    status = machworks("status", folder, "--json")
    assert status.status() == 0 and status.json["state"] == "broken off"
