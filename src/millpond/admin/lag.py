"""How far a group is behind: in records, in time, and how soon it will have caught up.

A sample is what the cluster says at one moment; two of them give rates. How old the oldest unread record is, is read
from the record itself: one fetch for each partition that lags. Where that finds no record, only the ends of
transactions, nothing is left to be read: that is no lag.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.groups import Group, find_groups
from millpond.admin.offsets import Bounds, bounds_of
from millpond.admin.topics import led_partitions
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import committed_by_group
from millpond.remote.reader import first_or_end

LOOK_SECONDS_MAX: Final = 3.0
LOOKS_MAX: Final = 500
"""Of so many partitions, those with the largest lag, the oldest unread record is looked up."""

RATE_WINDOW_SECONDS: Final = 30.0
"""Looking again and again, rates are those of this long: auto-commits come seconds apart."""

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Sample:
    """Committed offsets by group and the partitions' bounds, at one moment."""

    at_seconds: float
    committed: Mapping[str, Mapping[TopicPartition, int]]
    bounds: Mapping[TopicPartition, Bounds]
    """Of every partition of the topics that the groups read."""

    def partitions_of(self, group: Group) -> set[TopicPartition]:
        """Every partition of the topics that the group reads: those where it has committed nothing are unread."""
        known = group.owners.keys() | self.committed[group.id].keys()
        topics = {each.topic for each in known}
        return known | {each for each in self.bounds if each.topic in topics}

    def position(self, group: str, partition: TopicPartition) -> int | None:
        """Where the group reads next: without a committed offset, at the beginning. None where that is not known."""
        bound = self.bounds.get(partition)
        if bound is None:
            return None
        return max(self.committed[group].get(partition, bound.start), bound.start)


def take_sample(cluster: Cluster, groups: Iterable[Group]) -> Sample:
    groups = list(groups)
    # Offsets before ends: the other way round a busy group would seem to be ahead of its topic.
    committed = {group.id: committed_by_group(cluster, group.id) for group in groups}
    names = {each.topic for offsets in committed.values() for each in offsets}
    names.update(each.topic for group in groups for each in group.owners)
    topics = cluster.topics(names) if names else {}
    # A topic that has gone, or a partition without a leader, has nobody to ask.
    led = led_partitions(topics.values())
    return Sample(time.monotonic(), committed, bounds_of(cluster, sorted(led)))


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as one group reads it. None is what is not known, or does not apply."""

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
        """The part of `lag` in partitions without a committed offset: readers that begin at the end skip it."""
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
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None


def catch_up(lag: int | None, read_per_second: float | None, written_per_second: float | None) -> float | None:
    """Seconds until nothing is unread at this pace; NEVER when it grows faster; None when nothing is read."""
    if not lag or not read_per_second:
        return None
    gain = read_per_second - (written_per_second or 0.0)
    return lag / gain if gain > 0 else NEVER


class Unread(NamedTuple):
    """What comes next at an offset."""

    offset: int
    """Of the next record, or where it will be: what lies before has none, as the end of a transaction."""
    age_ms: int | None
    """None where there is no record, or one without a time."""


def lags_of(
    groups: Iterable[Group],
    sample: Sample,
    before: Sample | None,
    unread: Mapping[TopicPartition, Mapping[int, Unread]],
) -> list[GroupLag]:
    """`unread` is what comes next, by partition and offset, as far as that is known."""
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
    """The offsets that the groups read next, where there is something to read; the largest lags first."""
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
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def look_at_unread(
    cluster: Cluster, wanted: Mapping[TopicPartition, set[int]]
) -> dict[TopicPartition, dict[int, Unread]]:
    """What comes next at each of these offsets, as far as it can be learned in a few seconds.

    Where an offset has no record (a marker, or compacted away), that is the next one that is there. Records of an
    open transaction count: people wait for them, too.
    """
    unread: dict[TopicPartition, dict[int, Unread]] = {each: {} for each in wanted}
    deadline = time.monotonic() + LOOK_SECONDS_MAX
    # Groups that stand at different offsets of one partition are looked up one after another.
    left = {each: sorted(offsets) for each, offsets in wanted.items()}
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
    """Looks at groups once or again and again; what it remembers of the last looks gives the rates."""

    def __init__(self, cluster: Cluster, names: Sequence[str], *, sample_seconds: float = 1.0) -> None:
        """The first look takes `sample_seconds` to learn rates; with 0 there are none."""
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
        return lags_of(groups, sample, before, look_at_unread(self._cluster, oldest_unread(groups, sample)))
