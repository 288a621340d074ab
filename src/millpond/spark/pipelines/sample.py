"""A few records of a topic: the first and the last of every partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import earliest, latest
from millpond.remote.reader import read_records

RECORDS_MAX: Final = 1_000
BYTES_MAX: Final = 16 << 20
"""The limit for all values together; reading stops there."""


def sample_values(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Sample values of the topic's records; all of them if there are few."""
    partitions = [TopicPartition(topic, each) for each in cluster.topic(topic).partitions]
    starts, ends = earliest(cluster, partitions), latest(cluster, partitions)
    share = max(2, RECORDS_MAX // max(1, len(partitions)))
    values: list[bytes | None] = []
    size = 0
    for partition in partitions:
        for start, end in _ranges(starts[partition], ends[partition], share):
            for record in islice(read_records(cluster, partition, start, end), share):
                values.append(record.value)
                size += len(record.value or b"")
                if size > BYTES_MAX or len(values) >= 2 * RECORDS_MAX:
                    return values
    return values


def _ranges(start: int, end: int, share: int) -> Iterator[tuple[int, int]]:
    if end - start <= share:
        if end > start:
            yield start, end
        return
    yield start, start + share // 2
    yield end - share // 2, end
