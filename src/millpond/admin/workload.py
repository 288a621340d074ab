"""Measures the current workload of any cluster from outside: of the whole for a plan, or of each partition."""

from __future__ import annotations

import time
from dataclasses import dataclass

from millpond.admin.dead_letters.letters import INTERNAL
from millpond.admin.groups import list_groups
from millpond.admin.offsets import bounds_of
from millpond.admin.topics import led_partitions, partition_sizes
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import latest


@dataclass(frozen=True, slots=True)
class Workload:
    records_per_second: float
    record_bytes: float | None
    """Bytes per record on disk, of records written during the sample, or else of all; None if there are none."""
    replicas: int
    """The median replication factor."""
    groups: int


def observe_workload(cluster: Cluster, seconds: float) -> Workload:
    """Takes two samples, this long apart."""
    topics = [each for name, each in cluster.topics().items() if not name.startswith(INTERNAL)]
    led = led_partitions(topics)
    leaders = {
        TopicPartition(topic.name, index): each.leader for topic in topics for index, each in topic.partitions.items()
    }

    def size() -> int:
        sizes = partition_sizes(cluster)
        return sum(sizes.get((leader, each), 0) for each, leader in leaders.items())

    bounds, size_before, began = bounds_of(cluster, led), size(), time.monotonic()
    time.sleep(seconds)
    ends, size_after, took = latest(cluster, led), size(), time.monotonic() - began
    written = sum(max(0, ends[each] - bounds[each].end) for each in led)
    total = sum(ends[each] - bounds[each].start for each in led)
    grown = size_after - size_before
    record_bytes = grown / written if written and grown > 0 else size_after / total if total else None
    counts = sorted(len(each.replicas) for topic in topics for each in topic.partitions.values())
    return Workload(
        written / took, record_bytes, counts[len(counts) // 2] if counts else 1, len(list_groups(cluster))
    )


def measure_traffic(cluster: Cluster, seconds: float) -> dict[TopicPartition, float]:
    """How fast the largest replica of each partition grows.

    A partition whose old records were deleted meanwhile shrinks, and counts as idle.
    """
    began, before = time.monotonic(), partition_sizes(cluster)
    time.sleep(seconds)
    after, took = partition_sizes(cluster), time.monotonic() - began
    traffic: dict[TopicPartition, float] = {}
    for (node, partition), size in after.items():
        grown = (size - before.get((node, partition), size)) / took
        traffic[partition] = max(traffic.get(partition, 0.0), grown)
    return traffic
