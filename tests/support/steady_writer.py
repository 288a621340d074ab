"""A librdkafka producer that never stops, and a check of the topic at the end."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

PAUSE_SECONDS: Final = 0.002
READ_SECONDS_MAX: Final = 120.0


class SteadyWriter:
    """Writes with acks=all until it is stopped; `acknowledged` is what must be in the topic then."""

    def __init__(self, settings: dict[str, Any], topic: str, partitions: int, prefix: str) -> None:
        self.acknowledged: list[bytes] = []
        self.faults: list[str] = []
        self._producer = Producer(
            {**settings, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        )
        self._topic, self._partitions, self._prefix = topic, partitions, prefix
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            value = f"{self._prefix}-{number}".encode()
            partition = number % self._partitions
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)
            self._producer.poll(0)
            number += 1
            time.sleep(PAUSE_SECONDS)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.faults.append(str(error))

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0


def read_topic(settings: dict[str, Any], topic: str, partitions: int, count: int) -> list[bytes]:
    """All records of the topic; waits for this many."""
    consumer = Consumer(
        {**settings, "group.id": "check", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    result: list[bytes] = []
    deadline = time.monotonic() + READ_SECONDS_MAX
    try:
        while len(result) < count and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 1.0):
                assert message.error() is None, message.error()
                result.append(message.value())
    finally:
        consumer.close()
    return result
