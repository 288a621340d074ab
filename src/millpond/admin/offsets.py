"""Where partitions begin and end, and which offset a point in a topic is: its beginning, a time, an offset …"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from millpond.admin.errors import Refused
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation


class Bounds(NamedTuple):
    """The first offset that is still there, and the one that the next record gets."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first record that is still there."""


@dataclass(frozen=True, slots=True)
class End:
    """Only what comes from now on."""


@dataclass(frozen=True, slots=True)
class At:
    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """So many records before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record that is not older than this moment."""

    time_ms: int


Point = Beginning | End | At | Last | Since
"""Where in a topic to begin."""


def bounds_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, Bounds]:
    """With read_committed a partition ends where the first open transaction begins."""
    wanted = list(partitions)
    starts = offsets.earliest(cluster, wanted)
    ends = offsets.latest(cluster, wanted, isolation)
    return {each: Bounds(starts[each], ends[each]) for each in wanted}


def resolve(cluster: Cluster, bounds: Mapping[TopicPartition, Bounds], point: Point) -> dict[TopicPartition, int]:
    """The offset of the point in each partition. One outside what is there is moved to its edge."""
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
            # Where nothing is that young, what comes will be.
            return {each: bound.end if (at := firsts[each]) is None else at for each, bound in bounds.items()}
        case _:
            assert_never(point)
