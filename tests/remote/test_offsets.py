"""Offsets of partitions and groups."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Wanted

from millpond.base.ids import TopicPartition
from millpond.client.errors import UnknownTopic
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from support.node import Node
from support.topics import create_topic, delete_records

BASE_MS = 1_700_000_000_000


@pytest.fixture
def filled(node: Node, topic: str) -> str:
    """Ten records in partition 0, a second apart; partition 1 is empty."""
    create_topic(node.bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(10):
        producer.produce(topic, b"v", partition=0, timestamp=BASE_MS + number * 1000)
        producer.flush()
    return topic


def test_offsets_of_start_end_and_times(node: Node, filled: str) -> None:
    full, empty = TopicPartition(filled, 0), TopicPartition(filled, 1)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        delete_records(node.bootstrap, filled, 0, 3)
        assert offsets.earliest(cluster, [full, empty]) == {full: 3, empty: 0}
        assert offsets.latest(cluster, [full, empty]) == {full: 10, empty: 0}
        assert offsets.latest(cluster, [full], "read_committed") == {full: 10}
        requests = {full: BASE_MS + 5500, empty: BASE_MS}
        assert offsets.at_times(cluster, requests) == {full: 6, empty: None}
        assert offsets.at_times(cluster, {full: BASE_MS + 60_000}) == {full: None}
        assert offsets.latest(cluster, []) == {}


def test_an_open_transaction_limits_read_committed(node: Node, filled: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"{filled}-t"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(filled, b"open", partition=0)
    producer.flush()
    partition = TopicPartition(filled, 0)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        assert offsets.latest(cluster, [partition], "read_committed") == {partition: 10}
        assert offsets.latest(cluster, [partition]) == {partition: 11}
        producer.commit_transaction(10)
        # The record and its marker.
        assert offsets.latest(cluster, [partition], "read_committed") == {partition: 12}


def test_offsets_are_committed_for_a_group_without_members(node: Node, filled: str) -> None:
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        offsets.commit_group(cluster, f"{filled}-group", {TopicPartition(filled, 0): 7, TopicPartition(filled, 1): 0})
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": f"{filled}-group"})
    committed = consumer.committed([Wanted(filled, 0), Wanted(filled, 1)], 10)
    consumer.close()
    assert [each.offset for each in committed] == [7, 0]


def test_a_missing_topic_is_named(node: Node) -> None:
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, pytest.raises(UnknownTopic, match="'missing'"):
        offsets.latest(cluster, [TopicPartition("missing", 0)])
