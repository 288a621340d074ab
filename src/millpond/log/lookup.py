"""Finding records by time, exact to the record: the indexes lead to a batch, and only that batch is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.wire.batch import BatchHeader
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
        for position, header in segment.batches_from_timestamp(timestamp, log.start_offset):
            for record in _decode(segment, position, header):
                if record.offset >= upper_offset:
                    return None
                if record.timestamp >= timestamp and record.offset >= log.start_offset:
                    return Found(record.timestamp, record.offset, header.leader_epoch)
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
    if segment.max_timestamp_offset >= start_offset:
        for position, header in segment.batches_from(segment.max_timestamp_offset):
            found = _latest(segment, position, header, start_offset)
            if found is not None and found.timestamp == segment.max_timestamp:
                return found
            break
    # The record that had it was deleted from the front or compacted away: look at every batch.
    best: Found | None = None
    for position, header in segment.batches_from(start_offset):
        if best is None or header.max_timestamp > best.timestamp:
            found = _latest(segment, position, header, start_offset)
            if found is not None and (best is None or found.timestamp > best.timestamp):
                best = found
    return best


def _latest(segment: Segment, position: int, header: BatchHeader, start_offset: int) -> Found | None:
    """The first record of the batch with its largest timestamp."""
    records = [record for record in _decode(segment, position, header) if record.offset >= start_offset]
    latest = max(records, key=lambda record: (record.timestamp, -record.offset), default=None)
    if latest is None or latest.timestamp == NO_TIMESTAMP:
        return None
    return Found(latest.timestamp, latest.offset, header.leader_epoch)


def _decode(segment: Segment, position: int, header: BatchHeader) -> list[Record]:
    # Compaction may have emptied a batch without changing what its header says of times.
    return decode_batch(segment.file.read_at(position, header.size)) if header.record_count else []
