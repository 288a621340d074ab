"""Read a page of records from any point, search, and tail; and write a single record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final
from uuid import UUID

from millpond.admin.errors import Leaderless, Refused, unknown_partition, unknown_topic
from millpond.admin.excerpts import Extent, RecordExcerpt, cut_record
from millpond.admin.offsets import Bounds, End, Last, Point, Since, bounds_of, resolve
from millpond.admin.topics import find_topic, led_partitions
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.client.partitioner import by_key
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.offsets import Isolation
from millpond.remote.reader import IsUp, read_range
from millpond.remote.writer import BatchWriter
from millpond.wire.records import Record

FETCH_BYTES: Final = 256 << 10
"""Small, because a page needs few records of each partition."""
LOOK_SECONDS: Final = 5.0
LEADERS_SECONDS: Final = 2.0
"""How often a tail refreshes the leaders; it also does so after a failed read."""
WRITE_SECONDS: Final = 15.0


class _Watch:
    """The deadline of a read and its offset in the current partition; polled by the readers."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self.is_up = False
        """Whether a reader has seen the deadline pass."""
        self.at = 0

    def __call__(self, at: int) -> bool:
        self.at = at
        self.is_up = self.is_up or time.monotonic() > self._deadline
        return self.is_up


class Readable(NamedTuple):
    """The readable partitions, and the indexes of those without a leader."""

    led: list[TopicPartition]
    leaderless: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordPage:
    records: tuple[RecordExcerpt, ...]
    """Ordered by time, as far as the order within each partition allows."""
    bounds: Mapping[TopicPartition, Bounds]
    shown: Mapping[TopicPartition, Bounds]
    """The range of each partition that is completely shown. The adjacent pages begin before and after it."""
    leaderless: tuple[int, ...]
    """Partitions without a leader, which cannot be read."""
    is_whole: bool
    """False: time ran out before every partition was read."""


@dataclass(frozen=True, slots=True)
class Before:
    """The last records before these offsets, by partition."""

    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class After:
    """The first records from these offsets on, by partition."""

    starts: Mapping[int, int]


def readable(cluster: Cluster, topic: str, index: int | None) -> Readable:
    """One partition, or all that have a leader. Raises Leaderless if none has."""
    return _readable(find_topic(cluster, topic), index)


def _readable(info: TopicInfo, index: int | None) -> Readable:
    if index is not None and index not in info.partitions:
        raise unknown_partition(info.name, index, len(info.partitions))
    led = [each for each in led_partitions([info]) if index is None or each.partition == index]
    if not led:
        what = f"No partition of {info.name} has a" if index is None else f"{info.name}[{index}] has no"
        raise Leaderless(f"{what} leader now: its records can be read when a node that holds them is back.")
    there: Iterable[int] = info.partitions if index is None else [index]
    return Readable(led, tuple(sorted(set(there) - {each.partition for each in led})))


def read_page(
    cluster: Cluster,
    topic: str,
    index: int | None,
    point: Point | Before | After,
    limit: int,
    extent: Extent,
    *,
    isolation: Isolation = "read_uncommitted",
    seconds: float = LOOK_SECONDS,
) -> RecordPage:
    """At most `limit` records from the given point, across all partitions."""
    watch = _Watch(seconds)
    partitions, leaderless = readable(cluster, topic, index)
    bounds = bounds_of(cluster, partitions, isolation)
    # Keep the last records if the page is read from the end, otherwise the first.
    is_from_end = isinstance(point, Last | Before)
    spans = _spans(cluster, bounds, point, limit)
    taken: list[_Placed] = []
    read: dict[TopicPartition, _Read] = {}
    for partition, (start, end) in spans.items():
        if watch(start):
            # No record of this partition is shown: the next page begins where this one would have.
            edge = end if is_from_end else start
            read[partition] = _Read(Bounds(edge, edge), 0)
            continue
        own: list[RecordExcerpt] = []
        for record in _records(cluster, partition, start, end, isolation, FETCH_BYTES, watch):
            own.append(cut_record(partition.partition, record, extent))
            if len(own) == limit or watch(record.offset + 1):
                reached = record.offset + 1
                break
        else:
            # Time may have run out in a stretch without visible records.
            reached = watch.at if watch.is_up else end
        read[partition] = _Read(Bounds(start, reached), len(own))
        # With many partitions, only these records are kept in memory.
        taken = sorted([*taken, *_placed(own, is_from_end)], key=lambda each: each[:3])
        taken = taken[-limit:] if is_from_end else taken[:limit]
    shown = _shown(taken, read, is_from_end)
    return RecordPage(tuple(each.record for each in taken), bounds, shown, leaderless, not watch.is_up)


def _spans(
    cluster: Cluster, bounds: Mapping[TopicPartition, Bounds], point: Point | Before | After, limit: int
) -> dict[TopicPartition, Bounds]:
    """The range to read of each partition. A partition absent from the last page has none."""
    match point:
        case Before(ends):
            edges = {each: _within(bound, ends.get(each.partition, bound.start)) for each, bound in bounds.items()}
            return {each: Bounds(max(bounds[each].start, edge - limit), edge) for each, edge in edges.items()}
        case After(starts):
            return {
                each: Bounds(_within(bound, starts.get(each.partition, bound.end)), bound.end)
                for each, bound in bounds.items()
            }
        case _:
            return {each: Bounds(start, bounds[each].end) for each, start in resolve(cluster, bounds, point).items()}


def _within(bound: Bounds, offset: int) -> int:
    return min(max(bound.start, offset), bound.end)


class _Placed(NamedTuple):
    """A record with its sort position across all partitions."""

    moment_ms: int
    partition: int
    offset: int
    record: RecordExcerpt


def _placed(records: list[RecordExcerpt], is_from_end: bool) -> list[_Placed]:
    """Sort positions of one partition's records. Timestamps may go back, but log order is preserved.

    Otherwise a record between two shown ones would be on no page at all.
    """
    stamps = [each.timestamp_ms for each in records]
    moments = list(accumulate(reversed(stamps), min))[::-1] if is_from_end else list(accumulate(stamps, max))
    return [_Placed(moment, each.partition, each.offset, each) for moment, each in zip(moments, records, strict=True)]


class _Read(NamedTuple):
    bounds: Bounds
    records: int
    """The number of records."""


def _shown(
    taken: list[_Placed], read: Mapping[TopicPartition, _Read], is_from_end: bool
) -> dict[TopicPartition, Bounds]:
    offsets: dict[int, list[int]] = {each.partition: [] for each in read}
    for placed in taken:
        offsets[placed.partition].append(placed.offset)
    shown = {}
    for partition, ((start, end), records) in read.items():
        own = offsets[partition.partition]
        if len(own) == records:
            shown[partition] = Bounds(start, end)
        elif is_from_end:
            shown[partition] = Bounds(min(own, default=end), end)
        else:
            shown[partition] = Bounds(start, max(own, default=start - 1) + 1)
    return shown


def _newest(records: list[RecordExcerpt], limit: int) -> list[RecordExcerpt]:
    """At most `limit` records by time. With many partitions, only these are kept in memory."""
    records.sort(key=lambda each: (each.timestamp_ms, each.partition, each.offset))
    return records[-limit:]


@dataclass(frozen=True, slots=True)
class TailPage:
    records: list[RecordExcerpt]
    skipped: int
    """Records that arrived but are not shown, because there were too many."""
    leaderless: tuple[int, ...]


class RecordTail:
    """Follows a topic's new records from the first look on. A recreated topic is followed from its start."""

    def __init__(self, topic: str, index: int | None, isolation: Isolation, limit: int, extent: Extent) -> None:
        self._topic = topic
        self._index = index
        self._isolation: Isolation = isolation
        self._limit = limit
        self._extent = extent
        self._info: TopicInfo | None = None
        self._leaders_at = 0.0
        self._topic_id: UUID | None = None
        self._there: frozenset[int] = frozenset()
        """The topic's partitions, with or without a leader."""
        self._began_ms: int | None = None
        self._at: dict[TopicPartition, int] = {}

    def read_new(self, cluster: Cluster) -> TailPage:
        """The records since the last successful look."""
        watch = _Watch(LOOK_SECONDS)
        is_first = self._began_ms is None
        if self._began_ms is None:
            self._began_ms = time.time_ns() // 1_000_000
        info, self._info = self._leaders(cluster), None
        partitions, leaderless = _readable(info, self._index)
        at = {} if self._topic_id != info.topic_id else dict(self._at)
        records: list[RecordExcerpt] = []
        skipped = 0
        bounds = bounds_of(cluster, partitions, self._isolation)
        unseen = {each: bound for each, bound in bounds.items() if each not in at}
        at |= resolve(cluster, unseen, End()) if is_first else self._begins(cluster, info, unseen)
        for partition, bound in bounds.items():
            since = max(bound.start, at[partition])
            at[partition] = max(since, bound.end)
            start = max(since, bound.end - self._limit)
            skipped += start - since
            if watch(start):
                skipped += max(0, bound.end - start)
                continue
            for record in _records(cluster, partition, start, bound.end, self._isolation, FETCH_BYTES, watch):
                records.append(cut_record(partition.partition, record, self._extent))
                if watch(record.offset + 1):
                    break
            if watch.is_up:
                skipped += max(0, bound.end - watch.at)
            came = len(records)
            records = _newest(records, self._limit)
            skipped += came - len(records)
        # A failed look has shown nothing, so advance only now.
        self._at, self._topic_id, self._info = at, info.topic_id, info
        self._there = frozenset(info.partitions)
        return TailPage(records, skipped, leaderless)

    def _begins(
        self, cluster: Cluster, info: TopicInfo, unseen: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int]:
        """The start offsets of partitions that this tail has not read before.

        A partition created since is new from its start. For one that had no leader until now, the end was unknown: it
        is followed from this look on.
        """
        assert self._began_ms is not None
        is_recreated = self._topic_id != info.topic_id
        begins: dict[TopicPartition, int] = {}
        late: dict[TopicPartition, Bounds] = {}
        for each, bound in unseen.items():
            if self._topic_id is not None and (is_recreated or each.partition not in self._there):
                begins[each] = bound.start
            else:
                late[each] = bound
        return begins | (resolve(cluster, late, Since(self._began_ms)) if late else {})

    def _leaders(self, cluster: Cluster) -> TopicInfo:
        if self._info is not None and time.monotonic() - self._leaders_at < LEADERS_SECONDS:
            return self._info
        self._leaders_at = time.monotonic()
        info = cluster.topics([self._topic]).get(self._topic)
        if info is None:
            raise unknown_topic(self._topic, cluster.topics())
        return info


def _records(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    isolation: Isolation,
    fetch_bytes: int,
    is_up: IsUp,
) -> Iterator[Record]:
    patience = cluster.patience_seconds
    for batch in read_range(
        cluster,
        partition,
        start,
        end,
        isolation=isolation,
        fetch_bytes=fetch_bytes,
        patience_seconds=patience,
        is_up=is_up,
    ):
        yield from (each for each in batch.records() if start <= each.offset < end)


class RecordSearch:
    """Searches keys, values and headers for a text in steps, so that it can report progress and be stopped."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        index: int | None,
        point: Point,
        text: str,
        extent: Extent,
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        self._cluster = cluster
        self._isolation: Isolation = isolation
        self._extent = extent
        self._needle = text.encode().lower()
        partitions, self.leaderless = readable(cluster, topic, index)
        """Partitions skipped because they have no leader."""
        self._bounds = bounds_of(cluster, partitions, isolation)
        self._starts = resolve(cluster, self._bounds, point)
        self._matches = self._walk()
        self._watch = _Watch(0.0)
        self.total = sum(self._bounds[each].end - start for each, start in self._starts.items())
        """Offsets to read; not every offset holds a record."""
        self.scanned = 0
        self.is_done = False

    def run_for(self, seconds: float, limit: int) -> list[RecordExcerpt]:
        """Search for `seconds`; returns the matches found."""
        self._watch = _Watch(seconds)
        matches: list[RecordExcerpt] = []
        for match in self._matches:
            if match is not None:
                matches.append(match)
            if len(matches) >= limit or self._watch(self._watch.at):
                return matches
        self.is_done = True
        self.scanned = self.total
        return matches

    def _walk(self) -> Iterator[RecordExcerpt | None]:
        """Yield each match, None for each other record, and None when time is up before a record arrives."""
        before = 0
        for partition, start in self._starts.items():
            at, end = start, self._bounds[partition].end
            while at < end:
                for record in self._records(partition, at, end):
                    self.scanned = before + record.offset + 1 - start
                    yield cut_record(partition.partition, record, self._extent) if self._fits(record) else None
                if not self._watch.is_up:
                    break
                # The read stopped midway; continue from here in the next step.
                at = self._watch.at
                self.scanned = before + at - start
                yield None
            before += end - start

    def _records(self, partition: TopicPartition, start: int, end: int) -> Iterator[Record]:
        # Look up the watch on each call: every step has a new one, and this read may span many steps.
        def is_up(at: int) -> bool:
            return self._watch(at)

        return _records(self._cluster, partition, start, end, self._isolation, 4 * FETCH_BYTES, is_up)

    def _fits(self, record: Record) -> bool:
        return any(self._needle in data.lower() for data in _texts(record))


def _texts(record: Record) -> Iterable[bytes]:
    yield record.key or b""
    yield record.value or b""
    for name, value in record.headers:
        yield name.encode() + b"=" + (value or b"")


def write_record(
    cluster: Cluster,
    topic: str,
    index: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> tuple[int, int]:
    """Write one record, partitioned by key unless a partition is given; returns its partition and offset."""
    partitions = find_topic(cluster, topic).partitions
    if index is not None and index not in partitions:
        raise unknown_partition(topic, index, len(partitions))
    partition = TopicPartition(topic, by_key(key, len(partitions)) if index is None else index)
    record = Record(0, time.time_ns() // 1_000_000, key, value, headers)
    with cluster.twin() as writing, BatchWriter(writing, delivery_seconds=WRITE_SECONDS) as writer:
        writer.append_records(partition, [record])
        writer.flush()
        offset = writer.first_offsets.get(partition)
    if offset is None:
        raise Refused(f"The record was written to {partition}, but the broker does not say at which offset")
    return partition.partition, offset
