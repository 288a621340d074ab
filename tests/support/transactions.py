"""Three real transactional producers behind one interface, and consumers of the same libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

SECONDS_MAX = 60.0
END = b"the end"
"""A record outside of all transactions; a reader that gets it has seen everything before it."""


class Fenced(Exception):
    """The library reports that another producer has taken over, or that the transaction no longer exists."""


class Writer(Protocol):
    """A producer whose transactions have been initialised."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        """Write, and wait for the acknowledgement."""
        ...

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 in the transaction."""
        ...

    def commit(self) -> None:
        """Raises Fenced if the producer may not commit."""
        ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


Open = Callable[[str, str], Writer]
"""Bootstrap and transactional id."""


class ConfluentWriter:
    def __init__(self, bootstrap: str, name: str, **settings: Any) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **{setting.replace("_", "."): value for setting, value in settings.items()},
            }
        )
        self.producer.init_transactions(SECONDS_MAX)
        self._bootstrap = bootstrap
        self.failed: list[Any] = []

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        self.producer.produce(topic, value, key, partition, on_delivery=self._delivered)
        assert self.producer.flush(SECONDS_MAX) == 0

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self.failed.append(error)

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group, "log_level": 0})
        offsets = [TopicPartition(topic, 0, offset)]
        self.producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS_MAX)
        consumer.close()

    def commit(self) -> None:
        try:
            self.producer.commit_transaction(SECONDS_MAX)
        except KafkaException as raised:
            raise Fenced(raised.args[0].name()) from raised

    def abort(self) -> None:
        self.producer.abort_transaction(SECONDS_MAX)

    def close(self) -> None:
        # It has no close method.
        del self.producer


class KafkaPythonWriter:
    def __init__(self, bootstrap: str, name: str) -> None:
        from kafka import KafkaProducer

        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=name, linger_ms=0, retry_backoff_ms=20
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        from kafka.errors import KafkaError

        try:
            self.producer.send(topic, value, key, partition=partition).get(SECONDS_MAX)
        except KafkaError as error:
            raise Fenced(repr(error)) from error

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        from kafka import OffsetAndMetadata
        from kafka import TopicPartition as PythonTopicPartition
        from kafka.structs import ConsumerGroupMetadata

        offsets = {PythonTopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group, -1, "", None))

    def commit(self) -> None:
        from kafka.errors import KafkaError

        try:
            self.producer.commit_transaction()
        except KafkaError as error:
            raise Fenced(repr(error)) from error

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=1)


class AioKafkaWriter:
    """Its background tasks run only during calls, which is enough for short tests."""

    def __init__(self, bootstrap: str, name: str) -> None:
        from aiokafka import AIOKafkaProducer

        self._loop = asyncio.new_event_loop()

        async def started() -> Any:
            made = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=name, linger_ms=0, retry_backoff_ms=20
            )
            await made.start()
            return made

        self.producer = self._loop.run_until_complete(started())

    def begin(self) -> None:
        self._loop.run_until_complete(self.producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> None:
        from aiokafka.errors import KafkaError

        try:
            self._loop.run_until_complete(self.producer.send_and_wait(topic, value, key, partition=partition))
        except KafkaError as error:
            raise Fenced(repr(error)) from error

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        from aiokafka import TopicPartition as AioTopicPartition

        offsets = {AioTopicPartition(topic, 0): offset}
        self._loop.run_until_complete(self.producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        from aiokafka.errors import KafkaError

        try:
            self._loop.run_until_complete(self.producer.commit_transaction())
        except KafkaError as error:
            raise Fenced(repr(error)) from error

    def abort(self) -> None:
        self._loop.run_until_complete(self.producer.abort_transaction())

    def close(self) -> None:
        self._loop.run_until_complete(self.producer.stop())
        self._loop.close()


WRITERS: dict[str, Open] = {
    "confluent-kafka": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
    "aiokafka": AioKafkaWriter,
}


# Readers: all records of one partition before END, or only the committed ones.


def read_with_confluent(bootstrap: str, topic: str, partition: int, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    result: list[bytes] = []
    while END not in result:
        each = consumer.poll(SECONDS_MAX)
        assert each is not None, f"the end does not come after {result[-3:]}"
        assert each.error() is None, each.error()
        result.append(each.value())
    consumer.close()
    return result[:-1]


def read_with_kafka_python(bootstrap: str, topic: str, partition: int, isolation: str) -> list[bytes]:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonTopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, isolation_level=isolation, fetch_max_wait_ms=100
    )
    topic_partition = PythonTopicPartition(topic, partition)
    consumer.assign([topic_partition])
    consumer.seek(topic_partition, 0)
    result: list[bytes] = []
    while END not in result:
        polled = consumer.poll(timeout_ms=int(SECONDS_MAX * 1000))
        assert polled, f"the end does not come after {result[-3:]}"
        result += [each.value for each in polled[topic_partition]]
    consumer.close()
    return result[:-1]


def read_with_aiokafka(bootstrap: str, topic: str, partition: int, isolation: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as AioTopicPartition

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, isolation_level=isolation, fetch_max_wait_ms=100
        )
        await consumer.start()
        topic_partition = AioTopicPartition(topic, partition)
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, 0)
        result: list[bytes] = []
        while END not in result:
            result.append((await asyncio.wait_for(consumer.getone(topic_partition), SECONDS_MAX)).value)
        await consumer.stop()
        return result[:-1]

    return asyncio.run(read())


READERS: dict[str, Callable[[str, str, int, str], list[bytes]]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}
