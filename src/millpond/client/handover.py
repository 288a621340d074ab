"""From the thread that hears what became of records to the event loop that waits for it: many at a time.

Waking a loop from another thread costs more than all the rest of a record. So outcomes are put into a queue, and the
loop is called only when it has not been called already; then it takes what is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from millpond.client.errors import SendFailed
from millpond.client.message import Delivery
from millpond.client.unreported import Unreported, Where, delivery, failure

SETTLED_MAX: Final = 1_000
"""In one go: a loop has others to run, too."""


class Handover:
    """To one loop. `put` is for any thread, the rest is for the loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.room = asyncio.Lock()
        """Held by who waits for room in the buffer; the others wait behind it, in their order."""
        self.waiting = 0
        """How many those are. The lock alone does not tell: it is free while the next in line is being woken."""
        self._arrived: deque[Awaited] = deque()
        self._is_called = False

    def expect(self, topic: str, unreported: Unreported) -> Awaited:
        awaited = Awaited(loop=self.loop)
        awaited._topic = topic
        awaited._unreported = unreported
        awaited._handover = self
        return awaited

    def put(self, awaited: Awaited) -> None:
        self._arrived.append(awaited)
        # The loop takes this back before it looks at the queue, so that nothing stays there unseen.
        if self._is_called:
            return
        self._is_called = True
        try:
            self.loop.call_soon_threadsafe(self._settle_some)
        except RuntimeError:
            # The loop is closed, and whoever waited in it has gone.
            self._arrived.clear()
            self._is_called = False

    def settle(self, most: int | None = None) -> None:
        """Tell those who wait, the first first."""
        arrived = self._arrived
        for _ in range(len(arrived) if most is None else min(len(arrived), most)):
            arrived.popleft().settle()

    def _settle_some(self) -> None:
        self._is_called = False
        self.settle(SETTLED_MAX)
        if self._arrived and not self._is_called:
            self._is_called = True
            self.loop.call_soon(self._settle_some)


class Awaited(asyncio.Future[Delivery]):
    """The future of a record in a loop. librdkafka calls it with its report, on any thread.

    One object for all of that, made by `Handover.expect`: the garbage collector looks at each that is under way.
    """

    __slots__ = ("_handover", "_outcome", "_topic", "_unreported")

    _handover: Handover
    _outcome: Where | SendFailed
    _topic: str
    _unreported: Unreported

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        if error is None:
            self._outcome = message.partition(), message.offset(), message.timestamp()[1]
        else:
            self._outcome = failure(self._topic, error)
        self._handover.put(self)
        unreported = self._unreported
        # After that: who flushes looks into the queue when nothing is left here.
        unreported.records.discard(self)
        if unreported.is_wanted_back:
            unreported.step_back()

    def settle(self) -> None:
        if self.done():
            return  # It was cancelled.
        if isinstance(self._outcome, tuple):
            self.set_result(delivery(self._topic, self._outcome))
        else:
            self.set_exception(self._outcome)
