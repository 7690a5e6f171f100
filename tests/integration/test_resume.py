"""What is left when everything is killed, and going on from it; detached runs, interrupts, refusals."""

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from actors import checkpoint

CHECKOUT = Path(__file__).parents[2]
KILLS = int(os.environ.get("MACHWORKS_KILLS", "1"))


def state_of(run):
    """[state, status] as `machworks status` says."""
    command = [sys.executable, "-m", "topology.cli", "status", run.folder, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, timeout=60)
    said = json.loads(done.stdout)
    return said["state"], said["status"]


def kill_all(run, marked):
    """The whole run at once: driver, Ray, learners."""
    for pid in marked(run.program.mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.program.status(20)


def shown(program, eventually, free_port, folder):
    """Steps of each learner's curve, as TensorBoard's page gets them from its default data server."""
    port = free_port()
    board = program("-m", "tensorboard.main", "--logdir", folder / "tensorboard", "--port", port)
    page = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?tag=speed%2Fsteps_per_second&run="

    def curve(learner):
        with suppress(OSError), urllib.request.urlopen(page + learner) as answer:
            return [step for _, step, _ in json.load(answer)]
        return []

    found = {learner: eventually(lambda name=learner: curve(name), 60) for learner in ("bottom", "middle", "top")}
    board.end()
    return found


@pytest.mark.parametrize("moment", range(KILLS))
def test_everything_is_killed_and_the_run_goes_on_from_a_complete_set(
    start, resume, marked, program, eventually, free_port, moment
):
    """Case 20, 30."""
    steps = 1500
    run = start(steps=steps, every=100).training()
    run.reaches("bottom", random.Random(moment).randrange(150, 1400))
    kill_all(run, marked)
    assert state_of(run) == ("broken off", None)
    found, _ = checkpoint.newest(run.folder / "checkpoints")
    again = resume(run.folder)
    if found is None:
        assert again.program.status(100) == 2 and "no complete checkpoint set" in again.program.err
        return
    for learner, step in found.steps.items():
        assert [one.step for one in run.records(learner)][:step] == list(range(1, step + 1))
        again.says(f"{learner} goes on from step {step}")
    assert again.program.status(200) == 0, again.said + again.program.err
    assert run.is_whole(steps)
    assert set(map(tuple, shown(program, eventually, free_port, run.folder).values())) == {tuple(range(20, 1501, 20))}
    assert state_of(run) == ("done", 0)
    refused = resume(run.folder)
    assert refused.program.status(60) == 2 and "this run is done" in refused.program.err


def arrays(run):
    found, _ = checkpoint.newest(run.folder / "checkpoints")
    return {name: checkpoint.unpack(checkpoint.read(found, name))[0] for name in found.steps}


@pytest.mark.parametrize(
    "more",
    ["", ", optimizer: {name: momentum, learning_rate: 0.05, schedule: cosine, warmup: 20}, dropout: 0.3"],
    ids=["adam", "momentum and dropout"],
)
def test_a_lone_learner_that_is_stopped_and_resumed_ends_with_the_same_bits(start, resume, more):
    options = {"steps": 2000, "learners": "{bottom: {kind: mach}}", "more": more, "every": 100}
    whole, parts = start(**options), start(**options)
    parts.training().reaches("bottom", 100)
    parts.program.signal(signal.SIGTERM)
    assert parts.program.status(60) == 130
    assert whole.program.status(100) == 0, whole.said + whole.program.err
    stopped, _ = checkpoint.newest(parts.folder / "checkpoints")
    assert 100 <= stopped.steps["bottom"] < 2000
    again = resume(parts.folder)
    assert again.program.status(100) == 0, again.said + again.program.err
    ours, theirs = arrays(parts)["bottom"], arrays(whole)["bottom"]
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name]), name
    assert [one.values["train/loss/child"] for one in parts.records("bottom")] == [
        one.values["train/loss/child"] for one in whole.records("bottom")
    ]


def test_detached_found_stopped_and_resumed(start, machworks, resume, marked, leftovers):
    run = start(steps=4000, every=200, arguments=("--detach",))
    assert run.program.status(100) == 0, run.program.err
    assert [path.name for path in run.folder.parent.iterdir()] == [run.folder.name]  # and nothing beside it
    try:
        assert state_of(run) == ("running", None)
        run.reaches("bottom", 300, alive=False)
        refused = resume(run.folder)
        assert refused.program.status(60) == 2 and "still goes on" in refused.program.err
        stop = machworks("stop", run.folder)
        assert stop.status(60) == 0, stop.err
        assert state_of(run) == ("stopped", 130)
        assert leftovers(run.program, 10) == {}
        output = (run.folder / "logs/output.log").read_text()
        assert output.startswith("digits: ") and "interrupted" in output and "look at it" in output
    finally:
        kill_all(run, marked)
    found, ignored = checkpoint.newest(run.folder / "checkpoints")
    assert ignored == [] and set(found.steps) == {"bottom", "middle", "top"}
    assert {name: run.records(name)[-1].step for name in found.steps} == found.steps  # no step is lost
    again = machworks("stop", run.folder)
    assert again.status(60) == 2 and "does not go on" in again.err
    again = resume(run.folder)
    assert again.program.status(200) == 0, again.said + again.program.err
    assert run.is_whole(4000)


def test_what_is_no_run_can_not_be_resumed(resume, tmp_path):
    refused = resume(tmp_path)
    assert refused.program.status(60) == 2 and "not a run folder" in refused.program.err


@pytest.mark.parametrize(
    "when", ["while it loads", "in mid-run", "twice", "terminated", "all terminated", "hung up", "killed"]
)
def test_an_interrupt_leaves_no_process_and_readable_files(start, resume, leftovers, when):
    """Case 11."""
    run = start(steps=100_000, every=200)
    if when == "while it loads":
        run.says("starting bottom")
        run.program.signal(signal.SIGINT)
    else:
        run.training().reaches("bottom", 300)
        interrupts = {"in mid-run": "INT", "twice": "INT", "hung up": "HUP", "killed": "KILL"}
        number = signal.Signals[f"SIG{interrupts.get(when, 'TERM')}"]
        run.program.signal(number, group=when == "all terminated")
        if when == "twice":
            run.says("interrupted")
            run.program.signal(signal.SIGINT)
        if when == "hung up":  # a shell says it again to its jobs, which must not count as a second interrupt
            run.says("interrupted")
            run.program.signal(signal.SIGHUP)
    status = run.program.status(10)
    assert leftovers(run.program, 10) == {}
    if when == "killed":
        assert status == -signal.SIGKILL and state_of(run) == ("broken off", None)
    else:
        assert status == 130, run.said + run.program.err
        assert state_of(run) == ("stopped", 130)
    if when != "while it loads":
        for learner in run.LEARNERS:
            steps = [one.step for one in run.records(learner)]
            assert steps == list(range(1, len(steps) + 1)) and len(steps) > 0
        if when in ("in mid-run", "terminated", "all terminated", "hung up"):  # the last set holds the last step
            found, _ = checkpoint.newest(run.folder / "checkpoints")
            assert {name: run.records(name)[-1].step for name in found.steps} == found.steps
