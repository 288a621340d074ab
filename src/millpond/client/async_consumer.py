"""The consumer for asyncio: every call runs on a thread of its own, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from millpond.base.ids import TopicPartition
from millpond.client.consumer import Consumer, ConsumerGiven, Places
from millpond.client.message import Message

T = TypeVar("T")


class AsyncConsumer:
    """Takes the arguments of Consumer. Rebalance callbacks are plain functions and run on the consumer's thread."""

    def __init__(
        self, group: str | None = None, topics: Sequence[str] = (), **options: Unpack[ConsumerGiven]
    ) -> None:
        self._consumer = Consumer(group, topics, **options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millpond-consumer")
        self._closed = False

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Message]:
        return await self._run(self._consumer.poll, max_records, timeout_s)

    async def batches(self, max_records: int = 500, timeout_s: float = 1.0) -> AsyncIterator[list[Message]]:
        while True:
            if batch := await self.poll(max_records, timeout_s):
                yield batch

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Records, one by one, until it is closed. `commit` includes the one in hand."""
        while not self._closed:
            if message := await self._run(self._consumer.next, 0.5):
                yield message

    async def commit(
        self,
        message: Message | None = None,
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        wait: bool = True,
    ) -> None:
        await self._run(partial(self._consumer.commit, message, offsets=offsets, wait=wait))

    async def committed(self, places: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int | None]:
        return await self._run(self._consumer.committed, places)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        await self._run(self._consumer.seek, topic, partition, offset)

    async def seek_to_time(self, when: datetime | int, places: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.seek_to_time, when, places)

    async def seek_to_beginning(self, places: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.seek_to_beginning, places)

    async def seek_to_end(self, places: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.seek_to_end, places)

    async def pause(self, places: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.pause, places)

    async def resume(self, places: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.resume, places)

    async def assignment(self) -> Places:
        return await self._run(self._consumer.assignment)

    async def position(self, place: TopicPartition) -> int | None:
        return await self._run(self._consumer.position, place)

    async def lag(self) -> dict[TopicPartition, int]:
        return await self._run(self._consumer.lag)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._run(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _run(self, call: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *given))
