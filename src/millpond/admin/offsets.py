"""The bounds of partitions, and the offsets of points in a topic: its start, a time, an offset …"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from millpond.admin.errors import Refused
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.base.spans import read_time
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation


class Bounds(NamedTuple):
    """The first available offset, and that of the next record."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first available record."""


@dataclass(frozen=True, slots=True)
class End:
    """The end: only new records."""


@dataclass(frozen=True, slots=True)
class At:
    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """This many records before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record that is not older than this time."""

    time_ms: int


Point = Beginning | End | At | Last | Since
"""A point in a topic to start from."""

_OFFSET: Final = re.compile(r"-?[0-9]{1,19}")


def read_point(text: str, at_ms: int) -> Point:
    """A point as people write it: beginning, end, 1200, -10, 2026-01-31T08:30 or 5m. ValueError otherwise."""
    text = text.strip()
    match text.lower():
        case "beginning" | "start" | "earliest":
            return Beginning()
        case "end" | "latest":
            return End()
    if _OFFSET.fullmatch(text):
        return Last(-int(text)) if text.startswith("-") else At(int(text))
    return Since(read_time(text, at_ms))


def bounds_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, Bounds]:
    """With read_committed a partition ends at the first open transaction."""
    listed = list(partitions)
    starts = offsets.earliest(cluster, listed)
    ends = offsets.latest(cluster, listed, isolation)
    return {each: Bounds(starts[each], ends[each]) for each in listed}


def resolve(cluster: Cluster, bounds: Mapping[TopicPartition, Bounds], point: Point) -> dict[TopicPartition, int]:
    """The offset of the point in each partition, moved to its start or end if outside."""
    match point:
        case Beginning():
            return {each: bound.start for each, bound in bounds.items()}
        case End():
            return {each: bound.end for each, bound in bounds.items()}
        case Last(count):
            return {each: max(bound.start, bound.end - count) for each, bound in bounds.items()}
        case At(offset):
            if all(offset > bound.end for bound in bounds.values()):
                furthest = max(bound.end for bound in bounds.values())
                raise Refused(f"There is no offset {offset} yet: the next record gets {furthest}.")
            return {each: min(max(bound.start, offset), bound.end) for each, bound in bounds.items()}
        case Since(time_ms):
            firsts = offsets.at_times(cluster, dict.fromkeys(bounds, time_ms))
            # If no record is that recent, start at the end.
            return {each: bound.end if (at := firsts[each]) is None else at for each, bound in bounds.items()}
        case _:
            assert_never(point)
