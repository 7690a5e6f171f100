"""Refuses a user's own `learners.py`, `actors/` ... that would be imported in place of ours.

Ray's workers look for modules in the driver's working directory first, before any installed package, although the
console script in the same directory imports the right ones. So the question is asked twice: of the directory before
anything starts (`in_directory`), and of a worker on every host once Ray is up (`on_hosts`).
A checkout of the project passes as the working directory where it is the copy that this process runs.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.machinery import ModuleSpec, PathFinder
from typing import Optional

ROOMS = ("actors", "analysis", "learners", "topology")

# room -> the file or folder it is imported from, and the one of the installed distribution; None where there is none
Survey = Mapping[str, tuple[Optional[str], Optional[str]]]


def in_directory(directory: str) -> list[str]:
    """One complaint, in words, for each room that a Ray worker started from `directory` would take from elsewhere."""
    found = {room: _place(PathFinder.find_spec(room, [directory, *sys.path])) for room in ROOMS}
    return complaints({room: (place, None) for room, place in found.items() if place}, _own())


def on_hosts(timeout: timedelta) -> list[str]:
    """The same for a worker on each living host of the cluster that Ray is connected to; at most `timeout` in all.

    A host that does not answer in time is a complaint too.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(surveyor())
    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[ask.options(scheduling_strategy=there).remote(ROOMS)] = node["NodeManagerHostname"]
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout.total_seconds())
    said = [f"host {asked[ref]}: no worker answered within {timeout.total_seconds():g} s" for ref in late]
    for ref in ready:
        try:
            said += complaints(ray.get(ref), _own(), host=asked[ref])
        except ray.exceptions.RayError as error:
            said.append(f"host {asked[ref]}: a worker there could not say where it imports machworks from: {error}")
    return said


def surveyor() -> Callable[[Sequence[str]], Survey]:
    """A function that says where its process imports the rooms from.

    Ray sends a function by value only where a worker could not import it by name, hence one made here: a worker that
    would import the wrong `topology` can still run it. It names nothing outside itself but the standard library.
    """

    def survey(rooms):  # no annotations: they would travel with it
        import importlib.metadata
        import importlib.util
        import json
        from urllib.parse import unquote, urlsplit

        root = None
        try:
            distribution = importlib.metadata.distribution("machworks")
            direct = json.loads(distribution.read_text("direct_url.json") or "{}")
            editable = direct.get("dir_info", {}).get("editable")
            root = unquote(urlsplit(direct["url"]).path) if editable else str(distribution.locate_file(""))
        except importlib.metadata.PackageNotFoundError:
            pass
        found = {}
        for room in rooms:
            spec = importlib.util.find_spec(room)
            if spec is None:
                place = None
            elif spec.submodule_search_locations:
                place = next(iter(spec.submodule_search_locations))
            else:
                place = spec.origin
            found[room] = (place, root and root.rstrip("/") + "/" + room)
        return found

    return survey


def complaints(survey: Survey, own: Mapping[str, str], host: Optional[str] = None) -> list[str]:
    """What is wrong with `survey`: each room must come from `own[room]`, or from its host's installed distribution.

    Pure but for following symbolic links. `host` stands at the head of each complaint where given.
    """
    said = []
    at = f"host {host}: " if host else ""
    for room, (place, installed) in survey.items():
        if place is None:
            said.append(f"{at}machworks' package '{room}' is not there; install the same machworks on every host")
        elif not any(good and _same(place, good) for good in (own[room], installed)):
            said.append(
                f"{at}{place} shadows machworks' own package '{room}' ({own[room]}) in Ray's workers; "
                "rename it, or start from another directory"
            )
    return said


def _own() -> dict[str, str]:
    """The folders of this process's rooms: the neighbours of the one that this file lies in."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {room: os.path.join(root, room) for room in ROOMS}


def _place(spec: Optional[ModuleSpec]) -> Optional[str]:
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations)) if spec.submodule_search_locations else spec.origin


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
