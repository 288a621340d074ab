"""A consumer that waits at the end of a partition, through leader epochs in which nothing is written."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_END, Consumer, Message, Producer, TopicPartition

from support.raw import Raw


def next_record(consumer: Consumer, seconds: float) -> Message | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return message
    return None


def write(bootstrap: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce("idle", value, partition=0)
    assert producer.flush(60) == 0


def test_crashes_without_records_between_them_reset_no_consumer(make_node) -> None:
    """The consumer asks for the end of its epoch. The answer was once "unknown", at which librdkafka restarts at
    record 0.
    """
    node = make_node({})
    with Raw(node.port) as raw:
        raw.create_topic("idle", 1)
    write(node.bootstrap, *[b"old"] * 20)
    node.restart(crash=True)
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "waits",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("idle", 0, OFFSET_END)])
    assert next_record(consumer, 1.5) is None
    for _ in range(2):
        node.restart(crash=True)
        again = next_record(consumer, 1.5)
        assert again is None, f"handed record {again.offset()}"
    write(node.bootstrap, b"new")
    fresh = next_record(consumer, 15)
    assert fresh is not None
    assert fresh.value() == b"new"
    consumer.close()
