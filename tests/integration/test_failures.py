"""Learners, recorder and keeper that die or freeze in a run that is real: its processes, and signals."""

import json
import os
import resource
import signal
import time

import pytest

from actors import checkpoint

KILLS = int(os.environ.get("MACHWORKS_KILLS", "1"))
"""How thorough: 1 by default; 3 and more does every mishap to every learner, and other tests that often."""
POSITIONS = ("bottom", "middle", "top")


def gone(process):
    return not os.path.exists(f"/proc/{process}")


def kill(run, learner, eventually):
    os.kill(run.process(learner), signal.SIGKILL)


def freeze(run, learner, eventually):
    """For 20 s, unless it is ended before."""
    process = run.process(learner)
    os.kill(process, signal.SIGSTOP)
    thawed = time.monotonic() + 20
    eventually(lambda: gone(process) or time.monotonic() > thawed, 25)
    if not gone(process):
        os.kill(process, signal.SIGCONT)


def kill_in_a_save(run, learner, eventually):
    """A set is open: the files of others are there, and its manifest is not."""

    def saving():
        folders = sorted((run.folder / "checkpoints").iterdir())
        return bool(folders) and not (folders[-1] / "manifest.json").exists()

    eventually(saving, 60, "a set that is being saved")
    os.kill(run.process(learner), signal.SIGKILL)


@pytest.mark.parametrize("turn", range(min(3, KILLS)))
def test_a_learner_dies_and_its_neighbours_do_not_notice(start, eventually, turn):
    """Cases 7, 8, 9: killed in a save, frozen, killed; one after the other, each at another place of the chain."""
    run = start(steps=16000, every=150).training()
    eventually((run.folder / "checkpoints/000000/manifest.json").exists, 60)
    for number, harm in enumerate((kill_in_a_save, freeze, kill)):
        learner = POSITIONS[(turn + number) % 3]
        harm(run, learner, eventually)
        run.says(f"{learner} is back", 90)
    assert run.program.status(200) == 0, run.said + run.program.err
    assert run.is_whole(16000)
    said = run.said
    for learner in POSITIONS:
        assert f"made good: learners.{learner}: " in said
        assert f"{learner} goes on from step 0" not in said  # case 8
        assert max(run.pauses(learner)) < 1, f"{learner}: {sorted(run.pauses(learner))[-3:]}"
    outcome = json.loads((run.folder / "run.json").read_text())["outcome"]
    assert outcome["status"] == 0 and [reached["restarts"] for reached in outcome["learners"].values()] == [1, 1, 1]
    assert len(outcome["events"]) == 3 and "no sign of life for 4 s" in outcome["events"][1]


POISONED = """
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import ray
from actors import mach
from topology import driver, parse

class Poisoned(mach.MachWorker):
    # the first incarnation of one learner answers with what is no number, once it has trained a while

    def _embed(self, instruction):
        made = super()._embed(instruction)
        if self._setup.name != "middle" or self._setup.incarnation or self._exchange.version < 300:
            return made
        return replace(made, embeddings=tuple(np.full_like(one, np.nan) for one in made.embeddings))

if __name__ == "__main__":
    mach.MachActor = ray.remote(max_concurrency=2, max_restarts=0)(Poisoned)
    outcome = driver.run(parse.load(sys.argv[1]), runs=Path(sys.argv[2]), tell=lambda line: print(line, flush=True))
    sys.exit(outcome.status)
"""


def test_a_learner_that_poisons_others_is_restored(program, chain_file, tmp_path):
    """Case 28."""
    script = tmp_path / "poisoned.py"
    script.write_text(POISONED)
    one = program(script, chain_file(steps=1200), tmp_path / "runs")
    assert one.status(200) == 0, one.out + one.err
    assert "learners.middle: three messages in a row were refused by top: answer: not finite" in one.out
    assert "middle is back at step" in one.out and "middle goes on from step 0" not in one.out
    (folder,) = (tmp_path / "runs").iterdir()
    outcome = json.loads((folder / "run.json").read_text())["outcome"]
    assert {name: reached["restarts"] for name, reached in outcome["learners"].items()} == {
        "bottom": 0,
        "middle": 1,
        "top": 0,
    }
    assert outcome["learners"]["top"]["counts"]["refused not finite"] >= 3


def test_recorder_and_keeper_fail_and_nothing_is_lost_or_doubled(start, eventually, leftovers):
    run = start(steps=4000).training().reaches("bottom", 300)
    resource.prlimit(run.actor("Keeper"), resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))  # as if it were full
    run.says("no checkpoint set can be written: checkpoint set", 60)
    assert "File too large; training goes on" in run.said
    resource.prlimit(run.actor("Keeper"), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    run.says("checkpoint sets are written again", 60)
    for title, again in (("Recorder", "records are written again"), ("Keeper", "sets are written again")):
        process, before = run.actor(title), run.said.count(again)
        os.kill(process, signal.SIGKILL)
        run.says(f"the {title.lower()}: its process has died", 30)
        eventually(lambda b=before, a=again: run.said.count(a) > b, 60, again)
        assert run.actor(title) != process
    assert run.program.status(200) == 0, run.said + run.program.err
    assert run.is_whole(4000)
    outcome = json.loads((run.folder / "run.json").read_text())["outcome"]
    assert [reached["restarts"] for reached in outcome["learners"].values()] == [0, 0, 0]
    found, ignored = checkpoint.newest(run.folder / "checkpoints")
    assert found.steps == dict.fromkeys(POSITIONS, 4000) and ignored == []
    assert leftovers(run.program, 10) == {}
