"""The driver: turns a checked topology into actors, watches them, and says what came of it.

Consumes: a `Topology`. Produces: a run folder and an `Outcome`.
Waits for: hosts and learners, each with a limit. Unblocked by: a learner's end or death, an interrupt.
"""

import json
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

import msgspec

from learners.options import Topology
from topology import parse, shadow
from topology.plan import Host, missing

PLACEMENT_SECONDS = 12.0
"""How long a run waits for resources that others hold."""
READY_SECONDS = 180.0
"""How long learners may take to load and compile."""
STOP_SECONDS = 5.0
"""How long learners may take to write down what they have."""
POLL_SECONDS = 0.5
SURVEY = timedelta(seconds=30)
"""How long a worker on every host may take to say where it imports this project from."""

Live = Mapping[str, Mapping[str, float]]
"""Newest value of every figure, per learner."""


class Refused(ValueError):
    """This run can't start here: a room is shadowed, or the cluster lacks what a learner asks for."""


@dataclass(frozen=True)
class Reached:
    """What one learner came to."""

    status: str  #: done | stopped | failed
    steps: int
    seconds: float
    accuracies: Mapping[str, float]  #: test/accuracy/child, ...
    restarts: int
    fallbacks: int
    bytes: Mapping[str, int]
    counts: Mapping[str, int]
    error: str = ""


@dataclass
class Outcome:
    """What a run came to; `status` is that of the command line."""

    folder: Path
    status: int = 0  #: 0 done, 1 a learner failed for good, 130 interrupted
    learners: dict[str, Reached] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "run": str(self.folder),
            "seconds": self.seconds,
            "learners": msgspec.to_builtins(self.learners),
        }


def run(
    topology: Topology,
    *,
    address: Optional[str] = None,
    runs: Path = Path("runs"),
    beside: Path = Path(),
    tell: Callable[[str], None] = lambda line: None,
    show: Callable[[Live], None] = lambda live: None,
) -> Outcome:
    """Run a topology to its end.

    Args:
        address: of a running cluster; none starts a fresh one on this machine, which ends with the run.
        runs: folder in which the run gets a folder of its own.
        beside: folder that relative paths of the file count from.
        tell: gets a line for every event worth one.
        show: gets the newest figures, twice a second.

    Raises:
        ValueError: the data can't be had, or the run can't start here (`Refused`); nothing was started then.
    """
    from actors import data

    _refuse(shadow.in_directory(os.getcwd()))
    dataset = data.load(topology.data, folder=beside)
    tell(data.describe(dataset))
    with _cluster(address) as ray:
        _refuse(shadow.on_hosts(SURVEY))
        _wait_for_resources(ray, topology)
        folder = _new_folder(runs, topology.name)
        actors = _Actors(ray, topology, dataset, folder)
        return _Watch(ray, topology, actors, folder, tell, show).to_the_end()


def _refuse(complaints: Sequence[str]) -> None:
    if complaints:
        raise Refused("\n".join(complaints))


def hosts(ray: Any) -> list[Host]:
    """The cluster's living hosts with what they have in all and what is free."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [
        Host(name=node["NodeManagerHostname"], total=node["Resources"], available=free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]


def hosts_of(address: Optional[str]) -> list[Host]:
    """Hosts of the cluster at `address`, or this machine as a fresh Ray would find it; starts nothing."""
    if address is not None:
        with _cluster(address) as ray:
            return hosts(ray)
    from ray._private.accelerators import NvidiaGPUAcceleratorManager as Nvidia
    from ray._private.utils import get_num_cpus

    have = {"CPU": float(get_num_cpus()), "GPU": float(Nvidia.get_current_node_num_accelerators())}
    have = {name: count for name, count in have.items() if count}
    return [Host(name=platform.node(), total=have, available=have)]


class _cluster:
    """A Ray connection: to `address`, or to a fresh Ray on this machine."""

    def __init__(self, address: Optional[str]) -> None:
        self._address = address

    def __enter__(self) -> Any:
        import ray

        fresh = {} if self._address else {"include_dashboard": False}
        ray.init(address=self._address or "local", log_to_driver=False, logging_level="error", **fresh)
        return ray

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()


def _wait_for_resources(ray: Any, topology: Topology) -> None:
    deadline = time.monotonic() + PLACEMENT_SECONDS
    while True:
        found = hosts(ray)
        never = missing(topology, [Host(name=h.name, total=h.total, available=h.total) for h in found])
        lacks = never or missing(topology, found)
        if not lacks:
            return
        if never or time.monotonic() > deadline:
            _refuse([str(lack) for lack in lacks])
        time.sleep(POLL_SECONDS)


def _new_folder(runs: Path, name: str) -> Path:
    """A folder that no other run has."""
    folder = runs / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True)
    return folder.resolve()


class _Actors:
    """The recorder and the learners of one run."""

    def __init__(self, ray: Any, topology: Topology, dataset: Any, folder: Path) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        from actors.recorder import RecorderActor

        (folder / "chain.yaml").write_text(parse.resolved(topology))
        here = On(ray.get_runtime_context().get_node_id(), soft=False)
        self.recorder = RecorderActor.options(scheduling_strategy=here).remote(str(folder))
        self.learners = {
            name: _started(ray, topology, name, setup)
            for name, setup in _setups(ray, topology, dataset, self.recorder).items()
        }


def _setups(ray: Any, topology: Topology, dataset: Any, recorder: Any) -> dict[str, Any]:
    from actors.mach import Data, Setup
    from learners.batches import shards, take

    private = topology.data.shard == "by_learner"
    parts = shards(len(dataset.train), topology.learners, topology.seed) if private else {}
    shared = {name: _put(ray, getattr(dataset, name)) for name in ("validation", "test")}
    shared["train"] = () if private else _put(ray, dataset.train)
    setups = {}
    for name, chosen in topology.learners.items():
        refs = dict(shared, train=_put(ray, take(dataset.train, parts[name]))) if private else shared
        data = Data(
            **refs,
            private=private,
            width=dataset.width,
            classes=dataset.classes,
            dtype=dataset.train.inputs.dtype.str,
            scale=dataset.scale,
            offset=dataset.offset,
        )
        setups[name] = Setup(
            name=name,
            incarnation=0,
            seed=topology.seed,
            options=chosen,
            children={child: topology.learners[child].embedding for child in topology.children_of(name)},
            parents={parent: topology.learners[parent].batch_size for parent in topology.parents_of(name)},
            data=data,
            record=topology.record,
            recorder=recorder,
        )
    return setups


def _put(ray: Any, split: Any) -> tuple[Any, ...]:
    split.fingerprint  # noqa: B018  computed once, here, and carried along
    return (ray.put(split),)


def _started(ray: Any, topology: Topology, name: str, setup: Any) -> Any:
    from actors.device import DEFAULT_CPUS
    from actors.mach import MachActor

    wanted = dict(topology.learners[name].resources)
    return MachActor.options(
        num_cpus=wanted.pop("cpus", DEFAULT_CPUS), num_gpus=wanted.pop("gpus", 0), resources=wanted
    ).remote(setup)


class _Watch:
    """One run from the learners' start to their end."""

    def __init__(
        self,
        ray: Any,
        topology: Topology,
        actors: _Actors,
        folder: Path,
        tell: Callable[[str], None],
        show: Callable[[Live], None],
    ) -> None:
        self._ray, self._topology, self._actors = ray, topology, actors
        self._tell, self._show = tell, show
        self._outcome = Outcome(folder)
        self._pending: dict[Any, str] = {}

    def to_the_end(self) -> Outcome:
        began = time.monotonic()
        _write_json(self._outcome.folder / "run.json", _manifest(self._topology, "running"))
        try:
            self._await_ready()
            self._describe()
            self._pending = {actor.run.remote(): name for name, actor in self._actors.learners.items()}
            self._tell(f"{len(self._pending)} learners are training; run folder {self._outcome.folder}")
            while self._pending:
                self._collect(POLL_SECONDS)
                self._show(self._latest())
        except KeyboardInterrupt:
            self._outcome.status = 130
            self._stop()
        self._outcome.seconds = time.monotonic() - began
        self._ray.get(self._actors.recorder.close.remote(), timeout=STOP_SECONDS)
        _write_json(
            self._outcome.folder / "run.json", _manifest(self._topology, "ended") | {"outcome": self._outcome.as_json()}
        )
        return self._outcome

    def _await_ready(self) -> None:
        waiting = {actor.ready.remote(): name for name, actor in self._actors.learners.items()}
        done, late = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=READY_SECONDS)
        for reference in done:
            self._ray.get(reference)
        if late:
            names = ", ".join(waiting[reference] for reference in late)
            raise TimeoutError(f"learners {names}: not ready within {READY_SECONDS:.0f} s; see the run's Ray logs")
        for name, actor in self._actors.learners.items():
            around = {*self._topology.children_of(name), *self._topology.parents_of(name)}
            self._ray.get(actor.connect.remote({n: self._actors.learners[n] for n in around}), timeout=STOP_SECONDS)

    def _describe(self) -> None:
        from topology import draw

        flat = {name: _flat(msgspec.to_builtins(value)) for name, value in self._topology.learners.items()}
        self._actors.recorder.describe.remote(draw.picture(self._topology), flat, parse.resolved(self._topology))

    def _collect(self, seconds: float) -> None:
        done, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=seconds)
        for reference in done:
            name = self._pending.pop(reference)
            try:
                self._outcome.learners[name] = _reached(self._ray.get(reference))
                self._tell(f"{name} has ended")
            except Exception as error:  # whatever ended a learner is told, and the others go on
                self._failed(name, error)
            for child in self._topology.children_of(name):
                self._actors.learners[child].close.remote(name, 0)

    def _failed(self, name: str, error: Exception) -> None:
        cause = getattr(error, "cause", None) or error
        text = f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
        self._tell(f"learners.{name} failed: {text}")
        latest = self._latest().get(name, {})
        self._outcome.status = 1
        self._outcome.learners[name] = Reached(
            status="failed",
            steps=int(latest.get("step", 0)),
            seconds=0.0,
            accuracies={},
            restarts=0,
            fallbacks=int(latest.get("exchange/fallbacks", 0)),
            bytes={key: int(n) for key, n in latest.items() if key.startswith("bytes/")},
            counts={},
            error=text,
        )
        for parent in self._topology.parents_of(name):
            self._actors.learners[parent].close.remote(name, 0)

    def _stop(self) -> None:
        for actor in self._actors.learners.values():
            actor.stop.remote()
        if self._pending:
            self._collect(STOP_SECONDS)

    def _latest(self) -> Live:
        try:
            return self._ray.get(self._actors.recorder.latest.remote(), timeout=POLL_SECONDS * 4)
        except self._ray.exceptions.GetTimeoutError:
            return {}


def _reached(summary: Any) -> Reached:
    return Reached(
        status="stopped" if summary.stopped else "done",
        steps=summary.steps,
        seconds=summary.seconds,
        accuracies={key: value for key, value in summary.final.items() if "accuracy" in key},
        restarts=summary.incarnation,
        fallbacks=summary.counts.get("fallbacks", 0),
        bytes=summary.bytes,
        counts=summary.counts,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options as one level, for TensorBoard's hyper-parameters."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
    return flat


def _manifest(topology: Topology, state: str) -> dict[str, Any]:
    packages = ("machworks", "ray", "tensorflow", "numpy", "tensorboardX")
    return {
        "format": 1,
        "state": state,
        "name": topology.name,
        "seed": topology.seed,
        "host": platform.node(),
        "process": os.getpid(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
        "written": time.time(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Of the checkout that runs, or nothing."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
