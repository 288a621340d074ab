"""Looking at records: a page from any point on, a search through all, what is new; and writing one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from millpond.admin.errors import Refused, unknown_partition
from millpond.admin.offsets import Bounds, Point, bounds_of, resolve
from millpond.admin.topics import find_topic
from millpond.base.ids import TopicPartition
from millpond.client.partitioner import by_key
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation
from millpond.remote.reader import read_range
from millpond.remote.writer import BatchWriter
from millpond.wire.records import Record

FETCH_BYTES: Final = 256 << 10
"""A page needs few records of each partition."""
WRITE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class FoundRecord:
    partition: int
    record: Record


@dataclass(frozen=True, slots=True)
class RecordPage:
    records: tuple[FoundRecord, ...]
    """By partition and offset where one partition was asked for; else by time."""
    bounds: Mapping[TopicPartition, Bounds]
    is_whole: bool
    """False: time was up before every partition was read."""


def partitions_of(cluster: Cluster, topic: str, index: int | None) -> list[TopicPartition]:
    """One partition, or all of them."""
    known = find_topic(cluster, topic).partitions
    if index is not None and index not in known:
        raise unknown_partition(topic, index, len(known))
    return [TopicPartition(topic, each) for each in (sorted(known) if index is None else [index])]


def read_page(
    cluster: Cluster,
    partitions: list[TopicPartition],
    point: Point,
    limit: int,
    *,
    isolation: Isolation = "read_uncommitted",
    seconds: float = 5.0,
) -> RecordPage:
    """At most `limit` records from the point on, of all partitions together."""
    deadline = time.monotonic() + seconds
    bounds = bounds_of(cluster, partitions, isolation)
    starts = resolve(cluster, bounds, point)
    taken: list[FoundRecord] = []
    is_whole = True
    for partition, start in starts.items():
        if time.monotonic() > deadline:
            is_whole = False
            break
        taken += _first(cluster, partition, start, bounds[partition].end, limit, isolation)
    if len(partitions) > 1:
        taken.sort(key=lambda each: (each.record.timestamp, each.partition, each.record.offset))
        # The last ones of all, if it is the end that somebody wants to see; else the first.
        taken = taken[-limit:] if _is_from_end(bounds, starts) else taken[:limit]
    return RecordPage(tuple(taken[:limit]), bounds, is_whole)


def read_new(
    cluster: Cluster, at: dict[TopicPartition, int], limit: int, isolation: Isolation = "read_uncommitted"
) -> tuple[list[FoundRecord], int]:
    """What has come since the offsets `at`, which are moved on, and how many of it were too many to be read."""
    new: list[FoundRecord] = []
    skipped = 0
    for partition, bound in bounds_of(cluster, at, isolation).items():
        start = max(bound.start, at[partition], bound.end - limit)
        skipped += max(0, start - at[partition])
        if start < bound.end:
            new += _first(cluster, partition, start, bound.end, limit, isolation)
        at[partition] = max(at[partition], bound.end)
    new.sort(key=lambda each: (each.record.timestamp, each.partition, each.record.offset))
    return new, skipped


def _is_from_end(bounds: Mapping[TopicPartition, Bounds], starts: Mapping[TopicPartition, int]) -> bool:
    return any(starts[each] > bound.start for each, bound in bounds.items())


def _first(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, limit: int, isolation: Isolation
) -> Iterator[FoundRecord]:
    left = limit
    for record in _records(cluster, partition, start, end, isolation, FETCH_BYTES):
        yield FoundRecord(partition.partition, record)
        left -= 1
        if not left:
            return


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
        self, cluster: Cluster, partitions: list[TopicPartition], point: Point, text: str, isolation: Isolation
    ) -> None:
        self._cluster = cluster
        self._isolation: Isolation = isolation
        self._needle = text.encode().lower()
        self._bounds = bounds_of(cluster, partitions, isolation)
        self._starts = resolve(cluster, self._bounds, point)
        self._matches = self._walk()
        self.total = sum(self._bounds[each].end - start for each, start in self._starts.items())
        """Offsets to look at; not each of them need have a record."""
        self.scanned = 0
        self.is_done = False

    def go_on(self, seconds: float, limit: int) -> list[FoundRecord]:
        """Search for so long; what was found in that time."""
        deadline = time.monotonic() + seconds
        found: list[FoundRecord] = []
        for match in self._matches:
            if match is not None:
                found.append(match)
            if len(found) >= limit or time.monotonic() > deadline:
                return found
        self.is_done = True
        self.scanned = self.total
        return found

    def _walk(self) -> Iterator[FoundRecord | None]:
        """Every record, as None where it does not fit."""
        before = 0
        for partition, start in self._starts.items():
            end = self._bounds[partition].end
            for record in _records(self._cluster, partition, start, end, self._isolation, 4 * FETCH_BYTES):
                self.scanned = before + record.offset + 1 - start
                yield FoundRecord(partition.partition, record) if self._fits(record) else None
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
    partitions = partitions_of(cluster, topic, index)
    partition = partitions[0] if index is not None else partitions[by_key(key, len(partitions))]
    record = Record(0, time.time_ns() // 1_000_000, key, value, headers)
    with cluster.twin() as writing, BatchWriter(writing, delivery_seconds=WRITE_SECONDS) as writer:
        writer.append_records(partition, [record])
        writer.flush()
        offset = writer.first_offsets.get(partition)
    if offset is None:
        raise Refused(f"The record was written to {partition}, but the broker does not say at which offset")
    return partition.partition, offset
