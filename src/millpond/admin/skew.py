"""How evenly a topic's partitions are loaded, by which keys, and what would help.

The overview of all topics reads only partition sizes. The report on one topic reads the latest records of a time
range, the same share of each partition's records, so that the sample is as skewed as the whole.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from millpond.admin.dead_letters.letters import INTERNAL
from millpond.admin.errors import Refused
from millpond.admin.offsets import Beginning, Point, Since, bounds_of, resolve
from millpond.admin.topics import find_topic, led_partitions, partition_sizes
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.reader import read_records
from millpond.remote.skew import AS_IT_IS, HotKey, PartitionLoad, Prediction, Report, imbalance, judged
from millpond.wire.partitioner import murmur2
from millpond.wire.records import Record

EVEN: Final = 1.25
"""Up to this ratio of the busiest partition to the average, the load counts as even."""
HOTTEST: Final = 20
TIMES_MORE: Final = (2, 3, 4)
"""Multiples of the partition count to try."""
KEY_BYTES_MAX: Final = 128 << 20
"""Memory limit for the keys of one report."""
KEY_COST_BYTES: Final = 800
"""Memory cost of a key besides its own bytes, stored and derived."""


@dataclass(frozen=True, slots=True)
class TopicBalance:
    """The distribution of bytes over a topic's partitions."""

    topic: str
    partitions: int
    bytes: int
    busiest: int
    """The largest partition."""
    busiest_bytes: int
    imbalance: float


def topic_balances(cluster: Cluster) -> list[TopicBalance]:
    """All topics with more than one partition, most uneven first, without internal topics."""
    sizes = partition_sizes(cluster)
    balances = []
    for name, topic in cluster.topics().items():
        if name.startswith(INTERNAL) or len(topic.partitions) < 2:
            continue
        held = {
            index: sizes.get((each.leader, TopicPartition(name, index)), 0)
            for index, each in topic.partitions.items()
        }
        busiest = max(held, key=held.__getitem__)
        whole = sum(held.values())
        balances.append(TopicBalance(name, len(held), whole, busiest, held[busiest], imbalance(list(held.values()))))
    return sorted(balances, key=lambda each: (not each.bytes, -each.imbalance, each.topic))


@dataclass(frozen=True, slots=True)
class SkewFacts:
    report: Report
    records: int
    """Records written to the topic in the time range."""
    records_read: int
    """How many of the latest were read; if fewer than `records`, the report is an estimate."""
    is_estimate: bool


@dataclass(slots=True)
class _Sum:
    records: float = 0.0
    bytes: float = 0.0


class SkewAnalysis:
    """Samples a topic's records in steps, so that it can report progress and be stopped."""

    def __init__(self, cluster: Cluster, topic: str, since_ms: int | None, records_max: int) -> None:
        info = find_topic(cluster, topic)
        led = led_partitions([info])
        if len(led) < len(info.partitions):
            raise Refused(f"{topic} has partitions without a leader: try again when every partition has one.")
        self._cluster = cluster
        self._topic = topic
        bounds = bounds_of(cluster, led)
        point: Point = Beginning() if since_ms is None else Since(since_ms)
        starts = resolve(cluster, bounds, point)
        self._came = {each.partition: bounds[each].end - starts[each] for each in led}
        self.records = sum(self._came.values())
        share = min(1.0, records_max / self.records) if self.records else 0.0
        self._ranges = {
            each: (bounds[each].end - _part(self._came[each.partition], share), bounds[each].end) for each in led
        }
        self.total = sum(end - start for start, end in self._ranges.values())
        """Offsets to read; not every offset holds a record."""
        self.scanned = 0
        self.is_done = not self.total
        self._key_bytes = 0
        self._read: dict[int, _Sum] = defaultdict(_Sum)
        self._keys: dict[tuple[bytes | None, int], _Sum] = defaultdict(_Sum)
        self._walk = self._records()

    def run_for(self, seconds: float) -> None:
        """Read for `seconds`."""
        deadline = time.monotonic() + seconds
        for partition, record in self._walk:
            self._add(partition, record)
            if time.monotonic() > deadline or self._key_bytes > KEY_BYTES_MAX:
                break
        else:
            self.is_done, self.scanned = True, self.total
        if self._key_bytes > KEY_BYTES_MAX:
            self.is_done = True

    def _records(self) -> Iterator[tuple[int, Record]]:
        before = 0
        for partition, (start, end) in self._ranges.items():
            for record in read_records(self._cluster, partition, start, end):
                self.scanned = before + record.offset + 1 - start
                yield partition.partition, record
            before += end - start
            # Offsets without a record (control records, compacted records) do not count: assume the unread part has
            # the same share of them.
            read, index = self._read[partition.partition].records, partition.partition
            self._came[index] = round(self._came[index] * read / (end - start)) if end > start else 0

    def _add(self, partition: int, record: Record) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        held = (None if record.key is None else bytes(record.key), partition)
        if held not in self._keys:
            self._key_bytes += KEY_COST_BYTES + len(record.key or b"")
        for each in (self._read[partition], self._keys[held]):
            each.records += 1
            each.bytes += size

    def facts(self) -> SkewFacts:
        """The report so far."""
        read = {index: each.records for index, each in self._read.items()}
        # Scale what was read of a partition up to everything written to it.
        weights = {index: self._came[index] / records for index, records in read.items()}
        records_read = round(sum(read.values()))
        mean = sum(each.bytes for each in self._read.values()) / max(1, records_read)
        loads = tuple(
            PartitionLoad(
                index,
                came,
                # A partition not reached in time is assumed to have records of average size.
                round(self._read[index].bytes * weights[index] if index in weights else came * mean),
            )
            for index, came in sorted(self._came.items())
        )
        report = judged(_report(self._topic, loads, self._keys, weights), EVEN)
        is_sample = self.total < self.records or self.scanned < self.total
        return SkewFacts(report, sum(self._came.values()), records_read, is_sample)


def _part(came: int, share: float) -> int:
    return min(came, max(1, round(came * share))) if came else 0


def _report(
    topic: str,
    loads: tuple[PartitionLoad, ...],
    sums: Mapping[tuple[bytes | None, int], _Sum],
    weights: Mapping[int, float],
) -> Report:
    count = len(loads)
    keyless_bytes = keyless = followed_murmur2 = followed_crc32 = keyed = 0.0
    by_key: dict[bytes, _Sum] = defaultdict(_Sum)
    homes: dict[bytes, tuple[float, int]] = {}
    for (key, partition), each in sums.items():
        records, size = each.records * weights[partition], each.bytes * weights[partition]
        if key is None:
            keyless += records
            keyless_bytes += size
            continue
        keyed += records
        by_key[key].records += records
        by_key[key].bytes += size
        homes[key] = max(homes.get(key, (-1.0, 0)), (size, partition))
        followed_murmur2 += records * (_hash(key) % count == partition)
        followed_crc32 += records * (crc32(key) % count == partition)
    hottest = sorted(by_key, key=lambda key: (-by_key[key].bytes, key))[:HOTTEST]
    return Report(
        topic,
        loads,
        keys=len(by_key),
        keyless=round(keyless),
        hottest=tuple(
            HotKey(key, homes[key][1], round(by_key[key].records), round(by_key[key].bytes)) for key in hottest
        ),
        followed={"murmur2": followed_murmur2 / keyed, "crc32": followed_crc32 / keyed} if keyed else {},
        predictions=tuple(_predictions(by_key, keyless_bytes, count)),
    )


def _predictions(by_key: Mapping[bytes, _Sum], keyless_bytes: float, count: int) -> Iterator[Prediction]:
    hashes = [(_hash(key), each.bytes) for key, each in by_key.items()]
    for tried in (count, *(count * times for times in TIMES_MORE)):
        # Clients spread records without a key evenly.
        loads = [keyless_bytes / tried] * tried
        for number, size in hashes:
            loads[number % tried] += size
        yield Prediction(AS_IT_IS, tried, tuple(round(each) for each in loads))


def _hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF
