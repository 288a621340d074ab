"""The producer for asyncio: awaiting `send` waits for the acknowledgement, never blocks the loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Unpack

from millpond.client.errors import BufferFull
from millpond.client.message import Delivery
from millpond.client.producer import Producer, ProducerGiven, SendGiven, WhenFull

ROOM_CHECK_SECONDS = 0.005


class AsyncProducer:
    """Takes the arguments of Producer. For batches: `asyncio.gather`, or `queue` now and await later."""

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        when_full: WhenFull = "block",
        full_timeout_s: float = 60.0,
        **options: Unpack[ProducerGiven],
    ) -> None:
        self._producer = Producer(bootstrap, when_full=when_full, full_timeout_s=full_timeout_s, **options)
        self._block = when_full == "block"
        self._full_timeout_s = full_timeout_s

    async def send(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **given: Unpack[SendGiven]
    ) -> Delivery:
        """Where the record is, once it is acknowledged."""
        return await (await self.queue(topic, value, key, **given))

    async def queue(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **given: Unpack[SendGiven]
    ) -> asyncio.Future[Delivery]:
        """Wait only for room in the buffer; the future says where the record is."""
        deadline = time.monotonic() + self._full_timeout_s
        while True:
            try:
                return asyncio.wrap_future(self._producer.try_send(topic, value, key, **given))
            except BufferFull:
                if not self._block or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(ROOM_CHECK_SECONDS)

    async def flush(self, timeout_s: float = 60.0) -> None:
        await asyncio.to_thread(self._producer.flush, timeout_s)

    async def close(self, timeout_s: float = 60.0) -> None:
        await asyncio.to_thread(self._producer.close, timeout_s)

    def buffered(self) -> int:
        return self._producer.buffered()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
