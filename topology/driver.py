"""The driver: turns a checked topology into actors, and hands them to the watch.

Consumes: a `Topology`. Produces: a run folder and an `Outcome`.
Waits for: resources, hosts and learners, each with a limit. Unblocked by: what it waits for, an interrupt.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Optional

from learners.options import Topology
from topology import cluster, parse, shadow
from topology.cluster import Refused, refuse
from topology.outcome import Outcome, new_folder
from topology.placement import missing
from topology.watch import Actors, Live, Watch

__all__ = ["Live", "Outcome", "Refused", "run"]

SURVEY = timedelta(seconds=30)
"""How long a worker on every host may take to say where it imports this project from."""
LOG_FORMAT = "{time:YYYY-MM-DD HH:mm:ss.SSS} | {level: <7} | {message}"


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
        address: of a running cluster; none takes the Ray that this process is connected to, or else starts a fresh one
            on this machine, which ends with the run.
        runs: folder in which the run gets a folder of its own.
        beside: folder that relative paths of the file count from.
        tell: gets a line for every event worth one; loguru and `logs/driver.log` of the run get it too.
        show: gets the newest figures, twice a second.

    Raises:
        ValueError: the data can't be had, or the run can't start here (`Refused`); nothing was started then.
        KeyboardInterrupt: Ctrl-C or SIGTERM before there was a run; later ones end it with status 130.
    """
    from actors import data

    refuse(shadow.in_directory(os.getcwd()))
    if cluster.is_fresh(address):
        refuse(missing(topology, cluster.hosts_of(None)))
    dataset = data.load(topology.data, folder=beside)
    tell(data.describe(dataset))
    with cluster.connected(address) as ray:
        cluster.await_resources(ray, topology)
        refuse(shadow.on_hosts(SURVEY))
        try:
            folder = new_folder(runs, topology)
            (folder / "chain.yaml").write_text(parse.resolved(topology))
        except OSError as error:
            raise Refused(f"{runs}: no run folder can be made there: {error}") from error
        with _journal(folder, tell) as told:
            start = partial(_actors, ray, topology, dataset, folder)
            return Watch(ray, topology, start, folder, told, show).to_the_end()


@contextmanager
def _journal(folder: Path, tell: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """What is told goes to loguru and `logs/driver.log` too. The sink is ours, the caller's own are not touched."""
    from loguru import logger

    ours = logger.bind(machworks_run=folder.name)
    sink = logger.add(
        folder / "logs" / "driver.log",
        format=LOG_FORMAT,
        filter=lambda record: record["extra"].get("machworks_run") == folder.name,
    )

    def told(line: str) -> None:
        ours.info(line)
        tell(line)

    try:
        yield told
    finally:
        with suppress(ValueError):  # the caller has removed all sinks meanwhile
            logger.remove(sink)


def _actors(ray: Any, topology: Topology, dataset: Any, folder: Path) -> Actors:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    from actors.recorder import RecorderActor

    here = On(ray.get_runtime_context().get_node_id(), soft=False)
    recorder = RecorderActor.options(scheduling_strategy=here).remote(str(folder))
    setups = _setups(ray, topology, dataset, recorder)
    return Actors(recorder, {name: _started(topology, name, setup) for name, setup in setups.items()})


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


def _started(topology: Topology, name: str, setup: Any) -> Any:
    from actors.mach import MachActor

    learner = topology.learners[name]
    custom = {key: amount for key, amount in learner.resources.items() if key not in ("cpus", "gpus")}
    return MachActor.options(num_cpus=learner.cpus, num_gpus=learner.resources.get("gpus", 0), resources=custom).remote(
        setup
    )
