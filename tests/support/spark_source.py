"""Shared by the tests of the Spark source: topics with records in them, and a group's progress."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from support.node import Node

SECONDS_MAX = 60


def send(node: Node, topic: str, values: Iterable[str], partition: int = 0, **settings: object) -> None:
    """Write texts to one partition and wait for the acknowledgement."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 2, **settings})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(SECONDS_MAX) == 0, "records are left undelivered"


def committed(node: Node, group: str, topic: str) -> dict[int, int]:
    """The offsets of a group by partition."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(SECONDS_MAX)
    return {each.partition: each.offset for each in offsets.topic_partitions if each.topic == topic}
