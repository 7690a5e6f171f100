"""What types cannot say about a run: its graph, its resources, and values that contradict one another.

Every rule maps a `Topology` to (key path, message) pairs; none of them needs a file, a cluster or data.
"""

from collections.abc import Iterator, Set

from learners.options import Mach, Topology
from topology.findings import NAMED, Finding, sound
from topology.spec import did_you_mean

#: Ray counts resources in units of 0.0001
_UNIT = 1e-4
_HOST = {"cpu": "cpus", "cpus": "cpus", "numcpus": "cpus", "gpu": "gpus", "gpus": "gpus", "numgpus": "gpus"}


def check(topology: Topology, faulty: Set[str] = frozenset()) -> list[Finding]:
    """Everything that is wrong with a run of well-typed values, in the order of the learners.

    Args:
        faulty: what was refused already and is not in the run as it was meant: `learners.NAME.SECTION` (of a learner
            whose `kind` is, nothing is known), `data`, `learners` (one of them), or "" (anything may be). What
            depends on it is not looked at: its fault may be that of the other.
    """
    if "" in faulty:
        return alone(topology)
    return [
        *alone(topology),
        *_schedules(topology, faulty),
        *_shards(topology, faulty),
        *_exchanges(topology, faulty),
        *_workers(topology, faulty),
    ]


def alone(topology: Topology) -> list[Finding]:
    """The part of `check` whose findings rest on one value each, and so hold although other values are faulty."""
    return [
        *_data(topology),
        *_links(topology),
        *_loops(topology),
        *_resources(topology),
    ]


def _data(topology: Topology) -> Iterator[Finding]:
    name = topology.data.name
    if name not in NAMED and ":" not in name and not name.endswith(".npz"):
        hint = did_you_mean(name, NAMED) or f"; known are {', '.join(NAMED)}, a file.npz, or module:function"
        yield "data.name", f"'{name}' is not a data set{hint}"


def _places(topology: Topology, name: str) -> list[Finding]:
    """(key path, child) for every child that a learner names."""
    learner = topology.learners[name]
    if not isinstance(learner, Mach):
        return []
    one = [(f"learners.{name}.child", learner.child)] if learner.child else []
    return one + [(f"learners.{name}.children[{i}]", child) for i, child in enumerate(learner.children)]


def _links(topology: Topology) -> Iterator[Finding]:
    for name, learner in topology.machs.items():
        if learner.child and learner.children:
            both = ", ".join(dict.fromkeys((learner.child, *learner.children)))
            yield f"learners.{name}.children", f"child is given too; write only children: [{both}]"
        for path, child in _places(topology, name):
            if child not in topology.learners:
                others = [other for other in topology.machs if other != name]
                known = f"; known are {', '.join(others)}" if others else ""
                yield path, f"'{child}' is not a learner{did_you_mean(child, others) or known}"
            elif child in topology.workers:
                yield path, f"'{child}' has no embedding to ask for; a child is of kind mach"
        for i, child in enumerate(learner.children):
            if child in learner.children[:i]:
                yield f"learners.{name}.children[{i}]", f"'{child}' is named twice; name each child once"


def _loops(topology: Topology) -> Iterator[Finding]:
    """Each link that closes a loop, with that loop: without these links there would be none.

    Sought from the last learner: files are written from the bottom up, where a link to a learner above is the odd one.
    """
    below = {
        name: [(path, child) for path, child in _places(topology, name) if child in topology.learners]
        for name in topology.learners
    }
    done: set[str] = set()
    for start in reversed(below):
        way, links = ([], []) if start in done else ([start], [iter(below[start])])
        while way:
            for path, child in links[-1]:
                if child in way:
                    yield path, _loop([way[-1], *way[way.index(child) :]])
                elif child not in done:
                    way.append(child)
                    links.append(iter(below[child]))
                    break
            else:
                done.add(way.pop())
                links.pop()


def _loop(way: list[str]) -> str:
    what = "a learner cannot be its own child" if len(way) == 2 else "learners must not form a loop"
    return f"{what}: {' -> '.join(way)}; remove one of these links"


def _resources(topology: Topology) -> Iterator[Finding]:
    for name, learner in topology.learners.items():
        for resource, amount in learner.resources.items():
            path = f"learners.{name}.resources.{resource}"
            ours = _HOST.get(resource.lower().replace("_", "").replace("-", ""), resource)
            if ours != resource:
                yield path, f"unknown key '{resource}'; did you mean '{ours}'?"
            elif not resource or resource in ("memory", "object_store_memory"):
                yield (
                    path,
                    f"'{resource}' is not a resource that a learner can ask for; wanted: cpus, gpus, or a custom one",
                )
            elif amount < _UNIT:
                yield path, f"{amount:g} is not an amount of at least {_UNIT:g}; remove the key to ask for none"
            elif resource != "cpus" and amount > 1 and not amount.is_integer():
                yield path, f"{amount:g} is not whole; above 1 only whole amounts can be had, as {amount // 1:g}"


def _schedules(topology: Topology, faulty: Set[str]) -> Iterator[Finding]:
    for name, learner in topology.learners.items():
        key = "optimizer" if isinstance(learner, Mach) else "update"
        warmup = getattr(learner, key).warmup
        if sound(faulty, name, key, "steps") and warmup > learner.steps:
            message = f"{warmup} is more than the learner's {learner.steps} steps"
            yield f"learners.{name}.{key}.warmup", f"{message}; the rate would never be reached"


def _shards(topology: Topology, faulty: Set[str]) -> Iterator[Finding]:
    if faulty.isdisjoint(("data", "learners")) and topology.data.shard == "by_learner" and len(topology.members) == 1:
        yield "data.shard", "by_learner divides the rows among the learners, and there is one; write none"


def _exchanges(topology: Topology, faulty: Set[str]) -> Iterator[Finding]:
    for name, learner in topology.machs.items():
        if not sound(faulty, name, "exchange"):
            continue
        exchange, path = learner.exchange, f"learners.{name}.exchange"
        if exchange.patience > exchange.time_limit:
            limit = f"the time_limit of {exchange.time_limit:g} s, after which the answer counts as lost"
            yield f"{path}.patience", f"{exchange.patience:g} s is longer than {limit}"
        for child in topology.children_of(name):
            below = topology.machs.get(child)
            most = 2 * exchange.in_flight + 1  # for the step, in flight behind it, and as many for held-out rows
            if below is not None and sound(faulty, child, "exchange") and below.exchange.queue < most:
                room = f"the queue of '{child}', which keeps {below.exchange.queue} a parent and drops the rest"
                yield f"{path}.in_flight", f"with {exchange.in_flight}, {most} requests may be open; not in {room}"


def _workers(topology: Topology, faulty: Set[str]) -> Iterator[Finding]:
    """As far as shapes are known: what depends on others is looked at when data is read and networks are built."""
    if topology.workers:
        from topology import workers  # NumPy, which would double the time that other files take

        example, classes = (None, 0) if "data" in faulty else NAMED.get(topology.data.name, (None, 0))
        yield from workers.faults(topology, example, classes, faulty=faulty)
