"""Finding records by time, exact to the record: the indexes lead to a batch, and only that batch is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.wire.records import Record, decode_batch

if TYPE_CHECKING:
    from millpond.log.partition_log import PartitionLog


class Found(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def find_by_timestamp(log: PartitionLog, timestamp: int, upper_offset: int) -> Found | None:
    """The first record of the log whose timestamp is at least this, below `upper_offset`."""
    for segment in log.segments:
        if segment.next_offset <= log.start_offset or segment.max_timestamp < timestamp:
            continue
        for epoch, record in _records_from(segment, timestamp, log.start_offset):
            if record.offset >= upper_offset:
                return None
            if record.timestamp >= timestamp and record.offset >= log.start_offset:
                return Found(record.timestamp, record.offset, epoch)
    return None


def max_timestamp(log: PartitionLog) -> Found | None:
    """The first record with the largest timestamp of all."""
    live = [segment for segment in log.segments if segment.next_offset > log.start_offset and segment.size]
    best: Found | None = None
    for segment in sorted(live, key=lambda segment: -segment.max_timestamp):
        if best is not None and segment.max_timestamp < best.timestamp:
            break
        found = _max_in(segment, log.start_offset)
        if found and (best is None or (found.timestamp, -found.offset) > (best.timestamp, -best.offset)):
            best = found
    return best


def _max_in(segment: Segment, start_offset: int) -> Found | None:
    wanted = segment.max_timestamp
    if segment.max_timestamp_offset < start_offset:
        # The record that had it was deleted from the front.
        wanted = max((header.max_timestamp for _, header in segment.batches_from(start_offset)), default=wanted)
    records = [
        Found(record.timestamp, record.offset, epoch)
        for epoch, record in _records_from(segment, wanted, start_offset, batches=1)
        if record.offset >= start_offset and record.timestamp > NO_TIMESTAMP
    ]
    return max(records, key=lambda found: (found.timestamp, -found.offset), default=None)


def _records_from(
    segment: Segment, timestamp: int, from_offset: int, batches: int | None = None
) -> Iterator[tuple[int, Record]]:
    """(leader epoch, record) of the batches that may hold this time."""
    seen = 0
    for position, header in segment.batches_from_timestamp(timestamp, from_offset):
        # Compaction may have emptied a batch without changing what its header says of times.
        if not header.record_count:
            continue
        for record in decode_batch(segment.file.read_at(position, header.size)):
            yield header.leader_epoch, record
        seen += 1
        if seen == batches:
            return
