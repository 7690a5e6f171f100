"""Messages over Ray actor calls: small arrays in the call, large ones by reference through the object store.

Consumes: messages and the handles of neighbours. Produces: calls of their `receive`.
Waits for: sending never waits; unpacking waits for a referenced array, at most the time limit.
`Transport` carries the messages of a chain, `Ways` the parcels of a group.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray

from learners.footprint import inline
from learners.messages import Answer, Ask, Features, Gradient, Message
from learners.options import Precision
from learners.wire import decoded, encoded


class Transport:
    """One learner's way to its neighbours, counting bytes of arrays by way and direction."""

    def __init__(self, time_limit: float, precision: Precision = "float32") -> None:
        self._handles: dict[str, Any] = {}
        self._time_limit, self._precision = time_limit, precision
        #: "sent inline", "sent store", "received inline", "received store": bytes
        self.bytes: Counter[str] = Counter()

    def connect(self, handles: Mapping[str, Any]) -> None:
        """Learn, or learn anew, where neighbours are."""
        self._handles.update(handles)

    def send(self, to: str, messages: tuple[Message, ...]) -> None:
        """One call for all messages; its outcome is not looked at, because time limits notice what gets lost."""
        self._handles[to].receive.remote(*[self._packed(message) for message in messages])

    def unpack(self, message: Message) -> Message:
        """The message with its arrays; raises ray.exceptions.GetTimeoutError or RayError if they can't be had."""
        fields = {}
        for name, value in _arrays(message).items():
            way = "received store" if isinstance(value, ray.ObjectRef) else "received inline"
            array = ray.get(value, timeout=self._time_limit) if isinstance(value, ray.ObjectRef) else value
            self.bytes[way] += array.nbytes
            if isinstance(message, (Answer, Gradient)) and name != "batch":
                array = decoded(array, message.scale)
            fields[name] = array
        return _with_arrays(message, fields)

    def _packed(self, message: Message) -> Message:
        fields: dict[str, Any] = {}
        arrays = _arrays(message)
        for name in arrays.keys() - {"batch"}:
            arrays[name], fields["scale"] = encoded(arrays[name], self._precision)
        kept = inline([array.nbytes for array in arrays.values()])
        for (name, array), within in zip(arrays.items(), kept, strict=True):
            self.bytes["sent inline" if within else "sent store"] += array.nbytes
            fields[name] = array if within else ray.put(array)
        return _with_arrays(message, fields)


CALLS = 16
"""Calls to one neighbour that may be under way: beyond them it is frozen or cut off, and Ray would keep all of them."""


class Ways:
    """One member's way to its neighbours in a group: bytes, by calls whose outcome is not looked at."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Any, deque[ray.ObjectRef]]] = {}

    def open(self, node: int, handle: Any) -> None:
        """Learn, or learn anew, where a neighbour is."""
        self._open[node] = (handle, deque())

    def send(self, node: int, content: bytes) -> bool:
        """Whether a call has left; else the parcel is lost, which clocks find out."""
        if node not in self._open:
            return False
        handle, calls = self._open[node]
        if len(calls) >= CALLS:
            done, left = ray.wait(list(calls), num_returns=len(calls), timeout=0)
            if not done:
                return False
            calls.clear()
            calls.extend(left)
        calls.append(handle.receive.remote(content))
        return True


def _arrays(message: Message) -> dict[str, Any]:
    """The arrays of a message, or the references that stand for them."""
    found: dict[str, Any] = {}
    if isinstance(message, Answer):
        found["embedding"] = message.embedding
    if isinstance(message, Gradient):
        found["gradient"] = message.gradient
    if isinstance(message, (Ask, Gradient)):
        batch = message.batch
        found["batch"] = batch.values if isinstance(batch, Features) else batch.numbers
    return found


def _with_arrays(message: Message, fields: Mapping[str, Any]) -> Message:
    fields = dict(fields)
    if isinstance(message, (Ask, Gradient)):
        batch, array = message.batch, fields.pop("batch")
        fields["batch"] = replace(batch, **{"values" if isinstance(batch, Features) else "numbers": array})
    return replace(message, **fields) if fields else message
