"""What to read: topics, partitions and bounds, resolved to offsets before the first record is read."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from millpond.admin.errors import unknown_partition
from millpond.admin.offsets import At, Beginning, Bounds, End, Last, Point, Since, bounds_of, read_point, resolve
from millpond.admin.topics import find_topics
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ConfigError
from millpond.remote.offsets import Isolation

Bound: TypeAlias = int | str | datetime | timedelta | Mapping[int, int] | None
"""An offset for all partitions or for each, a time, how long ago, or text as `millpond consume --from` takes it."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """[start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID
    """Distinguishes a recreated topic."""

    @property
    def size(self) -> int:
        """The number of offsets; compaction and transactions leave fewer records."""
        return self.end - self.start


def topic_names(topics: str | Sequence[str]) -> list[str]:
    names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
    if not names or not all(isinstance(each, str) and each for each in names):
        raise ConfigError("name a topic, or several as a list")
    return names


def find_ranges(
    cluster: Cluster,
    topics: Sequence[str],
    *,
    partitions: Collection[int] | None = None,
    start: Bound = None,
    end: Bound = None,
    last: int | None = None,
    isolation: Isolation = "read_committed",
) -> list[OffsetRange]:
    """The non-empty ranges. The log's end is that of now: records written later are not read.

    With read_committed that is the first open transaction. Bounds outside the log are moved into it.
    """
    if last is not None and (start is not None or last < 0):
        raise ConfigError("last is a number of offsets before the end, and excludes start")
    infos = find_topics(cluster, topics)
    chosen = []
    for name, info in infos.items():
        for index in sorted(info.partitions if partitions is None else set(partitions)):
            if index not in info.partitions:
                raise unknown_partition(name, index, len(info.partitions))
            chosen.append(TopicPartition(name, index))
    bounds = bounds_of(cluster, chosen, isolation)
    ends = _resolved(cluster, bounds, end, "end")
    bounds = {each: Bounds(bound.start, ends[each]) for each, bound in bounds.items()}
    starts = _resolved(cluster, bounds, start if last is None else -last, "start")
    return [
        OffsetRange(each, starts[each], ends[each], infos[each.topic].topic_id)
        for each in chosen
        if starts[each] < ends[each]
    ]


def _resolved(
    cluster: Cluster, bounds: Mapping[TopicPartition, Bounds], bound: Bound, name: str
) -> dict[TopicPartition, int]:
    if isinstance(bound, Mapping):
        others = {each.partition for each in bounds}
        if unknown := set(bound) - others:
            raise ConfigError(f"{name} names the partition {min(unknown)}, which is not read")
        default = {
            each: each_bound.start if name == "start" else each_bound.end for each, each_bound in bounds.items()
        }
        wanted = {each: bound.get(each.partition, default[each]) for each in bounds}
    else:
        point = read_bound(bound, name)
        wanted = dict.fromkeys(bounds, point.offset) if isinstance(point, At) else resolve(cluster, bounds, point)
    return {each: min(max(offset, bounds[each].start), bounds[each].end) for each, offset in wanted.items()}


def read_bound(bound: Bound, name: str) -> Point:
    """The point of a bound; ConfigError with the forms that it can have."""
    now_ms = time.time_ns() // 1_000_000
    match bound:
        case None:
            return Beginning() if name == "start" else End()
        case bool():
            pass
        case int():
            return Last(-bound) if bound < 0 else At(bound)
        case datetime():
            # Rounded up: 1 ms too early would include the previous record.
            return Since(-int(-bound.timestamp() * 1000 // 1))
        case timedelta():
            return Since(now_ms - bound // timedelta(milliseconds=1))
        case str():
            try:
                return read_point(bound, now_ms)
            except (ValueError, OverflowError):
                pass
    raise ConfigError(
        f"{name}={bound!r}: give an offset, -N for the last N, a datetime, a timedelta for a time ago, text as "
        '"2026-01-31T08:30", "5m" or "end", or a dictionary of offsets by partition'
    )
