"""Workers that go together, in runs that are real: their processes, deaths, the log, and equal bits at the end."""

import json
import os
import random
import re
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from actors import log
from learners.group.replay import Mark
from learners.records import Record, file_name, lines
from topology import cli

KILLS = int(os.environ.get("MACHWORKS_KILLS", "1"))
"""How thorough: at 1 two workers die in a run, at 3 six."""

GROUP = """
version: 1
name: group
seed: 7
data: {{name: digits, validation: 0.15}}
learners:
  worker: {{kind: {kind}, replicas: {replicas}, steps: {steps}{more}}}
record: {{every: 200}}
supervise: {{silence: 4, restarts: 20}}
"""


@pytest.fixture
def group(program, tmp_path):
    """Starts a run of a group."""

    def started(steps=400, replicas=2, kind="rbd", more=", basis: {dimensions: 200}", arguments=()):
        path = tmp_path / "group.yaml"
        path.write_text(GROUP.format(steps=steps, replicas=replicas, kind=kind, more=more))
        return Seen(program("-m", "topology.cli", "run", path, "--plain", "--runs", tmp_path / "runs", *arguments))

    return started


class Seen:
    """A run of a group, from outside."""

    def __init__(self, program, folder=None):
        self.program, self._folder = program, folder

    @property
    def folder(self):
        return self._folder or Path(re.search(r"; run folder (\S+)", self.program.out)[1])

    def says(self, text, seconds=100):
        self.program.says(text, seconds)
        return self

    def process(self, worker):
        """Its process, in its newest incarnation."""
        found = re.findall(rf"{worker} is (?:back behind what the log has: it is )?process (\d+)", self.program.out)
        return int(found[-1])

    def logged(self):
        """Names of all updates in the log, as often as they are there."""
        path = self.folder / "log" / "worker" / log.NAME
        return Counter(sent.name for entry in log.entries(path) if isinstance(entry, tuple) for sent in entry)

    def steps(self, worker):
        path = self.folder / "records" / f"{file_name(worker)}.jsonl"
        content = path.read_bytes() if path.exists() else b""
        return [one.step for _, one in lines(content) if isinstance(one, Record) and one.kind == "train"]

    def reaches(self, worker, step, eventually):
        def there():
            assert self.program.running, self.program.out + self.program.err
            return (self.steps(worker) or [0])[-1] >= step

        eventually(there, 60, f"{worker} at step {step}")

    def is_whole(self, replicas, rounds, died=True):
        """Equal digests, each worker's rounds once, in the log and in the records."""
        assert self.program.status(100) == 0, self.program.out + self.program.err
        assert f"worker: {replicas} replicas of {replicas * rounds} updates: equal digests" in self.program.out
        logged = self.logged()
        assert set(logged.values()) == {1}
        assert Counter(name.sender for name in logged) == dict.fromkeys(range(replicas), rounds)
        for number in range(replicas):
            steps = self.steps(f"worker/{number}")
            whole = [10 * (i + 1) for i in range(rounds)]
            # who is killed may not have sent the records of its last half second
            assert sorted(set(steps)) == steps and set(steps) <= set(whole) and len(steps) > 0.7 * rounds
            assert died or steps == whole


def test_two_workers_end_with_the_same_bits_which_a_replay_finds_too(group, leftovers, capsys):
    run = group(400)
    run.is_whole(2, 40, died=False)
    assert "worker/0  done    400" in run.program.out
    assert leftovers(run.program, within=10) == {}

    def replay(*options):
        status = cli.main(["replay", str(run.folder), "--json", *options])
        return status, json.loads(capsys.readouterr().out)["groups"][0]

    digest = re.search("equal digests, ([0-9a-f]{16})", run.program.out)[1]
    status, found = replay()
    assert (status, found["digest"], found["updates"]) == (0, digest, 80)
    assert found["clock"] == {"worker/0": 40, "worker/1": 40} and found["marks"] >= 2 and found["fault"] == ""
    status, part = replay("--records", "3")
    assert status == 0 and part["records"] == 3 and part["digest"] != digest and sum(part["clock"].values()) < 80
    folder = run.folder / "log" / "worker"
    written = log.Log(folder, log.header(folder / log.NAME).traits)
    written.append(Mark(0, written.holds.clock, int(digest, 16) + 1))
    written.close()
    status, found = replay()
    assert status == 1 and "has recorded digest" in found["fault"]


def test_workers_killed_at_random_come_back_and_nothing_is_lost_or_doubled(group, eventually):
    chance, steps = random.Random(KILLS), 3000 + 4000 * KILLS
    run = group(steps).says("; run folder")
    for kill in range(2 * KILLS):
        worker = f"worker/{chance.randrange(2)}"
        run.reaches(worker, 500 + 1000 * kill, eventually)
        os.kill(run.process(worker), signal.SIGKILL)
        eventually(lambda n=kill: run.program.out.count("is back behind what the log has") > n, 60)
    run.is_whole(2, steps // 10)
    assert run.program.out.count("made good: learners.worker/") == 2 * KILLS


def test_a_frozen_worker_is_ended_and_comes_back_while_the_other_goes_on(group, eventually, leftovers):
    run = group(3000).says("; run folder")
    run.reaches("worker/0", 300, eventually)
    os.kill(run.process("worker/0"), signal.SIGSTOP)
    run.says("worker/0 is back behind what the log has")
    assert "no sign of life for 4 s" in run.program.out
    run.is_whole(2, 300)
    assert leftovers(run.program, within=10) == {}


def test_a_relay_that_is_killed_or_frozen_has_a_successor(group, eventually, marked):
    run = group(9000).says("; run folder")

    def relay():
        return next((pid for pid, line in marked(run.program.mark).items() if "ray::Relay" in line), None)

    for turn, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        run.reaches("worker/0", 1000 + 3000 * turn, eventually)
        os.kill(eventually(relay, 20), number)
        eventually(lambda n=turn: run.program.out.count("worker: its relay is back") > n, 30)
    run.is_whole(2, 900, died=False)


def test_a_run_that_is_killed_as_a_whole_goes_on_from_its_log(group, eventually, marked, resume):
    run = group(3000).says("; run folder")
    run.reaches("worker/1", 800, eventually)
    for pid in marked(run.program.mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    before = run.logged()
    again = Seen(resume(run.folder).program, run.folder)
    again.is_whole(2, 300)
    assert before.keys() <= again.logged().keys()


def test_a_synchronous_group_waits_for_who_has_died(group, eventually):
    run = group(3000, more=", basis: {dimensions: 200}, exchange: {mode: sync}").says("; run folder")
    run.reaches("worker/0", 400, eventually)
    os.kill(run.process("worker/1"), signal.SIGKILL)
    eventually(lambda: "worker/1 is back behind what the log has" in run.program.out, 60)
    run.is_whole(2, 300)


@pytest.mark.parametrize(
    "kind, more",
    [("sgd", ", exchange: {mode: sync}"), ("local", ", exchange: {every: 10}")],
)
def test_methods_to_compare_with_go_the_same_way(group, kind, more):
    run = group(200, kind=kind, more=more)
    rounds = 200 if kind == "sgd" else 20
    assert run.program.status(100) == 0, run.program.out + run.program.err
    assert f"worker: 2 replicas of {2 * rounds} updates: equal digests" in run.program.out
    assert len(run.logged()) == 2 * rounds


def test_workers_are_added_to_a_live_run_and_retired(group, machworks, eventually):
    # long enough for two more processes to load meanwhile
    run = group(12000, more=", basis: {dimensions: 200}, resources: {cpus: 0.25}").says("; run folder")

    def scale(count):
        asked = machworks("scale", run.folder, f"worker={count}")
        assert asked.status(60) == 0, asked.err

    run.reaches("worker/0", 500, eventually)
    scale(4)
    run.says("worker/3 is back").says("worker/2 is back")
    run.reaches("worker/3", 1000, eventually)
    scale(2)
    run.says("worker/3 is retired").says("worker/2 is retired")
    refused = machworks("scale", run.folder, "worker=1000")
    assert refused.status(60) == 2 and "cpus: 0.25 wanted" in refused.err
    assert run.program.status(100) == 0, run.program.out + run.program.err
    logged = run.logged()
    assert f"worker: 2 replicas of {len(logged)} updates: equal digests" in run.program.out
    made = Counter(name.sender for name in logged)
    assert set(logged.values()) == {1} and made[0] == made[1] == 1200 and 0 < made[3] < 1180
    first = run.steps("worker/3")[0]
    assert first > 500  # it went on where the others were


def test_a_budget_of_bytes_is_kept(group):
    run = group(4000, more=", exchange: {budget: 2kB/s}")
    assert run.program.status(100) == 0, run.program.out + run.program.err
    assert "equal digests" in run.program.out
    outcome = json.loads((run.folder / "run.json").read_text())["outcome"]["learners"]
    for one in outcome.values():
        assert one["steps"] == 4000
        assert one["bytes"]["sent"] <= 1.1 * 2000 * (one["seconds"] + 1.0)  # a second's worth is made up for
        assert one["bytes"]["sent"] >= 0.8 * 2000 * one["seconds"]
