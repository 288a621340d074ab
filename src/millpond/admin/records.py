"""Looking at records: a page from any point on, a search through all, what is new; and writing one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from millpond.admin.errors import Leaderless, Refused, unknown_partition, unknown_topic
from millpond.admin.excerpts import Extent, RecordExcerpt, cut_record
from millpond.admin.offsets import Bounds, Last, Point, bounds_of, resolve
from millpond.admin.topics import find_topic, led_partitions
from millpond.base.ids import TopicPartition
from millpond.client.partitioner import by_key
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.offsets import Isolation
from millpond.remote.reader import read_range
from millpond.remote.writer import BatchWriter
from millpond.wire.records import Record

FETCH_BYTES: Final = 256 << 10
"""A page needs few records of each partition."""
LOOK_SECONDS: Final = 5.0
LEADERS_SECONDS: Final = 2.0
"""So often a tail asks who leads what, and after every look that failed."""
WRITE_SECONDS: Final = 15.0


class Readable(NamedTuple):
    """The partitions that can be read now, and the indexes of those that nobody leads."""

    led: list[TopicPartition]
    leaderless: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordPage:
    records: tuple[RecordExcerpt, ...]
    """By partition and offset where one partition was asked for; else by time."""
    bounds: Mapping[TopicPartition, Bounds]
    leaderless: tuple[int, ...]
    """Partitions that nobody can read now."""
    is_whole: bool
    """False: time was up before every partition was read."""


def readable(cluster: Cluster, topic: str, index: int | None) -> Readable:
    """One partition, or all of them that have a leader. Leaderless where there is none at all."""
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
    point: Point,
    limit: int,
    extent: Extent,
    *,
    isolation: Isolation = "read_uncommitted",
    seconds: float = LOOK_SECONDS,
) -> RecordPage:
    """At most `limit` records from the point on, of all partitions together."""
    deadline = time.monotonic() + seconds
    partitions, leaderless = readable(cluster, topic, index)
    bounds = bounds_of(cluster, partitions, isolation)
    starts = resolve(cluster, bounds, point)
    # The last ones of all, if it is the end that somebody wants to see; else the first.
    is_from_end = isinstance(point, Last)
    taken: list[RecordExcerpt] = []
    is_whole = True
    for partition, start in starts.items():
        if time.monotonic() > deadline:
            is_whole = False
            break
        left = limit
        for record in _records(cluster, partition, start, bounds[partition].end, isolation, FETCH_BYTES):
            taken.append(cut_record(partition.partition, record, extent))
            left -= 1
            if not left:
                break
            if time.monotonic() > deadline:
                is_whole = False
                break
        if len(starts) > 1:
            taken = _trimmed(taken, limit, is_from_end)
    return RecordPage(tuple(taken), bounds, leaderless, is_whole)


def _trimmed(records: list[RecordExcerpt], limit: int, is_from_end: bool) -> list[RecordExcerpt]:
    """So many at most, by time. With many partitions only these are ever held."""
    records.sort(key=lambda each: (each.timestamp_ms, each.partition, each.offset))
    return records[-limit:] if is_from_end else records[:limit]


@dataclass(frozen=True, slots=True)
class TailLook:
    records: list[RecordExcerpt]
    skipped: int
    """Records that came and are not among these, because they were too many."""
    leaderless: tuple[int, ...]


class RecordTail:
    """What comes to a topic from the first look on. A topic that is made anew is followed from its beginning."""

    def __init__(self, topic: str, index: int | None, isolation: Isolation, limit: int, extent: Extent) -> None:
        self._topic = topic
        self._index = index
        self._isolation: Isolation = isolation
        self._limit = limit
        self._extent = extent
        self._info: TopicInfo | None = None
        self._asked_at = 0.0
        self._topic_id: UUID | None = None
        self._there: frozenset[int] = frozenset()
        """The partitions that the topic had, whoever led them."""
        self._at: dict[TopicPartition, int] = {}

    def look(self, cluster: Cluster) -> TailLook:
        """What has come since the last look that went well."""
        deadline = time.monotonic() + LOOK_SECONDS
        info, self._info = self._leaders(cluster), None
        partitions, leaderless = _readable(info, self._index)
        is_first, is_new = self._topic_id is None, self._topic_id != info.topic_id
        at = {} if is_new else dict(self._at)
        records: list[RecordExcerpt] = []
        skipped = 0
        for partition, bound in bounds_of(cluster, partitions, self._isolation).items():
            # What was made since is new from its beginning; one that nobody led until now got nothing in that time.
            is_made = not is_first and (is_new or partition.partition not in self._there)
            since = max(bound.start, at.get(partition, bound.start if is_made else bound.end))
            at[partition] = max(since, bound.end)
            start = max(since, bound.end - self._limit)
            skipped += start - since
            if time.monotonic() > deadline:
                skipped += max(0, bound.end - start)
                continue
            for record in _records(cluster, partition, start, bound.end, self._isolation, FETCH_BYTES):
                records.append(cut_record(partition.partition, record, self._extent))
                if time.monotonic() > deadline:
                    skipped += bound.end - record.offset - 1
                    break
            came = len(records)
            records = _trimmed(records, self._limit, is_from_end=True)
            skipped += came - len(records)
        # Of a look that failed nothing was shown: only now are these records behind us.
        self._at, self._topic_id, self._info = at, info.topic_id, info
        self._there = frozenset(info.partitions)
        return TailLook(records, skipped, leaderless)

    def _leaders(self, cluster: Cluster) -> TopicInfo:
        if self._info is not None and time.monotonic() - self._asked_at < LEADERS_SECONDS:
            return self._info
        self._asked_at = time.monotonic()
        info = cluster.topics([self._topic]).get(self._topic)
        if info is None:
            raise unknown_topic(self._topic, cluster.topics())
        return info


def _records(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, isolation: Isolation, fetch_bytes: int
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
    ):
        yield from (each for each in batch.records() if start <= each.offset < end)


class RecordSearch:
    """Looks for a text in keys, values and headers, a while at a time, so that it can be watched and stopped."""

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
        """Partitions that are left out, because nobody leads them."""
        self._bounds = bounds_of(cluster, partitions, isolation)
        self._starts = resolve(cluster, self._bounds, point)
        self._matches = self._walk()
        self.total = sum(self._bounds[each].end - start for each, start in self._starts.items())
        """Offsets to look at; not each of them need have a record."""
        self.scanned = 0
        self.is_done = False

    def go_on(self, seconds: float, limit: int) -> list[RecordExcerpt]:
        """Search for so long; what was found in that time."""
        deadline = time.monotonic() + seconds
        found: list[RecordExcerpt] = []
        for match in self._matches:
            if match is not None:
                found.append(match)
            if len(found) >= limit or time.monotonic() > deadline:
                return found
        self.is_done = True
        self.scanned = self.total
        return found

    def _walk(self) -> Iterator[RecordExcerpt | None]:
        """Every record, as None where it does not fit."""
        before = 0
        for partition, start in self._starts.items():
            end = self._bounds[partition].end
            for record in _records(self._cluster, partition, start, end, self._isolation, 4 * FETCH_BYTES):
                self.scanned = before + record.offset + 1 - start
                yield cut_record(partition.partition, record, self._extent) if self._fits(record) else None
            before += end - start

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
    """Write one record, by its key if no partition is named; its partition and offset once it is acknowledged."""
    known = find_topic(cluster, topic).partitions
    if index is not None and index not in known:
        raise unknown_partition(topic, index, len(known))
    partition = TopicPartition(topic, by_key(key, len(known)) if index is None else index)
    record = Record(0, time.time_ns() // 1_000_000, key, value, headers)
    with cluster.twin() as writing, BatchWriter(writing, delivery_seconds=WRITE_SECONDS) as writer:
        writer.append_records(partition, [record])
        writer.flush()
        offset = writer.first_offsets.get(partition)
    if offset is None:
        raise Refused(f"The record was written to {partition}, but the broker does not say at which offset")
    return partition.partition, offset
