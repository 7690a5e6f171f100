"""The cluster that a run gets: connecting to it, its hosts, and whether it has what the learners ask for."""

import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Optional

from learners.options import Topology
from topology import guard
from topology.placement import Host, missing

PLACEMENT = timedelta(seconds=8)
"""How long a run waits for resources that others hold."""
ANSWER = timedelta(seconds=5)
"""How long the host of an address may take to answer."""
POLL_SECONDS = 0.5


class Refused(ValueError):
    """This run can't start here: a room is shadowed, or the cluster lacks what a learner asks for."""


def refuse(complaints: Sequence[object]) -> None:
    """Raise `Refused` with all of them, a line each, if there are any."""
    if complaints:
        raise Refused("\n".join(map(str, complaints)))


@contextmanager
def connected(address: Optional[str]) -> Iterator[Any]:
    """Ray, connected to the cluster at `address`, or to a fresh one on this machine that ends with the block.

    A connection that the caller has already is used, and left as it is. SIGTERM and SIGHUP are
    interrupts here, like Ctrl-C.

    Raises:
        Refused: nothing answers at `address`, or it is not a Ray that we can talk to.
    """
    if address is not None:
        _knock(address)
    import ray

    guarding = guard.watching() if is_fresh(address) else nullcontext()
    with _signals_interrupt() as listen, guarding as pipe:
        if address is None and not is_fresh(address):
            yield ray
            return
        fresh = {} if address else {"include_dashboard": False}
        try:
            try:
                with _apart(pipe):
                    ray.init(address=address or "local", log_to_driver=False, logging_level="error", **fresh)
            except (OSError, RuntimeError) as error:  # unlike versions, nothing at `auto`, no token
                text = str(error).strip().splitlines()[0]
                raise Refused(f"Ray{f' at --address {address}' if address else ''}: {text}") from error
            except SystemExit:  # what Ray makes of SIGTERM
                raise KeyboardInterrupt from None
            listen()  # Ray has set a handler of its own
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _apart(pipe: Optional[int]) -> Iterator[None]:
    """Processes that Ray starts for this driver in the block are the guard's at the pipe's end, if there is one."""
    if pipe is None:
        yield
        return
    from ray._private import services

    before = services.ConsolePopen
    services.ConsolePopen = guard.apart(before, pipe)
    try:
        yield
    finally:
        services.ConsolePopen = before


def _knock(address: str) -> None:
    """Ray tries an address for a minute where nobody is; we ask first."""
    if address.startswith("ray://"):
        raise Refused(f"--address {address}: ray:// is not supported: run on one of its hosts, with HOST:PORT or auto")
    host, _, port = address.rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER.total_seconds()).close()
    except OSError as error:
        raise Refused(f"--address {address}: no Ray cluster answers there: {error.strerror or error}") from error


@contextmanager
def _signals_interrupt() -> Iterator[Callable[[], None]]:
    """Until the end of the block SIGTERM raises KeyboardInterrupt; the function given sets it so anew.

    And SIGHUP, once: a terminal that closes may send it several times. Who ignores it (nohup) goes on ignoring it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # other threads may not say what signals do
        return

    def interrupt(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def listen() -> None:
        signal.signal(signal.SIGTERM, interrupt)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    listen()
    if before[signal.SIGHUP] is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupt)
    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def is_fresh(address: Optional[str]) -> bool:
    """Whether a run at this address starts a Ray of its own."""
    ray = sys.modules.get("ray")  # who has a connection has imported it
    return address is None and not (ray and ray.is_initialized())


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
        with connected(address) as ray:
            return hosts(ray)
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    spec = ResourceAndLabelSpec()
    spec.resolve(is_head=True, node_ip_address="127.0.0.1")
    have = spec.to_resource_dict()
    return [Host(name=platform.node() or os.uname().nodename, total=have, available=have)]


def await_resources(ray: Any, topology: Topology) -> None:
    """Return once the learners fit; `Refused` if they never will, or not in time."""
    deadline = time.monotonic() + PLACEMENT.total_seconds()
    while True:
        found = hosts(ray)
        never = missing(topology, [Host(name=h.name, total=h.total, available=h.total) for h in found])
        lacks = never or missing(topology, found)
        if not lacks:
            return
        if never or time.monotonic() > deadline:
            refuse(lacks)
        time.sleep(POLL_SECONDS)
