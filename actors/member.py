"""What every member of a group is, worker or relay: an inbox, the rules, and ways to its neighbours.

Consumes: parcels as bytes (`receive`), events (`note`, `open`). Produces: parcels, by the function it is given.
Waits for: something in the inbox, until a moment that its caller gives (`came`); never for a neighbour.
Unblocked by: a parcel, an event, that moment. What an instruction means to a worker or to a relay is theirs to do.

Ray calls `receive`, `note`, `open`, `standing` in one thread; everything else belongs to the thread of the loop.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Optional, Protocol, Union

from actors.common import Standing
from learners.group import parcels
from learners.group.events import Accuse, Arrived, Discard, Event, Gone, Holding, Instruction, Opened, Send, Tick, Wait
from learners.group.parcels import Whose
from learners.group.rules import Group
from learners.rbd.clocks import Clock, Taken

RELAY = -1
"""Number of the relay on the driver's host, which keeps the log."""


WAYS = ("sent", "received", "sent payload", "received payload")
"""What bytes are counted by."""


class Discarded(RuntimeError):
    """This member holds what its group does not: it must rejoin as another incarnation."""


class Neighbours(Protocol):
    """Ways to them; see `actors.transport.Ways`."""

    def open(self, node: int, handle: Any) -> None:
        """Learn where one is."""

    def send(self, node: int, content: bytes) -> bool:
        """Whether it has left."""


class Member:
    """One member; `begin` gives it its rules, once it knows what it starts from.

    Args:
        digest: of the group, 8 bytes.
        ways: to neighbours.
        perform: does what is neither sent nor noted here; what it gives is handled next.
        clock: seconds.
    """

    def __init__(
        self,
        ways: Neighbours,
        perform: Callable[[Instruction], Iterable[Event]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ways, self._perform, self._clock = ways, perform, clock
        self._inbox: SimpleQueue[Union[bytes, Event]] = SimpleQueue()
        self._group: Optional[Group] = None
        self._digest = b""
        self._holding: dict[Whose, Taken] = {}
        self._accused: list[tuple[Whose, str]] = []
        self.until = 0.0  #: when something is due although nothing comes
        #: bytes by way: sent, received, with headers; "sent payload", "received payload" without
        self.bytes: Counter[str] = Counter(dict.fromkeys(WAYS, 0))
        self.unreadable = 0  #: parcels that could not be read
        self.undelivered = 0  #: parcels that could not leave

    # -- in the second thread

    def receive(self, content: bytes) -> None:
        """A neighbour's parcel."""
        self._inbox.put(content)

    def note(self, event: Event) -> None:
        """Something else that has happened."""
        self._inbox.put(event)

    def open(self, node: int, incarnation: int, handle: Any) -> None:
        """The supervisor says where a neighbour is, and as which incarnation."""
        self._ways.open(node, handle)
        self._inbox.put(Opened(node, incarnation, self._clock()))

    def gone(self, node: int) -> None:
        """The supervisor says that nothing reaches it now."""
        self._inbox.put(Gone(node, self._clock()))

    def standing(self, *, done: bool = False, fault: str = "") -> Standing:
        """What is to be said with a sign of life."""
        accused, self._accused = tuple(self._accused), []
        clock = self._group.clock if self._group else Clock()
        return Standing(clock, dict(self._holding), accused, done, fault)

    # -- in the loop

    def begin(self, group: Group, digest: bytes) -> None:
        """From here on what comes is handled."""
        self._group, self._digest = group, digest

    @property
    def group(self) -> Group:
        """The rules."""
        assert self._group is not None, "a member has begun"
        return self._group

    def came(self, until: float = 0.0) -> list[Event]:
        """All that has come; waits for the first until that moment. The only place that waits."""
        found: list[Union[bytes, Event]] = []
        try:
            left = until - self._clock()
            found.append(self._inbox.get(timeout=left) if left > 0 else self._inbox.get_nowait())
            while True:
                found.append(self._inbox.get_nowait())
        except Empty:
            return [event for one in found for event in self._read(one)]

    def handle(self, *events: Event) -> None:
        """Take in what happened, and do what is to be done about it, in order.

        Raises:
            Discarded: this member must rejoin.
        """
        while events:
            more: list[Event] = []
            for said in self.group.handle(*events):
                more += self._do(said)
            events = tuple(more)

    def tick(self) -> Tick:
        """Time has passed."""
        return Tick(self._clock())

    def _read(self, one: Union[bytes, Event]) -> list[Event]:
        if not isinstance(one, bytes):
            return [one]
        self.bytes["received"] += len(one)
        try:
            parcel = parcels.decode(one, self._digest)
        except ValueError:  # clocks find out what was in it
            self.unreadable += 1
            return []
        self.bytes["received payload"] += parcel.payload
        return [Arrived(parcel, self._clock())]

    def _do(self, said: Instruction) -> Iterable[Event]:
        if isinstance(said, Send):
            content = parcels.encode(said.parcel, self._digest)
            if self._ways.send(said.to, content):
                self.bytes["sent"] += len(content)
                self.bytes["sent payload"] += said.parcel.payload
            else:
                self.undelivered += 1
        elif isinstance(said, Wait):
            self.until = said.until
        elif isinstance(said, Holding):
            self._holding[said.whose] = said.taken
        elif isinstance(said, Accuse):
            self._accused.append((said.whose, said.reason))
        elif isinstance(said, Discard):
            raise Discarded(said.reason)
        else:
            return self._perform(said)
        return ()
