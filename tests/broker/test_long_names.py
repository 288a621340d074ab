"""Requests that name one invalid topic with many partitions: the name must not be repeated for each of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from millpond.wire import messages as m

NAME = "x" * 32_000
COUNT = 2_000
PEAK_BYTES_MAX = 20 << 20


def reassign() -> m.Message:
    kind = m.AlterPartitionReassignmentsRequest
    partitions = [kind.ReassignablePartition(partition_index=index, replicas=None) for index in range(COUNT)]
    return kind(timeout_ms=1000, topics=[kind.ReassignableTopic(name=NAME, partitions=partitions)])


def elect() -> m.Message:
    kind = m.ElectLeadersRequest
    topic = kind.TopicPartitions(topic=NAME, partitions=list(range(COUNT)))
    return kind(election_type=0, topic_partitions=[topic], timeout_ms=1000)


@pytest.mark.parametrize(("make", "version"), [(reassign, 0), (elect, 2)])
def test_a_long_name_is_not_repeated_for_each_partition(make_server: Any, make: Any, version: int) -> None:
    server = make_server()
    caller = server.connect()
    request = make()
    tracemalloc.start()
    try:
        caller.ask(request, version, within_ms=5000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX
