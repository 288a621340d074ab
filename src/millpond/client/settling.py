"""Making the outcome of a record last: what it wants sent, and the group's position. One way for each delivery.

`before` runs ahead of the handlers of a batch, `finished` when one is through (on its thread), `settle` now and then
and before a partition is given away (on the polling thread).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Condition
from typing import Protocol

from confluent_kafka import KafkaError

from millpond.base.ids import TopicPartition
from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.errors import CommitFailed
from millpond.client.message import Delivery, Message, Send
from millpond.client.producer import Producer
from millpond.client.progress import Job, Progress

GROUP_MOVED_ON = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
    }
)
"""The group has changed without us. Whoever has the partition now runs the records again."""


COMMIT_TRIES = 5
COMMIT_RETRY_SECONDS = 0.2


class Settler(Protocol):
    def before(self, batch: Sequence[Message]) -> bool:
        """Whether the batch may be processed."""
        ...

    def finished(self, job: Job, outgoing: list[Send]) -> None: ...

    def settle(self) -> None: ...

    def flush(self, timeout_s: float) -> None:
        """Wait until what finished records want sent is acknowledged."""
        ...

    def forget(self, places: Sequence[TopicPartition]) -> None:
        """These are not ours any more: what is not settled is dropped."""
        ...

    def close(self) -> None: ...


class AtLeastOnce:
    """What a record wants sent is acknowledged before its position is committed."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Callable[[], Producer],
        progress: Mapping[TopicPartition, Progress],
        lock: Condition,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._progress = progress
        self._lock = lock
        self._fail = fail
        self._unsent = 0
        self._positions: dict[TopicPartition, int] = {}

    def before(self, batch: Sequence[Message]) -> bool:
        return True

    def finished(self, job: Job, outgoing: list[Send]) -> None:
        if not outgoing:
            with self._lock:
                job.progress.finish(job.message.offset, [])
            return
        left = len(outgoing)

        def sent(future: Future[Delivery]) -> None:
            nonlocal left
            error = future.exception()
            with self._lock:
                left -= 1
                if error is None and left == 0:
                    job.progress.finish(job.message.offset, [])
                self._unsent -= 1
                self._lock.notify_all()
            if error is not None:
                self._fail(error)

        futures = [send(self._producer(), each) for each in outgoing]
        with self._lock:
            self._unsent += left
        for future in futures:
            future.add_done_callback(sent)

    def settle(self) -> None:
        self._collect()
        if self._positions:
            commit(self._consumer, self._positions)
            self._positions.clear()

    def flush(self, timeout_s: float) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._unsent, timeout_s)

    def forget(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._positions.pop(place, None)

    def close(self) -> None:
        """The consumer and the producer belong to others."""

    def _collect(self) -> None:
        with self._lock:
            for place, progress in self._progress.items():
                at, _ = progress.take()
                if at is not None:
                    self._positions[place] = at


class AtMostOnce(AtLeastOnce):
    """The positions are committed before the first handler of a batch runs."""

    def before(self, batch: Sequence[Message]) -> bool:
        positions = {TopicPartition(each.topic, each.partition): each.offset + 1 for each in batch}
        return commit(self._consumer, positions)

    def settle(self) -> None:
        self._collect()
        self._positions.clear()


def commit(consumer: Consumer, positions: Mapping[TopicPartition, int]) -> bool:
    """Whether the group knows the positions now; False when it has moved on without us."""
    for tries_left in reversed(range(COMMIT_TRIES)):
        try:
            consumer.commit(offsets=positions)
            return True
        except CommitFailed as fault:
            # A stale epoch alone means that the group changed this moment; the next heartbeat brings the new one.
            if fault.code in GROUP_MOVED_ON and (fault.code != KafkaError.STALE_MEMBER_EPOCH or not tries_left):
                LOG.info("not committed, the group has moved on: %s", fault)
                return False
            if not (fault.retriable or fault.code == KafkaError.STALE_MEMBER_EPOCH) or not tries_left:
                raise
            time.sleep(COMMIT_RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")


def send(producer: Producer, wanted: Send) -> Future[Delivery]:
    return producer.send(wanted.topic, wanted.value, wanted.key, headers=wanted.headers, partition=wanted.partition)
