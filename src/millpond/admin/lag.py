"""The lag of a group: in records, in time, and when it will have caught up.

Two samples of offsets give rates. The age of the oldest unread record comes from the record itself: one fetch for
each partition with lag. If the fetch finds only control records, there is nothing to read and no lag.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.groups import SHARE, Group, find_groups
from millpond.admin.offsets import Bounds, bounds_of
from millpond.admin.queues.offsets import positions_of, started
from millpond.admin.topics import led_partitions
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import committed_by_group
from millpond.remote.reader import first_or_end

LOOK_SECONDS_MAX: Final = 3.0
LOOKS_MAX: Final = 500
"""The oldest unread record is looked up for at most this many partitions, those with the largest lag."""

RATE_WINDOW_SECONDS: Final = 30.0
"""When sampling repeatedly, rates cover this long: auto-commits are seconds apart."""

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Sample:
    """Committed offsets by group, and the bounds of partitions, at one moment."""

    at_seconds: float
    committed: Mapping[str, Mapping[TopicPartition, int]]
    bounds: Mapping[TopicPartition, Bounds]
    """Bounds of every partition of the topics that the groups read."""

    def partitions_of(self, group: Group) -> set[TopicPartition]:
        """Every partition of the topics that the group reads, including those without a committed offset."""
        partitions = group.owners.keys() | self.committed[group.id].keys()
        topics = {each.topic for each in partitions}
        return partitions | {each for each in self.bounds if each.topic in topics}

    def position(self, group: str, partition: TopicPartition) -> int | None:
        """The next offset of the group: without a committed offset, the start. None if unknown."""
        bound = self.bounds.get(partition)
        if bound is None:
            return None
        return max(self.committed[group].get(partition, bound.start), bound.start)


def take_sample(cluster: Cluster, groups: Iterable[Group]) -> Sample:
    groups = list(groups)
    # Offsets before ends: otherwise a busy group would seem to be ahead of its topic.
    committed = {group.id: _progress_of(cluster, group) for group in groups}
    names = {each.topic for offsets in committed.values() for each in offsets}
    names.update(each.topic for group in groups for each in group.owners)
    topics = cluster.topics(names) if names else {}
    # A deleted topic, or a partition without a leader, has no bounds.
    led = led_partitions(topics.values())
    return Sample(time.monotonic(), committed, bounds_of(cluster, sorted(led)))


def _progress_of(cluster: Cluster, group: Group) -> Mapping[TopicPartition, int]:
    """Committed offsets; of a share group, the first offset that is not finished."""
    if group.type != SHARE:
        return committed_by_group(cluster, group.id)
    return started(positions_of(cluster, group.id) or {})


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as one group reads it. None means unknown, or not applicable."""

    topic: str
    partition: int
    member: str | None
    start: int | None
    end: int | None
    committed: int | None
    lag: int | None
    lost: int
    """Records that were deleted before the group read them."""
    behind_ms: int | None
    """How long the oldest unread record has been waiting."""
    read_per_second: float | None
    written_per_second: float | None

    @property
    def catch_up_seconds(self) -> float | None:
        return catch_up(self.lag, self.read_per_second, self.written_per_second)


@dataclass(frozen=True, slots=True)
class GroupLag:
    group: Group
    partitions: tuple[PartitionLag, ...] = ()

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.partitions)

    @property
    def uncommitted(self) -> int:
        """The part of `lag` in partitions without a committed offset: readers that start at the end skip it."""
        return sum(each.lag or 0 for each in self.partitions if each.committed is None)

    @property
    def behind_ms(self) -> int | None:
        return max((each.behind_ms for each in self.partitions if each.behind_ms is not None), default=None)

    @property
    def read_per_second(self) -> float | None:
        return _sum(each.read_per_second for each in self.partitions)

    @property
    def written_per_second(self) -> float | None:
        return _sum(each.written_per_second for each in self.partitions)

    @property
    def catch_up_seconds(self) -> float | None:
        """The group has caught up when its last partition has."""
        times = [each.catch_up_seconds for each in self.partitions if each.lag]
        finite = [each for each in times if each is not None]
        return max(finite) if finite and len(finite) == len(times) else None


def catch_up(lag: int | None, read_per_second: float | None, written_per_second: float | None) -> float | None:
    """Seconds to catch up at this rate; NEVER if the log grows faster; None if nothing is read."""
    if not lag or not read_per_second:
        return None
    gain = read_per_second - (written_per_second or 0.0)
    return lag / gain if gain > 0 else NEVER


class Unread(NamedTuple):
    """The next record at an offset."""

    offset: int
    """The offset of the next record, or where it will be: offsets before it have no record, such as control
    records."""
    age_ms: int | None
    """None if there is no record, or it has no timestamp."""


def lags_of(
    groups: Iterable[Group],
    sample: Sample,
    before: Sample | None,
    unread: Mapping[TopicPartition, Mapping[int, Unread]],
) -> list[GroupLag]:
    """`unread` has the next record by partition and offset, as far as known."""
    return [
        GroupLag(
            group,
            tuple(
                _partition_lag(group, partition, sample, before, unread.get(partition, {}))
                for partition in sorted(sample.partitions_of(group))
            ),
        )
        for group in groups
    ]


def oldest_unread(groups: Iterable[Group], sample: Sample) -> dict[TopicPartition, set[int]]:
    """The next offsets of groups with lag, the largest lag first."""
    unread_offsets: dict[TopicPartition, set[int]] = {}
    lags: dict[TopicPartition, int] = {}
    for group in groups:
        for partition in sample.partitions_of(group):
            bound, unread = sample.bounds.get(partition), sample.position(group.id, partition)
            if bound is not None and unread is not None and unread < bound.end:
                unread_offsets.setdefault(partition, set()).add(unread)
                lags[partition] = max(lags.get(partition, 0), bound.end - unread)
    return {each: unread_offsets[each] for each in sorted(unread_offsets, key=lambda each: -lags[each])[:LOOKS_MAX]}


def _partition_lag(
    group: Group, partition: TopicPartition, sample: Sample, before: Sample | None, unread: Mapping[int, Unread]
) -> PartitionLag:
    committed = sample.committed[group.id].get(partition)
    bound = sample.bounds.get(partition)
    owner = group.owners.get(partition)
    reached = sample.position(group.id, partition)
    following = Unread(0, None) if reached is None else unread.get(reached, Unread(reached, None))
    lag = None if reached is None or bound is None else max(0, bound.end - following.offset)
    was = before.committed.get(group.id, {}).get(partition) if before else None
    old = before.bounds.get(partition) if before else None
    seconds = sample.at_seconds - before.at_seconds if before else 0.0
    return PartitionLag(
        *partition,
        member=owner.id if owner else None,
        start=bound.start if bound else None,
        end=bound.end if bound else None,
        committed=committed,
        lag=lag,
        lost=0 if reached is None or committed is None else reached - committed,
        behind_ms=following.age_ms if lag else None,
        read_per_second=_rate(was, committed, seconds),
        written_per_second=_rate(old.end if old else None, bound.end if bound else None, seconds),
    )


def _rate(was: int | None, now: int | None, seconds: float) -> float | None:
    # Offsets that went back were reset: that is no reading.
    return max(0, now - was) / seconds if was is not None and now is not None and seconds > 0 else None


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def read_unread(
    cluster: Cluster, next_offsets: Mapping[TopicPartition, set[int]]
) -> dict[TopicPartition, dict[int, Unread]]:
    """The next record at each of these offsets, as far as a few seconds allow.

    If an offset has no record (a marker, or compacted away), it is the next existing one. Records of open
    transactions count: readers wait for them, too.
    """
    unread: dict[TopicPartition, dict[int, Unread]] = {each: {} for each in next_offsets}
    deadline = time.monotonic() + LOOK_SECONDS_MAX
    # Groups at different offsets of one partition are looked up one after another.
    left = {each: sorted(offsets) for each, offsets in next_offsets.items()}
    while left and time.monotonic() < deadline:
        step = {each: offsets.pop(0) for each, offsets in left.items()}
        for each, first in first_or_end(cluster, step, is_up=lambda: time.monotonic() > deadline).items():
            if isinstance(first, int):
                unread[each][step[each]] = Unread(first, None)
                continue
            age_ms = max(0, time.time_ns() // 1_000_000 - first.timestamp) if first.timestamp >= 0 else None
            unread[each][step[each]] = Unread(first.offset, age_ms)
        left = {each: offsets for each, offsets in left.items() if offsets}
    return unread


class LagWatch:
    """Samples groups once or repeatedly; earlier samples give the rates."""

    def __init__(self, cluster: Cluster, names: Sequence[str], *, sample_seconds: float = 1.0) -> None:
        """The first call takes `sample_seconds` to measure rates; 0 for no rates."""
        self._cluster = cluster
        self._names = list(dict.fromkeys(names))
        self._sample_seconds = sample_seconds
        self._samples: deque[Sample] = deque()

    def look(self) -> list[GroupLag]:
        groups = find_groups(self._cluster, self._names)
        if not self._samples and self._sample_seconds:
            self._samples.append(take_sample(self._cluster, groups))
            time.sleep(self._sample_seconds)
            groups = find_groups(self._cluster, self._names)
        sample = take_sample(self._cluster, groups)
        while len(self._samples) > 1 and sample.at_seconds - self._samples[0].at_seconds > RATE_WINDOW_SECONDS:
            self._samples.popleft()
        before = self._samples[0] if self._samples and self._sample_seconds else None
        self._samples.append(sample)
        return lags_of(groups, sample, before, read_unread(self._cluster, oldest_unread(groups, sample)))
