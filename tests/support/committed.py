"""What a read_committed consumer finds in a partition now."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

SECONDS_MAX = 60


def committed_records(bootstrap: str, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values, from the start of the log to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    result: list[tuple[bytes | None, bytes | None]] = []
    try:
        while True:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"no end after {result[-3:]}"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return result
            result.append((message.key(), message.value()))
    finally:
        consumer.close()
