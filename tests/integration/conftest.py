"""Runs as a user starts them, in processes of their own, and a cluster that several of them share."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from learners.records import Record, lines

CHECKOUT = Path(__file__).parents[2]
MARKS = [f"MACHWORKS_TEST_MARK_{copy}" for copy in range(8)]
"""Several, since the title of a process is written over the first of its variables."""

CHAIN = """
version: 1
name: small
seed: 7
data: {name: digits, validation: 0.15}
defaults: {batch_size: 32, steps: 20, hidden: [16], embedding: 8, synthetic: {hidden: [16]}}
learners:
  bottom: {kind: mach}
  middle: {kind: mach, child: bottom}
  top: {kind: mach, child: middle}
record: {every: 10, attribution: 0}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def poll(what, seconds, why=""):
    """What `what()` gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {why}"
        time.sleep(0.05)
    return found


def marked(mark):
    """Command lines, by process, of all living ones that were started under a mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            pass  # it has ended meanwhile, or is another user's
    return found


class Program:
    """A Python program of the test, its output in files, and everything that it starts."""

    def __init__(self, arguments, folder, cwd=CHECKOUT, **env):
        self.mark = uuid.uuid4().hex
        self._out, self._err = folder / f"{self.mark[:8]}.out", folder / f"{self.mark[:8]}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT), **dict.fromkeys(MARKS, self.mark), **env},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    @property
    def json(self):
        return json.loads(self.out.splitlines()[-1])

    @property
    def running(self):
        return self._process.poll() is None

    def signal(self, number, group=False):
        """To the program alone, or to its process group, as a terminal or `timeout` sends it."""
        if group:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def status(self, seconds=300):
        """Exit status; the program must end within that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s:\n{self.out}\n{self.err}")

    def says(self, text, seconds=300):
        """Wait until it has said that."""
        poll(lambda: text in self.err + self.out or self._process.poll() is not None, seconds, text)
        assert text in self.err + self.out, self.out + self.err

    def started(self, text, seconds=60):
        """Wait until a process with that in its command line is among those that it started."""
        poll(lambda: any(text in line for line in marked(self.mark).values()), seconds, text)

    def end(self):
        """Kill what is left."""
        for pid in (self._process.pid, *marked(self.mark)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)


@pytest.fixture
def program(tmp_path):
    """Starts programs; whatever they leave is killed at the end of the test."""
    started = []

    def start(*arguments, **options):
        started.append(Program(arguments, tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def machworks(program, tmp_path):
    """Starts the command line; runs go to `tmp_path/runs`."""

    def start(command, *arguments, **options):
        takes_runs = ["--runs", tmp_path / "runs"] if command in ("run", "status", "tensorboard") else []
        return program("-m", "topology.cli", command, *arguments, *takes_runs, **options)

    return start


@pytest.fixture
def chain(tmp_path):
    """Path of a small chain of three learners."""
    path = tmp_path / "small.yaml"
    path.write_text(CHAIN)
    return path


@pytest.fixture(scope="session")
def cluster():
    """Address of a running cluster: one host with 4 logical CPUs, 2 IPUs and an object store of 80 MB."""
    folder = tempfile.mkdtemp(prefix="mw-", dir="/tmp")  # short: paths of sockets have 107 characters at most
    port, mark = free_port(), uuid.uuid4().hex
    ours = {"port": port, "ray-client-server-port": free_port(), "dashboard-agent-listen-port": free_port()}
    started = subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *("--num-cpus=4", '--resources={"IPU": 2}', "--object-store-memory=83886080"),
            *(
                "--include-dashboard=false",
                "--disable-usage-stats",
                f"--temp-dir={folder}",
                "--node-ip-address=127.0.0.1",
            ),
            *(f"--{name}={value}" for name, value in ours.items()),
        ],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **dict.fromkeys(MARKS, mark), "RAY_AUTH_MODE": "disabled"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    before = os.environ.get("RAY_AUTH_MODE")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # for the programs that connect to it

    def up():
        assert started.poll() is None, "ray start has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        poll(up, 60, "a cluster")
        yield f"127.0.0.1:{port}"
    finally:
        if before is None:
            del os.environ["RAY_AUTH_MODE"]
        else:
            os.environ["RAY_AUTH_MODE"] = before
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def records():
    """All records of a learner in a run folder."""

    def read(run, learner):
        lines = Path(run, "records", f"{learner}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if not line.startswith('{"seal"')]

    return read


@pytest.fixture
def eventually():
    """Waits until something is true."""
    return poll


@pytest.fixture(name="marked")
def marked_processes():
    """Processes that were started under a program's mark."""
    return marked


@pytest.fixture
def leftovers():
    """What a program has started and not ended, once it has had some seconds."""

    def look(program, within, but=()):
        deadline = time.monotonic() + within
        while True:
            found = {pid: line for pid, line in marked(program.mark).items() if not line.startswith(but)}
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    return look


class Run:
    """A run of small learners in a process of its own, seen from outside: its files, and its processes."""

    LEARNERS = ("bottom", "middle", "top")

    def __init__(self, program, runs):
        self.program, self._runs = program, runs

    @property
    def folder(self):
        (found,) = self._runs.glob("*/run.json")
        return found.parent

    def training(self, seconds=200):
        self.program.says("; run folder", seconds)
        return self

    def process(self, learner):
        """Its process, of its newest incarnation."""
        log = (self.folder / "logs/driver.log").read_text()
        return int(re.findall(rf"{learner} is (?:back at step \d+: it is )?process (\d+)", log)[-1])

    def actor(self, title):
        """The process of the recorder or of the keeper."""
        return next(iter(pid for pid, line in marked(self.program.mark).items() if f"ray::{title}" in line), None)

    def records(self, learner, kind="train"):
        path = self.folder / f"records/{learner}.jsonl"
        content = path.read_bytes() if path.exists() else b""
        return [one for _, one in lines(content) if isinstance(one, Record) and one.kind == kind]

    def reaches(self, learner, step, seconds=120, alive=True):
        def there():
            assert self.program.running or not alive, self.program.out + self.program.err
            return any(one.step >= step for one in self.records(learner))

        poll(there, seconds, f"{learner} at step {step}")
        return self

    def says(self, text, seconds=120):
        self.program.says(text, seconds)
        return self

    @property
    def said(self):
        return self.program.out

    def pauses(self, learner):
        """Seconds between two steps of one incarnation."""
        steps = self.records(learner)
        return [b.time - a.time for a, b in pairwise(steps) if a.incarnation == b.incarnation]

    def curve(self, learner, tag="speed/steps_per_second"):
        """Steps that TensorBoard shows."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        read = EventAccumulator(str(self.folder / "tensorboard" / learner), size_guidance={"scalars": 0})
        read.Reload()
        return [event.step for event in read.Scalars(tag)]

    def is_whole(self, steps):
        """Every step once, in records and in TensorBoard, and no gradient twice."""
        for learner in self.LEARNERS:
            assert [one.step for one in self.records(learner)] == list(range(1, steps + 1))
            assert self.curve(learner) == list(range(20, steps + 1, 20))
            applied = [gradient for one in self.records(learner) for gradient in one.applied]
            assert len(applied) == len(set(applied))
            assert {split for one in self.records(learner, "final") for split in one.values if "accuracy" in split}
            assert len(self.records(learner, "final")) == 2  # validation and test
        return True


@pytest.fixture(name="free_port")
def gives_free_port():
    """Gives a port that nobody listens on."""
    return free_port


@pytest.fixture
def chain_file(tmp_path):
    """Writes the file of a small chain, with options as given."""

    def written(steps=20, learners="", **options):
        path = tmp_path / f"{uuid.uuid4().hex[:8]}.yaml"
        path.write_text(FAILING.format(steps=steps, learners=learners or LEARNERS, **{**OPTIONS, **options}))
        return path

    return written


@pytest.fixture
def start(program, chain_file, tmp_path):
    """Starts runs of a small chain, each with a folder of its own."""

    def started(arguments=(), **options):
        path, runs = chain_file(**options), Path(tempfile.mkdtemp(prefix="runs-", dir=tmp_path))
        return Run(program("-m", "topology.cli", "run", path, "--plain", "--runs", runs, *arguments), runs)

    return started


@pytest.fixture
def resume(program):
    """Goes on with a run."""

    def resumed(folder, *options):
        return Run(program("-m", "topology.cli", "resume", folder, "--plain", *options), folder.parent)

    return resumed


LEARNERS = "{bottom: {kind: mach}, middle: {kind: mach, child: bottom}, top: {kind: mach, child: middle}}"
OPTIONS = {"every": 100, "silence": 4, "more": ""}
FAILING = """
version: 1
name: small
seed: 7
data: {{name: digits, validation: 0.15}}
defaults: {{batch_size: 16, steps: {steps}, hidden: [16], embedding: 8, synthetic: {{hidden: [16]}}{more}}}
learners: {learners}
record: {{every: 200, attribution: 0}}
checkpoint: {{every: {every}}}
supervise: {{silence: {silence}}}
"""
