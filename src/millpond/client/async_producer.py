"""The producer for asyncio: awaiting `send` waits for the acknowledgement, never blocks the loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Unpack

from millpond.client.arguments import refuse_unknown
from millpond.client.errors import BufferFull
from millpond.client.handover import Handover
from millpond.client.message import Delivery
from millpond.client.producer import SEND_NAMES, Producer, ProducerGiven, SendGiven, WhenFull

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
        self._is_traced = bool(options.get("tracing"))
        self._block = when_full == "block"
        self._full_timeout_s = full_timeout_s
        self._handovers: dict[asyncio.AbstractEventLoop, Handover] = {}
        self._latest: Handover | None = None
        """That of the loop which sent last; hardly ever is there another."""

    async def send(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **given: Unpack[SendGiven]
    ) -> Delivery:
        """Where the record is, once it is acknowledged."""
        return await (await self.queue(topic, value, key, **given))

    async def queue(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **given: Unpack[SendGiven]
    ) -> asyncio.Future[Delivery]:
        """Wait only for room in the buffer; the future says where the record is."""
        handover = self._latest
        if handover is None or handover.loop is not asyncio.get_running_loop():
            handover = self._handover()
        # Who comes now must not overtake those who wait for room.
        if not handover.waiting:
            try:
                return self._put(handover, topic, value, key, given)
            except BufferFull:
                if not self._block:
                    raise
        deadline = time.monotonic() + self._full_timeout_s
        handover.waiting += 1
        try:
            async with handover.room:
                while True:
                    try:
                        return self._put(handover, topic, value, key, given)
                    except BufferFull:
                        if time.monotonic() > deadline:
                            raise
                    await asyncio.sleep(ROOM_CHECK_SECONDS)
        finally:
            handover.waiting -= 1

    async def flush(self, timeout_s: float = 60.0) -> None:
        try:
            await asyncio.to_thread(self._producer.flush, timeout_s)
        finally:
            self._handover().settle()

    async def close(self, timeout_s: float = 60.0) -> None:
        try:
            await asyncio.to_thread(self._producer.close, timeout_s)
        finally:
            self._handover().settle()

    def buffered(self) -> int:
        return self._producer.buffered()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def _put(
        self, handover: Handover, topic: str, value: Any, key: str | bytes | None, given: SendGiven
    ) -> asyncio.Future[Delivery]:
        if self._is_traced:
            return asyncio.wrap_future(self._producer.try_send(topic, value, key, **given))
        if not given:
            return self._producer.put(handover.expect, False, topic, value, key).future
        try:
            return self._producer.put(handover.expect, False, topic, value, key, **given).future
        except TypeError:
            refuse_unknown(given, SEND_NAMES, "send")
            raise

    def _handover(self) -> Handover:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._handovers.get(loop)
        if found is None:
            self._handovers = {each: to for each, to in self._handovers.items() if not each.is_closed()}
            found = self._handovers[loop] = Handover(loop)
        self._latest = found
        return found
