"""A few records of a topic: the first and the last of every partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation, earliest, latest
from millpond.remote.reader import read_records

RECORDS_MAX: Final = 1_000
BYTES_MAX: Final = 16 << 20
"""The limit for all values together; reading stops there."""


def sample_values(cluster: Cluster, topic: str, isolation: Isolation = "read_uncommitted") -> list[bytes | None]:
    """Sample values of the topic's records; all of them if there are few."""
    return [value for _, value in sample_pairs(cluster, topic, isolation)]


def sample_pairs(
    cluster: Cluster, topic: str, isolation: Isolation = "read_uncommitted"
) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values of sampled records."""
    partitions = [TopicPartition(topic, each) for each in cluster.topic(topic).partitions]
    starts, ends = earliest(cluster, partitions), latest(cluster, partitions, isolation)
    share = max(2, RECORDS_MAX // max(1, len(partitions)))
    pairs: list[tuple[bytes | None, bytes | None]] = []
    size = 0
    for partition in partitions:
        for start, end in _ranges(starts[partition], ends[partition], share):
            for record in islice(read_records(cluster, partition, start, end, isolation=isolation), share):
                pairs.append((record.key, record.value))
                size += len(record.key or b"") + len(record.value or b"")
                if size > BYTES_MAX or len(pairs) >= 2 * RECORDS_MAX:
                    return pairs
    return pairs


def _ranges(start: int, end: int, share: int) -> Iterator[tuple[int, int]]:
    if end - start <= share:
        if end > start:
            yield start, end
        return
    yield start, start + share // 2
    yield end - share // 2, end
