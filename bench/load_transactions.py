"""Loads by transactions: many small ones, and a copy from topic to topic in which nothing is lost or doubled."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load_raw import percentiles_ms
from bench.node import HOST
from bench.noise import Measured

SECONDS_MAX = 30
COPY_MESSAGES = 1000
"""Messages of one transaction."""


def _producer(port: int, name: str) -> Producer:
    made = Producer({"bootstrap.servers": f"{HOST}:{port}", "transactional.id": name, "linger.ms": 0})
    made.init_transactions(SECONDS_MAX)
    return made


class Transactions:
    """One message and a commit, one transaction after the other."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self._producer = _producer(port, "bench-small")
        self._one()

    def _one(self) -> None:
        self._producer.begin_transaction()
        self._producer.produce(self._topic, b"v" * 100)
        self._producer.commit_transaction(SECONDS_MAX)

    def run(self, seconds: float) -> Measured:
        waits: list[int] = []
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            at = time.perf_counter_ns()
            self._one()
            waits.append(time.perf_counter_ns() - at)
        took = time.perf_counter() - began
        count = len(waits)
        return {
            "seconds": took,
            "messages": count,
            "transactions_per_s": count / took,
            **percentiles_ms(waits),
        }


class Copy:
    """Reads committed messages, writes each to another topic, and commits both as one transaction of a thousand."""

    def __init__(self, port: int, source: str, target: str, messages: int, value_bytes: int) -> None:
        self._source, self._target = source, target
        self._messages = messages
        self._value_bytes = value_bytes
        self._producer = _producer(port, "bench-copy")
        self._consumer = Consumer(
            {
                "bootstrap.servers": f"{HOST}:{port}",
                "group.id": "copy",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 5,
            }
        )
        self._rewind()

    def _rewind(self) -> None:
        self._consumer.assign([TopicPartition(self._source, 0, 0)])
        self._position = 0

    def run(self, seconds: float) -> Measured:
        waits: list[int] = []
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            if self._position >= self._messages:
                self._rewind()
            at = time.perf_counter_ns()
            found = self._consumer.consume(min(COPY_MESSAGES, self._messages - self._position), 5.0)
            if not found:
                raise TimeoutError("nothing came to be copied")
            self._copy(found)
            count += len(found)
            waits.append(time.perf_counter_ns() - at)
        took = time.perf_counter() - began
        return {
            "seconds": took,
            "messages": count,
            "bytes": count * self._value_bytes,
            "transactions_per_s": len(waits) / took,
            **percentiles_ms(waits),
        }

    def _copy(self, found: list) -> None:  # type: ignore[type-arg]
        producer, target = self._producer, self._target
        producer.begin_transaction()
        for message in found:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            producer.produce(target, message.value())
        self._position = found[-1].offset() + 1
        offsets = [TopicPartition(self._source, 0, self._position)]
        producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), SECONDS_MAX)
        producer.commit_transaction(SECONDS_MAX)

    def close(self) -> None:
        self._consumer.close()
