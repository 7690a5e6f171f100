"""The driver: turns a checked topology into actors, and hands them to the watch.

Consumes: a `Topology`. Produces: a run folder and an `Outcome`.
Waits for: resources, hosts and learners, each with a limit. Unblocked by: what it waits for, an interrupt.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Optional

from msgspec import structs

from actors import checkpoint
from learners.options import Topology
from topology import cluster, outcome, own, parse, shadow, status, workers
from topology.cluster import Refused, refuse
from topology.crew import Crew
from topology.figures import Live
from topology.outcome import Outcome, new_folder, write_manifest
from topology.placement import missing
from topology.watch import Watch

__all__ = ["Live", "Outcome", "Refused", "resume", "run"]

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
    refuse(_unwritable(runs))

    def folder(topology: Topology) -> Path:
        try:
            made = new_folder(runs, topology, beside)
            (made / "chain.yaml").write_text(parse.resolved(topology))
        except OSError as error:
            raise Refused(f"{runs}: no run folder can be made there: {error}") from error
        return made

    return _go(topology, folder, 0, address, beside, tell, show)


def resume(
    folder: Path,
    *,
    address: Optional[str] = None,
    tell: Callable[[str], None] = lambda line: None,
    show: Callable[[Live], None] = lambda live: None,
) -> Outcome:
    """Go on with a run from its newest complete checkpoint set, in the same folder; see `run` for the rest.

    Raises:
        ValueError: also if the folder is not a run's, the run still goes on or is done, or it has no complete set.
    """
    status.read(folder)  # it is a run's
    with _alone(folder):
        return _resume(folder, address, tell, show)


def _resume(folder: Path, address: Optional[str], tell: Callable[[str], None], show: Callable[[Live], None]) -> Outcome:
    before = status.read(folder)
    if before["state"] == "running":
        raise Refused(f"{folder}: this run still goes on (machworks stop {folder} ends it)")
    if before["status"] == 0:
        raise Refused(f"{folder}: this run is done: every learner has taken its steps")
    found, ignored = checkpoint.newest(folder / "checkpoints")
    topology = parse.load(folder / "chain.yaml")
    for name, replicas in outcome.manifest(folder).get("replicas", {}).items():  # what `machworks scale` came to
        scaled = structs.replace(topology.learners[name], replicas=replicas)
        topology = structs.replace(topology, learners={**topology.learners, name: scaled})
    logged = topology.groups.keys() == topology.learners.keys()  # they go on from their logs
    if found is None and not logged:
        raise Refused("\n".join([f"{folder}: it has no complete checkpoint set to go on from", *ignored]))
    for line in ignored:
        tell(line)
    beside = Path(before["beside"])

    def again(topology: Topology) -> Path:
        write_manifest(folder, topology, {"state": "running", "outcome": None})
        return folder.resolve()

    return _go(topology, again, before["incarnation"] + 1, address, beside, tell, show)


def _go(
    topology: Topology,
    make_folder: Callable[[Topology], Path],
    incarnation: int,
    address: Optional[str],
    beside: Path,
    tell: Callable[[str], None],
    show: Callable[[Live], None],
) -> Outcome:
    """Check all that can be checked, then start, watch and end the learners."""
    from actors import data

    refuse(shadow.in_directory(os.getcwd()))
    if cluster.is_fresh(address):
        refuse(missing(topology, cluster.hosts_of(None)))
    dataset = data.load(topology.data, folder=beside)
    tell(data.describe(dataset))
    networks: workers.Networks = workers.NONE
    if topology.workers:
        networks = own.networks(topology, dataset.shape, dataset.classes, beside, tell)
        about = dataset.shape, dataset.classes, networks
        full = workers.completed(topology, *about)
        for note in workers.notes(topology, *about):
            tell(note)
        topology = full
    with cluster.connected(address) as ray:
        tell("Ray is up")
        cluster.await_resources(ray, topology)
        refuse(shadow.on_hosts(SURVEY))
        folder = make_folder(topology)
        with _journal(folder, tell) as told:
            crew = partial(Crew, ray, topology, dataset, folder, beside.absolute(), networks)
            return Watch(ray, topology, crew, folder, told, show, incarnation).to_the_end()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else goes on with this run meanwhile: `run.json` says so only once Ray is up. Ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Refused(f"{folder}: another process is about to go on with this run, or does") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(handle)


def _unwritable(runs: Path) -> list[str]:
    """What is wrong with the folder in which a run folder is to be made, as far as can be seen before."""
    there = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    if not there.is_dir():
        return [f"{runs}: no run folder can be made there: {there} is a file; --runs names another folder"]
    if not os.access(there, os.W_OK | os.X_OK):
        return [f"{runs}: no run folder can be made there: {there} can't be written to; --runs names another folder"]
    return []


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
