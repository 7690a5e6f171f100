"""Learners, recorder and keeper that die or freeze in a run that is real: its processes, and signals."""

import json
import os
import signal
import time

import pytest

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
    run = start(steps=8000, every=150).training()
    eventually((run.folder / "checkpoints/000000/manifest.json").exists, 60)
    for number, harm in enumerate((kill_in_a_save, freeze, kill)):
        learner = POSITIONS[(turn + number) % 3]
        harm(run, learner, eventually)
        run.says(f"{learner} is back", 90)
    assert run.program.status(200) == 0, run.said + run.program.err
    assert run.is_whole(8000)
    said = run.said
    for learner in POSITIONS:
        assert f"made good: learners.{learner}: " in said
        assert f"{learner} goes on from step 0" not in said  # case 8
        assert max(run.pauses(learner)) < 1, f"{learner}: {sorted(run.pauses(learner))[-3:]}"
    outcome = json.loads((run.folder / "run.json").read_text())["outcome"]
    assert outcome["status"] == 0 and [reached["restarts"] for reached in outcome["learners"].values()] == [1, 1, 1]
    assert len(outcome["events"]) == 3 and "no sign of life for 4 s" in outcome["events"][1]


def test_recorder_and_keeper_die_and_nothing_is_lost_or_doubled(start, eventually, leftovers):
    run = start(steps=3000).training().reaches("bottom", 300)
    for title in ("Recorder", "Keeper"):
        process = run.actor(title)
        os.kill(process, signal.SIGKILL)
        eventually(lambda t=title, p=process: run.actor(t) not in (None, p), 60, f"another {title}")
        run.says(f"the {title.lower()}: its process has died", 30)
        run.says("are written again", 60)
    assert run.program.status(200) == 0, run.said + run.program.err
    assert run.is_whole(3000)
    outcome = json.loads((run.folder / "run.json").read_text())["outcome"]
    assert [reached["restarts"] for reached in outcome["learners"].values()] == [0, 0, 0]
    sets = sorted((run.folder / "checkpoints").iterdir())
    assert set(json.loads((sets[-1] / "manifest.json").read_text())["learners"]) == set(POSITIONS)
    assert {entry["step"] for entry in json.loads((sets[-1] / "manifest.json").read_text())["learners"].values()} == {
        3000
    }
    assert leftovers(run.program, 10) == {}
