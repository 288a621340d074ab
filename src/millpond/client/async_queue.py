"""The queue for asyncio: it receives on a background thread, and acknowledges without one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from millpond.client.arguments import named_arguments
from millpond.client.async_producer import AsyncProducer
from millpond.client.call_thread import CallThread
from millpond.client.checks import check_callable, check_choice, check_duration, check_seconds, check_topic
from millpond.client.message import Delivery, HeadersLike
from millpond.client.payloads import Serializer, encode
from millpond.client.queue import HeldMessage, QueueFrom, QueueMember, check_group
from millpond.client.queue_headers import Delay
from millpond.remote.shares.held_record import Verdict

TURN_SECONDS: Final = 0.5


@dataclass(slots=True, frozen=True, eq=False)
class AsyncQueueMessage(HeldMessage):
    """A record of a queue, until it is acknowledged. LockExpired if that comes too late."""

    async def ack(self) -> None:
        """The work is done: nobody receives the record again."""
        await asyncio.wrap_future(self._settle(Verdict.ACCEPT))

    async def release(self, delay: Delay = 0) -> None:
        """Give it back: it is delivered again, after the delay."""
        await asyncio.wrap_future(self._settle(Verdict.RELEASE, delay=delay))

    async def reject(self, error: BaseException | str | None = None) -> None:
        """Give it up: nobody receives it again. It goes to the group's dead-letter topic, if there is one."""
        await asyncio.wrap_future(self._settle(Verdict.REJECT, error=error))

    async def renew(self) -> None:
        """Hold it for as long as when it was received, from now on."""
        await asyncio.wrap_future(self._settle(Verdict.RENEW))


class AsyncQueue:
    """Takes the arguments of Queue. A cancelled `receive` loses nothing: its messages come from the next call."""

    @named_arguments("AsyncQueue")
    def __init__(
        self,
        topic: str,
        group: str | None = None,
        *,
        bootstrap: str | None = None,
        from_: QueueFrom = "earliest",
        serializer: Serializer = encode,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = check_topic(topic)
        self.group = check_group(group)
        check_choice(from_, "from_", ("earliest", "latest"))
        check_callable(serializer, "serializer")
        self._producer = AsyncProducer(bootstrap, linger_ms=0, serializer=serializer, settings=settings)
        self._member = QueueMember(topic, group, from_, bootstrap, settings)
        self._thread = CallThread("millpond-queue")

    async def send(
        self,
        value: Any = None,
        *,
        key: str | bytes | None = None,
        headers: HeadersLike = (),
        delay: Delay | None = None,
        at: datetime | int | None = None,
        priority: int | None = None,
    ) -> Delivery:
        """Send a job and wait until it is acknowledged."""
        return await self._producer.send(
            self.topic, value, key, headers=headers, delay=delay, at=at, priority=priority
        )

    async def receive(self, max: int = 1, timeout: float = 20.0) -> list[AsyncQueueMessage]:
        """Wait up to `timeout` seconds for a job, then return up to `max` that are available."""
        deadline = time.monotonic() + check_seconds(timeout, "timeout")
        while True:
            left_s = deadline - time.monotonic()
            # In turns, so that neither another task nor a cancelled one holds the thread for long.
            messages = await self._receive_for(max, min(left_s, TURN_SECONDS))
            if messages or left_s <= TURN_SECONDS:
                return messages

    async def _receive_for(self, most: int, timeout_s: float) -> list[AsyncQueueMessage]:
        taking = self._thread.submit(self._member.receive, AsyncQueueMessage, most, timeout_s)
        try:
            return await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            if not taking.cancel():
                taking.add_done_callback(self._put_back)
            raise

    def _put_back(self, taking: Future[list[AsyncQueueMessage]]) -> None:
        if taking.exception() is None:
            self._member.put_back(taking.result())

    async def close(self, timeout_s: float = 10.0) -> None:
        """Send what is left, release what was received and not acknowledged, and leave the group. Idempotent."""
        check_duration(timeout_s, "timeout_s")
        try:
            await self._producer.close(timeout_s)
        finally:
            await asyncio.to_thread(self._member.close, timeout_s)
            self._thread.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
