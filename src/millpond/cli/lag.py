"""How far a group is behind: in records, in time, and how soon it will have caught up.

A sample is what the cluster says at one moment; two of them give rates. How old the oldest unread record is, is read
from the record itself: one fetch for each partition that lags.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millpond.cli.connect import Cluster, topics_of
from millpond.cli.groups import Group, committed_offsets
from millpond.cli.offsets import Bounds, Partition, bounds_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

AGES_SECONDS_MAX: Final = 3.0
AGES_MAX: Final = 500
"""Of so many partitions, those with the largest lag, the oldest unread record is looked up."""

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Sample:
    """Committed offsets by group and the partitions' bounds, at one moment."""

    at_seconds: float
    committed: Mapping[str, Mapping[Partition, int]]
    bounds: Mapping[Partition, Bounds]


def take_sample(admin: AdminClient, groups: Iterable[Group]) -> Sample:
    groups = list(groups)
    # Offsets before ends: the other way round a busy group would seem to be ahead of its topic.
    committed = committed_offsets(admin, [group.id for group in groups])
    wanted = {partition for offsets in committed.values() for partition in offsets}
    wanted.update(partition for group in groups for partition in group.owners)
    topics = topics_of(admin) if wanted else {}
    # A topic that has gone, or a partition without a leader, has nobody to ask.
    led = [
        (topic, index)
        for topic, index in sorted(wanted)
        if topic in topics and index in topics[topic].partitions and topics[topic].partitions[index].leader >= 0
    ]
    return Sample(time.monotonic(), committed, bounds_of(admin, led) if led else {})


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
    partitions: list[PartitionLag] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.partitions)

    @property
    def uncounted(self) -> int:
        """Records of partitions without a committed offset: where a reader would begin is its own affair."""
        return sum((each.end or 0) - (each.start or 0) for each in self.partitions if each.committed is None)

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


def lags_of(
    groups: Iterable[Group], sample: Sample, before: Sample | None, ages_ms: Mapping[Partition, Mapping[int, int]]
) -> list[GroupLag]:
    """`ages_ms` is the age of a record by partition and offset."""
    return [
        GroupLag(
            group,
            [
                _partition_lag(group, partition, sample, before, ages_ms.get(partition, {}))
                for partition in sorted(group.owners.keys() | sample.committed[group.id].keys())
            ],
        )
        for group in groups
    ]


def oldest_unread(sample: Sample) -> dict[Partition, set[int]]:
    """The offsets that the groups read next, where there is something to read; the largest lags first."""
    found: dict[Partition, set[int]] = {}
    lags: dict[Partition, int] = {}
    for offsets in sample.committed.values():
        for partition, committed in offsets.items():
            bound = sample.bounds.get(partition)
            if bound is not None and committed < bound.end:
                unread = max(committed, bound.start)
                found.setdefault(partition, set()).add(unread)
                lags[partition] = max(lags.get(partition, 0), bound.end - unread)
    return {each: found[each] for each in sorted(found, key=lambda each: -lags[each])[:AGES_MAX]}


def _partition_lag(
    group: Group, place: Partition, sample: Sample, before: Sample | None, ages_ms: Mapping[int, int]
) -> PartitionLag:
    committed = sample.committed[group.id].get(place)
    bound = sample.bounds.get(place)
    owner = group.owners.get(place)
    unread = None if committed is None or bound is None else max(committed, bound.start)
    was = before.committed.get(group.id, {}).get(place) if before else None
    old = before.bounds.get(place) if before else None
    seconds = sample.at_seconds - before.at_seconds if before else 0.0
    return PartitionLag(
        *place,
        member=owner.id if owner else None,
        start=bound.start if bound else None,
        end=bound.end if bound else None,
        committed=committed,
        lag=None if unread is None or bound is None else max(0, bound.end - unread),
        lost=0 if unread is None or committed is None else unread - committed,
        behind_ms=None if unread is None else ages_ms.get(unread),
        read_per_second=_rate(was, committed, seconds),
        written_per_second=_rate(old.end if old else None, bound.end if bound else None, seconds),
    )


def _rate(was: int | None, now: int | None, seconds: float) -> float | None:
    # Offsets that went back were reset: that is no reading.
    return max(0, now - was) / seconds if was is not None and now is not None and seconds > 0 else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class Ages:
    """Looks up how old single records are."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._consumer: Consumer | None = None

    def of(self, wanted: Mapping[Partition, set[int]]) -> dict[Partition, dict[int, int]]:
        """Milliseconds since each record's timestamp, as far as they can be learned in a few seconds.

        An offset without a record (a marker, or compacted away) has the age of the next one that is there.
        """
        if not wanted:
            return {}
        if self._consumer is None:
            self._consumer = _one_record_consumer(self._cluster)
            # A client that has not heard of the leaders looks for them for seconds.
            topics_of(self._consumer)
        found: dict[Partition, dict[int, int]] = {each: {} for each in wanted}
        deadline = time.monotonic() + AGES_SECONDS_MAX
        # Groups that stand at different places of one partition are looked up one after another.
        left = {each: sorted(offsets) for each, offsets in wanted.items()}
        while left and time.monotonic() < deadline:
            step = {each: offsets.pop(0) for each, offsets in left.items()}
            for each, timestamp_ms in self._first_timestamps(step, deadline).items():
                found[each][step[each]] = max(0, time.time_ns() // 1_000_000 - timestamp_ms)
            left = {each: offsets for each, offsets in left.items() if offsets}
        return found

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _first_timestamps(self, offsets: Mapping[Partition, int], deadline: float) -> dict[Partition, int]:
        from confluent_kafka import TopicPartition

        assert self._consumer is not None
        found: dict[Partition, int] = {}
        left = set(offsets)
        self._consumer.assign([TopicPartition(topic, index, at) for (topic, index), at in offsets.items()])
        while left and time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            topic, index = message.topic(), message.partition()
            if topic is None or index is None or (topic, index) not in left:
                continue
            left.discard((topic, index))
            if message.error() is None and message.timestamp()[1] >= 0:
                found[topic, index] = message.timestamp()[1]
            # The rest of its batch is of no interest.
            self._consumer.incremental_unassign([TopicPartition(topic, index)])
        self._consumer.unassign()
        return found


def _one_record_consumer(cluster: Cluster) -> Consumer:
    return cluster.consumer(
        # librdkafka insists on a name; no group comes into being, because nothing is subscribed or committed.
        group_id="millpond-lag",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="error",
        # Records of an open transaction count: people wait for them, too.
        isolation_level="read_uncommitted",
        # A broker gives the first batch whole, and no more than that.
        fetch_message_max_bytes=1,
        queued_min_messages=1,
        fetch_wait_max_ms=100,
        # With its queue full, or a leader not yet known, the library would rest for a while.
        fetch_queue_backoff_ms=10,
        fetch_error_backoff_ms=10,
    )
