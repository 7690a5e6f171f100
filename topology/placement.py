"""Where the learners of a run fit on the hosts of a cluster, and what it lacks for those that fit nowhere.

Ray leaves an actor pending in silence for ever if no host has what it asks for; this tells before anything starts.
Names of resources here are Ray's: CPU, GPU, and custom ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learners.options import Topology
from topology.spec import did_you_mean


@dataclass(frozen=True)
class Host:
    """One host of the cluster and its resources by Ray's names: CPU, GPU, and custom ones."""

    name: str
    total: Mapping[str, float]
    #: what no other run holds
    available: Mapping[str, float]


@dataclass(frozen=True)
class Lack:
    """Something that a learner wants and the cluster cannot give it."""

    learner: str
    #: Ray's name
    resource: str
    wanted: float
    #: the most that one host can still give
    available: float
    #: key path and what to know, one line
    message: str

    def __str__(self) -> str:
        return self.message


def missing(topology: Topology, hosts: Sequence[Host]) -> list[Lack]:
    """What the cluster of these hosts lacks for the run; [] if it all fits, or if no host is known."""
    return placed(topology, hosts)[1]


def needs_of(topology: Topology, name: str) -> dict[str, float]:
    """What a learner asks of its host, by Ray's names."""
    ours = {"cpus": "CPU", "gpus": "GPU"}
    given = {ours.get(key, key): amount for key, amount in topology.members[name].resources.items()}
    return {"CPU": topology.members[name].cpus, **given}


def _key(resource: str) -> str:
    return {"CPU": "cpus", "GPU": "gpus"}.get(resource, resource)


def placed(topology: Topology, hosts: Sequence[Host]) -> tuple[dict[str, str], list[Lack]]:
    """Where each learner fits, largest first, and what those lack that fit nowhere."""
    if not hosts:
        return {}, []
    total = {name: sum(host.total.get(name, 0.0) for host in hosts) for host in hosts for name in host.total}
    needs = {name: needs_of(topology, name) for name in topology.members}
    share = {
        name: max(amount / max(total.get(resource, 0.0), 1e-9) for resource, amount in wanted.items())
        for name, wanted in needs.items()
    }
    free = {host.name: dict(host.available) for host in hosts}
    where: dict[str, str] = {}
    lacks: dict[str, list[Lack]] = {}
    for name in sorted(needs, key=lambda name: -share[name]):
        fitting = [host for host in free if _short(needs[name], free[host]) is None]
        if not fitting:
            lacks[name] = _lacks(name, needs[name], hosts, free)
            continue
        where[name] = min(fitting, key=lambda host: _waste(free[host], needs[name]))
        for resource, amount in needs[name].items():
            free[where[name]][resource] -= amount
    return where, [lack for name in topology.members for lack in lacks.get(name, [])]


def _waste(free: Mapping[str, float], wanted: Mapping[str, float]) -> tuple[int, float]:
    """Least for the host that has least beside what is wanted: special hosts stay free for those who need them."""
    return len(_shown(free).keys() - wanted.keys()), free["CPU"]


def _short(wanted: Mapping[str, float], free: Mapping[str, float]) -> str | None:
    """The first resource that `free` is short of; Ray counts in 0.0001."""
    return next((name for name, amount in wanted.items() if free.get(name, 0.0) < amount - 1e-6), None)


def _lacks(
    learner: str, wanted: Mapping[str, float], hosts: Sequence[Host], free: Mapping[str, Mapping[str, float]]
) -> list[Lack]:
    """Why a learner fits nowhere: a resource that no host has enough of, or else that no host has all of them."""
    found = []
    for resource, amount in wanted.items():
        left = max(host.get(resource, 0.0) for host in free.values())
        if left < amount - 1e-6:
            why = _why(resource, amount, left, hosts)
            path = f"learners.{learner}.resources.{_key(resource)}"
            found.append(Lack(learner, resource, amount, left, f"{path}: {amount:g} wanted, {why}"))
    if not found:
        together = listed(wanted)
        state = "; ".join(f"{name} has {listed(_shown(left))}" for name, left in free.items())
        resource = next(short for left in free.values() if (short := _short(wanted, left)))
        left_most = max(left.get(resource, 0.0) for left in free.values())
        message = f"learners.{learner}.resources: {together} wanted on one host, none has them together free; {state}"
        found.append(Lack(learner, resource, wanted[resource], left_most, message))
    return found


def _why(resource: str, amount: float, left: float, hosts: Sequence[Host]) -> str:
    most = max(host.total.get(resource, 0.0) for host in hosts)
    if most == 0.0:
        every = {name: None for host in hosts for name in _shown(host.total)}
        custom = [name for name in every if name not in ("CPU", "GPU")]
        near = did_you_mean(resource, custom) if resource not in ("CPU", "GPU") else ""
        have = ", ".join(listed({name: sum(host.total.get(name, 0.0) for host in hosts)}) for name in every)
        return f"no host has any; hosts have {have or 'nothing'}{near}"
    everything = sum(host.total.get(resource, 0.0) for host in hosts)
    if most < amount:
        return f"no host has more than {most:g}; all hosts together have {everything:g}"
    used = everything - sum(host.available.get(resource, 0.0) for host in hosts)
    others = f"{used:g} held by other programs, " if used > 1e-6 else ""
    return f"at most {left:g} left on one host ({everything:g} in all, {others}the rest taken by other learners)"


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    """What a person counts: not Ray's node names, memory and labels of accelerators."""
    hidden = ("node:", "memory", "object_store_memory", "accelerator_type:")
    return {name: amount for name, amount in resources.items() if amount and not name.startswith(hidden)}


def listed(resources: Mapping[str, float]) -> str:
    """Resources in words: `CPU 2, IPU 1`."""
    return ", ".join(f"{name} {round(amount, 4):g}" for name, amount in resources.items()) or "nothing"
