"""Pass delivery reports from the thread that reads them to the event loop that waits for them, many at a time.

Waking a loop from another thread costs more than everything else done for a record. So outcomes go into a queue, and
the loop is woken only if no wake-up is pending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from millpond.client.errors import SendFailed
from millpond.client.message import Delivery
from millpond.client.pending_reports import Location, PendingReports, delivery, failure

RESOLVED_MAX: Final = 1_000
"""Futures resolved per iteration of the loop, which has other work too."""


class Handover:
    """For one loop. Any thread may call `put`; the rest belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.room = asyncio.Lock()
        """Held by the task that waits for room in the buffer; further tasks queue behind it in order."""
        self.waiting = 0
        """How many tasks wait. The lock does not show it: it is free while the next task is being woken."""
        self._arrived: deque[AsyncSendFuture] = deque()
        self._is_called = False

    def future_for(self, topic: str, pending_reports: PendingReports) -> AsyncSendFuture:
        future = AsyncSendFuture(loop=self.loop)
        future._topic = topic
        future._pending_reports = pending_reports
        future._handover = self
        return future

    def put(self, future: AsyncSendFuture) -> None:
        self._arrived.append(future)
        # The loop clears the flag before it reads the queue, so nothing stays there unnoticed.
        if self._is_called:
            return
        self._is_called = True
        try:
            self.loop.call_soon_threadsafe(self._resolve_some)
        except RuntimeError:
            # The loop is closed, and its waiters are gone.
            self._arrived.clear()
            self._is_called = False

    def resolve(self, most: int | None = None) -> None:
        """Resolve the futures whose outcome has arrived, oldest first."""
        arrived = self._arrived
        for _ in range(len(arrived) if most is None else min(len(arrived), most)):
            arrived.popleft().resolve()

    def _resolve_some(self) -> None:
        self._is_called = False
        self.resolve(RESOLVED_MAX)
        if self._arrived and not self._is_called:
            self._is_called = True
            self.loop.call_soon(self._resolve_some)


class AsyncSendFuture(asyncio.Future[Delivery]):
    """The future of a sent record in an event loop. librdkafka calls it with the delivery report, on any thread.

    It is also its own callback, because the garbage collector traverses every object in flight.
    """

    __slots__ = ("_handover", "_outcome", "_pending_reports", "_topic")

    _handover: Handover
    _outcome: Location | SendFailed
    _topic: str
    _pending_reports: PendingReports

    def __call__(self, error: KafkaError | None, message: RawMessage) -> None:
        if error is None:
            self._outcome = message.partition(), message.offset(), message.timestamp()[1]
        else:
            self._outcome = failure(self._topic, error)
        self._handover.put(self)
        pending_reports = self._pending_reports
        # Only now: a flush reads the queue once no record is pending.
        pending_reports.records.discard(self)
        if pending_reports.should_yield:
            pending_reports.yield_reports()

    def resolve(self) -> None:
        if self.done():
            return  # It was cancelled.
        if isinstance(self._outcome, tuple):
            self.set_result(delivery(self._topic, self._outcome))
        else:
            self.set_exception(self._outcome)
