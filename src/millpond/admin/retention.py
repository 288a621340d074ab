"""The retention of a topic, and the age of its oldest records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millpond.admin.offsets import bounds_of
from millpond.admin.settings import Subject, read_settings
from millpond.admin.topics import find_topic, led_partitions
from millpond.remote.cluster import Cluster
from millpond.remote.reader import first_records, stamp

PARTITIONS_MAX: Final = 200
"""The first record of at most this many partitions is read."""


@dataclass(frozen=True, slots=True)
class Retention:
    policy: str
    """delete, compact or both, as in cleanup.policy."""
    keeps_ms: int | None
    """None: no limit."""
    keeps_bytes: int | None
    """Limit per partition; None: no limit."""
    oldest_ms: Mapping[int, int]
    """When the first record of each partition was written, in milliseconds since 1970; empty ones are left out."""


def describe_retention(cluster: Cluster, topic: str) -> Retention:
    info = find_topic(cluster, topic)
    values = {each.name: each.value or "" for each in read_settings(cluster, Subject("topic", topic))}
    bounds = bounds_of(cluster, led_partitions([info])[:PARTITIONS_MAX])
    starts = {each: bound.start for each, bound in bounds.items() if bound.start < bound.end}
    oldest = {
        partition.partition: first.timestamp
        for partition, first in first_records(cluster, starts, stamp).items()
        if first.timestamp >= 0
    }
    return Retention(
        values.get("cleanup.policy", ""), _limit(values, "retention.ms"), _limit(values, "retention.bytes"), oldest
    )


def _limit(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name, "")
    return int(text) if text.isdecimal() else None
