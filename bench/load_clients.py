"""Loads by each client library in its usual style: records with keys, acks=all, idempotent if possible.

A process uses one library. One that is not installed ends it with a message.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.node import HOST
from bench.noise import Measured

VALUE = b"v" * 100
KEYS = [b"customer-%04d" % number for number in range(1000)]
STEP = 1000
"""Records between two looks at the clock."""

POLL_RECORDS = 500
LINGER_MS = 5
FLUSH_SECONDS = 60.0
SECONDS_MAX = 25.0
"""A library that needs longer is stopped; what it has done counts."""


def _keys(records: int, deadline: float) -> Iterator[bytes]:
    """A key for each record, until the time is up."""
    for place, key in enumerate(itertools.islice(itertools.cycle(KEYS), records)):
        if place % STEP == 0 and time.perf_counter() > deadline:
            return
        yield key


class Sends:
    """`how` names the library."""

    def __init__(self, port: int, topic: str, how: str, records: int) -> None:
        self._records = records
        self._server = f"{HOST}:{port}"
        self._topic = topic
        self._how = how
        self._send: Callable[[Iterator[bytes]], int] = getattr(self, f"_by_{how}")
        self._loop = asyncio.new_event_loop()
        self._made: Any = None
        self._send(_keys(10, time.perf_counter() + SECONDS_MAX))

    def run(self, seconds: float) -> Measured:
        began = time.perf_counter()
        count = self._send(_keys(self._records, began + SECONDS_MAX))
        took = time.perf_counter() - began
        return {"seconds": took, "messages": count, "bytes": count * len(VALUE)}

    def close(self) -> None:
        if self._how in ("aiokafka", "faststream"):
            self._loop.run_until_complete(self._made.stop())

    def _by_confluent(self, keys: Iterator[bytes]) -> int:
        from confluent_kafka import Producer

        if self._made is None:
            self._made = Producer(
                {"bootstrap.servers": self._server, "enable.idempotence": True, "linger.ms": LINGER_MS}
            )
        produce, poll, topic = self._made.produce, self._made.poll, self._topic
        count = 0
        for key in keys:
            while True:
                try:
                    produce(topic, VALUE, key)
                    break
                except BufferError:
                    poll(0.005)
            count += 1
            if count % STEP == 0:
                poll(0)
        assert self._made.flush(FLUSH_SECONDS) == 0, "not all were acknowledged"
        return count

    def _by_millpond(self, keys: Iterator[bytes]) -> int:
        from millpond import Producer

        if self._made is None:
            self._made = Producer(self._server)
        send, topic = self._made.send, self._topic
        count = 0
        for key in keys:
            send(topic, VALUE, key)
            count += 1
        self._made.flush(FLUSH_SECONDS)
        return count

    def _by_millpond_async(self, keys: Iterator[bytes]) -> int:
        from millpond import AsyncProducer

        async def send() -> int:
            if self._made is None:
                self._made = AsyncProducer(self._server)
            queue, topic = self._made.queue, self._topic
            futures = [await queue(topic, VALUE, key) for key in keys]
            await asyncio.gather(*futures)
            return len(futures)

        return self._loop.run_until_complete(send())

    def _by_aiokafka(self, keys: Iterator[bytes]) -> int:
        from aiokafka import AIOKafkaProducer

        async def send() -> int:
            if self._made is None:
                self._made = AIOKafkaProducer(
                    bootstrap_servers=self._server, enable_idempotence=True, acks="all", linger_ms=LINGER_MS
                )
                await self._made.start()
            one, topic = self._made.send, self._topic
            futures = [await one(topic, VALUE, key) for key in keys]
            await asyncio.gather(*futures)
            return len(futures)

        return self._loop.run_until_complete(send())

    def _by_kafka_python(self, keys: Iterator[bytes]) -> int:
        from kafka import KafkaProducer

        if self._made is None:
            self._made = KafkaProducer(
                bootstrap_servers=self._server, enable_idempotence=True, acks="all", linger_ms=LINGER_MS
            )
        send, topic = self._made.send, self._topic
        futures = [send(topic, VALUE, key) for key in keys]
        self._made.flush(FLUSH_SECONDS)
        assert all(each.succeeded() for each in futures), "not all were acknowledged"
        return len(futures)

    def _by_faststream(self, keys: Iterator[bytes]) -> int:
        from faststream.confluent import KafkaBroker

        async def send() -> int:
            if self._made is None:
                self._made = KafkaBroker(
                    self._server, acks="all", enable_idempotence=True, linger_ms=LINGER_MS, logger=None
                )
                await self._made.start()
            publish, topic = self._made.publish, self._topic
            count = 0
            while chunk := list(itertools.islice(keys, STEP)):
                await asyncio.gather(*(publish(VALUE, topic, key=key) for key in chunk))
                count += len(chunk)
            return count

        return self._loop.run_until_complete(send())


class Reads:
    """Timed from the first record to the last, without the time to join the group."""

    def __init__(self, port: int, topic: str, how: str, records: int) -> None:
        self._records = records
        self._server = f"{HOST}:{port}"
        self._topic = topic
        self._how = how
        self._read: Callable[[str, Seen], None] = getattr(self, f"_by_{how}")
        self._runs = itertools.count()

    def run(self, seconds: float) -> Measured:
        seen = Seen(self._records)
        self._read(f"{self._how}-{next(self._runs)}", seen)
        return {"seconds": seen.seconds, "messages": seen.counted, "bytes": seen.counted * len(VALUE)}

    def _by_confluent(self, group: str, seen: Seen) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {"bootstrap.servers": self._server, "group.id": group, "auto.offset.reset": "earliest"},
        )
        consumer.subscribe([self._topic])
        while not seen.is_over():
            found = consumer.consume(POLL_RECORDS, 1.0)
            seen.take(sum(len(each.value()) == len(VALUE) for each in found))
        consumer.close()

    def _by_millpond(self, group: str, seen: Seen) -> None:
        from millpond import Consumer

        with Consumer(group, [self._topic], bootstrap=self._server) as consumer:
            while not seen.is_over():
                found = consumer.poll(POLL_RECORDS)
                seen.take(sum(len(each.value) == len(VALUE) for each in found))

    def _by_millpond_async(self, group: str, seen: Seen) -> None:
        from millpond import AsyncConsumer

        async def read() -> None:
            async with AsyncConsumer(group, [self._topic], bootstrap=self._server) as consumer:
                while not seen.is_over():
                    found = await consumer.poll(POLL_RECORDS)
                    seen.take(sum(len(each.value) == len(VALUE) for each in found))

        asyncio.run(read())

    def _by_aiokafka(self, group: str, seen: Seen) -> None:
        from aiokafka import AIOKafkaConsumer

        async def read() -> None:
            consumer = AIOKafkaConsumer(
                self._topic, bootstrap_servers=self._server, group_id=group, auto_offset_reset="earliest"
            )
            await consumer.start()
            while not seen.is_over():
                found = await consumer.getmany(timeout_ms=1000, max_records=POLL_RECORDS)
                seen.take(sum(len(each.value) == len(VALUE) for every in found.values() for each in every))
            await consumer.stop()

        asyncio.run(read())

    def _by_kafka_python(self, group: str, seen: Seen) -> None:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            self._topic, bootstrap_servers=self._server, group_id=group, auto_offset_reset="earliest"
        )
        while not seen.is_over():
            found = consumer.poll(timeout_ms=1000, max_records=POLL_RECORDS)
            seen.take(sum(len(each.value) == len(VALUE) for every in found.values() for each in every))
        consumer.close()

    def _by_worker(self, group: str, seen: Seen) -> None:
        from millpond import Message
        from millpond.client.worker import Worker

        def handle(message: Message) -> None:
            seen.take(len(message.value) == len(VALUE))

        with Worker(handle, self._topic, group=group, bootstrap=self._server, payload=Message):
            seen.wait()

    def _by_faststream(self, group: str, seen: Seen) -> None:
        from faststream.confluent import KafkaBroker

        broker = KafkaBroker(self._server, logger=None)

        async def handle(body: bytes) -> None:
            seen.take(len(body) == len(VALUE))

        broker.subscriber(self._topic, group_id=group, auto_offset_reset="earliest")(handle)

        async def read() -> None:
            await broker.start()
            await _until(seen.is_over)
            await broker.stop()

        asyncio.run(read())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


class Seen:
    """Counts records from the first batch on, which itself does not count: it came while the clock did not run."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._over = threading.Event()
        self._began = 0.0
        self._ended = 0.0
        self._first = 0
        self._deadline = time.perf_counter() + SECONDS_MAX
        self._all = 0

    def take(self, count: int) -> None:
        if not count:
            return
        now = time.perf_counter()
        if not self._all:
            self._began, self._first = now, count
        self._all += count
        self._ended = now
        if self._all >= self._records:
            self._over.set()

    def is_over(self) -> bool:
        return self._over.is_set() or time.perf_counter() > self._deadline

    def wait(self) -> None:
        self._over.wait(max(0.0, self._deadline - time.perf_counter()))

    @property
    def counted(self) -> int:
        if self._all <= self._first:
            raise TimeoutError(f"{self._all} of {self._records} records came")
        return self._all - self._first

    @property
    def seconds(self) -> float:
        return self._ended - self._began
