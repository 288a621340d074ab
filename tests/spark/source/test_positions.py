"""Edges of the log, offsets and times resolved against a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.spark.options import OptionError
from millpond.spark.source.offset_spec import AtOffsets, AtTimes, Edge
from millpond.spark.source.positions import resolve
from support.clients import Confluent, Sent
from support.node import Node
from support.topics import create_topic, delete_records

BASE_MS = 1_700_000_000_000


@pytest.fixture
def cluster(node: Node) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": node.bootstrap}) as opened:
        yield opened


@pytest.fixture
def partitions(node: Node, topic: str) -> list[TopicPartition]:
    """Ten records a second apart in each partition; the first has lost two, the second is five seconds later."""
    create_topic(node.bootstrap, topic, 2)
    for partition in range(2):
        sent = [Sent(b"v", timestamp=BASE_MS + partition * 5000 + number * 1000) for number in range(10)]
        Confluent().write(node.bootstrap, topic, sent, partition=partition)
    delete_records(node.bootstrap, topic, 0, 2)
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def test_every_bound_resolves_to_offsets(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    first, second = partitions

    def offsets(bound: Edge | AtOffsets | AtTimes) -> list[int]:
        result = resolve(cluster, bound, partitions, "read_uncommitted")
        return [result[partition] for partition in partitions]

    assert offsets(Edge("earliest")) == [2, 0]
    assert offsets(Edge("latest")) == [10, 10]
    assert offsets(AtOffsets({first: -2, second: 7})) == [2, 7]
    assert offsets(AtOffsets({first: 3, second: -1})) == [3, 10]
    assert offsets(AtTimes(BASE_MS + 6500, "error")) == [7, 2]
    assert offsets(AtTimes({first: BASE_MS, second: BASE_MS + 14_000}, "error")) == [2, 9]
    assert offsets(AtTimes(BASE_MS + 12_000, "latest")) == [10, 7]


def test_bounds_that_do_not_fit_the_cluster_are_refused(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    first, second = partitions
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest") as raised:
        resolve(cluster, AtTimes(BASE_MS + 12_000, "error"), partitions, "read_uncommitted")
    assert f"{first.topic}[0] has no record at {BASE_MS + 12_000}" in str(raised.value)
    with pytest.raises(OptionError) as raised:
        resolve(cluster, AtOffsets({first: 1, TopicPartition("x", 3): 1}), partitions, "read_uncommitted")
    assert f"missing: {second.topic}[1]; not read: x[3]" in str(raised.value)
    with pytest.raises(OptionError, match="exactly the partitions"):
        resolve(cluster, AtTimes({first: 1}, "error"), partitions, "read_uncommitted")
