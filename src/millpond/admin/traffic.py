"""The write rate of each partition, in bytes per second, measured from outside on any cluster."""

from __future__ import annotations

import time

from millpond.admin.topics import partition_sizes
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster


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
