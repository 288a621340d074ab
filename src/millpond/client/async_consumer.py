"""The consumer for asyncio: calls run one at a time on a background thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from millpond.base.ids import TopicPartition
from millpond.client.call_thread import CallThread
from millpond.client.consumer import Consumer, ConsumerKwargs, Partitions
from millpond.client.message import Message

T = TypeVar("T")

NEXT_SECONDS = 0.5


class AsyncConsumer:
    """Takes the arguments of Consumer. Rebalance callbacks are plain functions and run on the consumer's thread."""

    def __init__(
        self, group: str | None = None, topics: Sequence[str] = (), **options: Unpack[ConsumerKwargs]
    ) -> None:
        self._consumer = Consumer(group, topics, **options)
        self._thread = CallThread("millpond-consumer")
        self._closed = False
        self._failure: BaseException | None = None
        """What a call raised after its caller was cancelled; the next caller gets it."""
        self._ahead: list[Message] = []
        """The consumer's next records, for the iteration; valid until the next call on the thread."""
        self._handed = 0
        """How many of those were handed out."""
        self._handed_before: deque[int] = deque()
        """The same counts for earlier lists; the next call on the thread applies them."""
        self._fresh_until = 0.0
        self._calls = 0

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Message]:
        return await self._call_undoable(
            partial(self._consumer.poll, max_records, timeout_s), self._consumer.put_back
        )

    async def batches(self, max_records: int = 500, timeout_s: float = 1.0) -> AsyncIterator[list[Message]]:
        while True:
            if batch := await self.poll(max_records, timeout_s):
                yield batch

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Records one by one until closed. `commit` includes the current one."""
        while not self._closed:
            if self._handed < len(self._ahead) and time.monotonic() < self._fresh_until:
                self._handed += 1
                yield self._ahead[self._handed - 1]
            elif not await self._look_ahead() and not self._closed:
                # Other tasks call concurrently and may have taken the records seen ahead.
                for message in await self._call_undoable(self._next, self._consumer.put_back):
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
        if self._consumer.is_from_parent:
            return
        await self._run(self._consumer.close)
        self._thread.close()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def _next(self) -> list[Message]:
        message = self._consumer.next(NEXT_SECONDS)
        return [] if message is None else [message]

    async def _look_ahead(self) -> bool:
        """Peek at the next records, so that not every record needs a call on the thread.

        False if another task made a call meanwhile, which may have taken them.
        """
        peek = self._call_undoable(self._peek, lambda _: None)
        calls = self._calls + 1
        ahead, fresh_until = await peek
        if self._calls != calls:
            return False
        self._ahead, self._fresh_until = ahead, fresh_until
        return True

    def _peek(self) -> tuple[list[Message], float]:
        return self._consumer.look_ahead(NEXT_SECONDS), self._consumer.fresh_until

    async def _call_undoable(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Call on the thread; if the awaiting task is cancelled meanwhile, undo the result."""
        taking = self._submit(self._raise_or_call, call)
        try:
            return await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            if not taking.cancel() and not self._closed:
                self._submit(self._give_back, taking, undo)
            raise

    def _raise_or_call(self, call: Callable[[], T]) -> T:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return call()

    def _give_back(self, taking: Future[T], undo: Callable[[T], None]) -> None:
        self._failure = taking.exception()
        if self._failure is None:
            undo(taking.result())

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.wrap_future(self._submit(call, *arguments))

    def _submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call on the consumer's thread, after it has applied what was handed out from the records seen ahead."""
        self._consumer.check_process()
        if self._handed:
            self._handed_before.append(self._handed)
        self._calls += 1
        self._ahead, self._handed = [], 0
        return self._thread.submit(self._call_after_handouts, call, *arguments)

    def _call_after_handouts(self, call: Callable[..., T], *arguments: Any) -> T:
        while self._handed_before:
            self._consumer.hand_out(self._handed_before.popleft())
        return call(*arguments)
