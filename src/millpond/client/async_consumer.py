"""The consumer for asyncio: every call runs on a thread of its own, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from millpond.base.ids import TopicPartition
from millpond.client.consumer import Consumer, ConsumerGiven, Partitions
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
        self._failure: BaseException | None = None
        """What a call raised whose caller was cancelled; it is for the next who asks."""

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Message]:
        return await self._records(partial(self._consumer.poll, max_records, timeout_s))

    async def batches(self, max_records: int = 500, timeout_s: float = 1.0) -> AsyncIterator[list[Message]]:
        while True:
            if batch := await self.poll(max_records, timeout_s):
                yield batch

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Records, one by one, until it is closed. `commit` includes the one in hand."""
        while not self._closed:
            for message in await self._records(self._next):
                yield message

    async def commit(
        self,
        message: Message | None = None,
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        wait: bool = True,
    ) -> None:
        await self._run(partial(self._consumer.commit, message, offsets=offsets, wait=wait))

    async def committed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int | None]:
        return await self._run(self._consumer.committed, partitions)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        await self._run(self._consumer.seek, topic, partition, offset)

    async def seek_to_time(self, when: datetime | int, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.seek_to_time, when, partitions)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.seek_to_beginning, partitions)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.seek_to_end, partitions)

    async def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.pause, partitions)

    async def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._run(self._consumer.resume, partitions)

    async def assignment(self) -> Partitions:
        return await self._run(self._consumer.assignment)

    async def position(self, partition: TopicPartition) -> int | None:
        return await self._run(self._consumer.position, partition)

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

    def _next(self) -> list[Message]:
        message = self._consumer.next(0.5)
        return [] if message is None else [message]

    async def _records(self, call: Callable[[], list[Message]]) -> list[Message]:
        """Records for whoever awaits them; when that is cancelled meanwhile, they are for the next who asks."""
        taking = self._thread.submit(self._heard, call)
        try:
            return await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            if not taking.cancel() and not self._closed:
                self._thread.submit(self._give_back, taking)
            raise

    def _heard(self, call: Callable[[], list[Message]]) -> list[Message]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return call()

    def _give_back(self, taking: Future[list[Message]]) -> None:
        self._failure = taking.exception()
        if self._failure is None:
            self._consumer.put_back(taking.result())

    async def _run(self, call: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *given))
