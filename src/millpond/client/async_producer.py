"""The producer for asyncio: awaiting `send` waits for the acknowledgement without blocking the loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Unpack

from confluent_kafka import KafkaException

from millpond.client.arguments import refuse_unknown
from millpond.client.errors import BufferFull
from millpond.client.handover import Handover
from millpond.client.message import Delivery
from millpond.client.producer import SEND_NAMES, TEXT_OR_BYTES, Producer, ProducerKwargs, SendKwargs, WhenFull
from millpond.client.send_future import SendFuture

ROOM_CHECK_SECONDS = 0.005


class AsyncProducer:
    """Takes the arguments of Producer. For batches: `asyncio.gather`, or `queue` now and await later."""

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        when_full: WhenFull = "block",
        full_timeout_s: float = 60.0,
        **options: Unpack[ProducerKwargs],
    ) -> None:
        self._producer = Producer(bootstrap, when_full=when_full, full_timeout_s=full_timeout_s, **options)
        self._is_traced = bool(options.get("tracing"))
        self._block = when_full == "block"
        self._full_timeout_s = full_timeout_s
        self._handovers: dict[asyncio.AbstractEventLoop, Handover] = {}
        self._latest: Handover | None = None
        """The handover of the loop that sent last; programs rarely have another."""

    async def send(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **options: Unpack[SendKwargs]
    ) -> Delivery:
        """Wait for the acknowledgement."""
        return await (await self.queue(topic, value, key, **options))

    async def queue(
        self, topic: str, value: Any = None, key: str | bytes | None = None, **options: Unpack[SendKwargs]
    ) -> asyncio.Future[Delivery]:
        """Wait only for room in the buffer; the future is the acknowledgement."""
        handover = self._latest
        if handover is None or handover.loop is not asyncio.get_running_loop():
            handover = self._handover()
        # A new record must not overtake those waiting for room.
        if not handover.waiting:
            plain = self._producer.plain
            if plain is not None and not options and type(value) is bytes and type(topic) is str and topic:
                try:
                    if key is None or isinstance(key, TEXT_OR_BYTES):
                        future = handover.future_for(topic, plain.pending_reports)
                        plain.produce(future, topic, value, key)
                        return future
                except (BufferError, KafkaException, ValueError):
                    plain = None  # `put` reports the error.
            try:
                return self._put(handover, topic, value, key, options, is_last_try=not self._block)
            except BufferFull:
                if not self._block:
                    raise
        deadline = time.monotonic() + self._full_timeout_s
        handover.waiting += 1
        try:
            async with handover.room:
                while True:
                    is_last_try = time.monotonic() > deadline
                    try:
                        return self._put(handover, topic, value, key, options, is_last_try=is_last_try)
                    except BufferFull:
                        if is_last_try:
                            raise
                    await asyncio.sleep(ROOM_CHECK_SECONDS)
        finally:
            handover.waiting -= 1

    async def flush(self, timeout_s: float = 60.0) -> None:
        try:
            await asyncio.to_thread(self._producer.flush, timeout_s)
        finally:
            self._handover().resolve()

    async def close(self, timeout_s: float = 60.0) -> None:
        try:
            await asyncio.to_thread(self._producer.close, timeout_s)
        finally:
            self._handover().resolve()

    def buffered(self) -> int:
        return self._producer.buffered()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def _put(
        self,
        handover: Handover,
        topic: str,
        value: Any,
        key: str | bytes | None,
        options: SendKwargs,
        *,
        is_last_try: bool,
    ) -> asyncio.Future[Delivery]:
        put = self._producer.put
        try:
            if self._is_traced:
                return asyncio.wrap_future(
                    put(SendFuture, False, topic, value, key, is_last_try=is_last_try, **options)
                )
            return put(handover.future_for, False, topic, value, key, **options)
        except TypeError:
            refuse_unknown(options, SEND_NAMES, "send")
            raise

    def _handover(self) -> Handover:
        """The handover of the running loop."""
        loop = asyncio.get_running_loop()
        handover = self._handovers.get(loop)
        if handover is None:
            self._handovers = {each: to for each, to in self._handovers.items() if not each.is_closed()}
            handover = self._handovers[loop] = Handover(loop)
        self._latest = handover
        return handover
