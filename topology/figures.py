"""The recorder, as the supervisor sees it: the newest figures, and whether they can be written."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from learners.options import Topology
from topology.outcome import words

LOOK_SECONDS = 2.0

Live = Mapping[str, Mapping[str, float]]
"""Newest value of every figure, per learner."""


class Fault:
    """Tells when something begins to fail, and when it has ceased.

    Args:
        begins: said then, with the fault in it.
        ceases: said then.
    """

    def __init__(self, tell: Callable[[str], None], begins: str, ceases: str) -> None:
        self._tell, self._begins, self._ceases, self._failing = tell, begins, ceases, False

    def note(self, fault: str) -> None:
        """Take the newest fault, or "" for none."""
        if fault and not self._failing:
            self._tell(self._begins.format(fault))
        if self._failing and not fault:
            self._tell(self._ceases)
        self._failing = bool(fault)


class Figures:
    """The newest figures of a run.

    Args:
        recorder: its handle.
    """

    def __init__(self, ray: Any, recorder: Any, tell: Callable[[str], None]) -> None:
        self._ray, self._recorder = ray, recorder
        self._fault = Fault(
            tell,
            "records can't be written: {}; training goes on, and records wait in the learners",
            "records are written again",
        )
        self.latest: Live = {}
        self._heard: dict[str, dict[str, float]] = {}

    def hear(self, learner: str, bytes_: Mapping[str, int]) -> None:
        """What a learner says itself that it has sent and received: who only answers writes no records."""
        self._heard[learner] = {f"bytes/{way.replace(' ', '_')}": float(size) for way, size in bytes_.items()}

    def look(self) -> None:
        """Ask the recorder for the newest figures, and tell when it begins or ceases to fail."""
        try:
            look = self._ray.get(self._recorder.look.remote(), timeout=LOOK_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            return  # a slow disk, or a busy host
        except self._ray.exceptions.RayError as error:  # Ray starts it again
            self._fault.note(f"the recorder: {words(error)}")
            return
        self.latest = {name: {**seen, **self._heard.get(name, {})} for name, seen in look.latest.items()}
        self._fault.note(look.fault)

    def describe(self, topology: Topology) -> Any:
        """Have the recorder write what is known before the first step; returns a reference to wait for."""
        from topology import draw, parse

        flat = {name: _flat(msgspec.to_builtins(value)) for name, value in topology.members.items()}
        laws = bool(topology.mechanics.every)
        return self._recorder.describe.remote(draw.picture(topology), flat, parse.resolved(topology), laws)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options as one level, for TensorBoard's hyper-parameters."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
    return flat
