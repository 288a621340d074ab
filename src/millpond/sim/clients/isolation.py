"""Which of the fetched records a consumer sees at its isolation level, and where it continues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millpond.wire import messages as m
from millpond.wire.batch import BatchHeader, check_batch, walk
from millpond.wire.records import Record, decode_batch

COMMIT: Final = b"\0\0\0\1"
"""The first bytes of the key of a commit marker."""


@dataclass(slots=True)
class Cursor:
    """Where a consumer is in one partition."""

    position: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    aborted: dict[int, None] = field(default_factory=dict)
    """Producers inside an aborted transaction at the current position."""


@dataclass(slots=True)
class PolledRecords:
    """Records of one partition, and where to continue once they are processed."""

    partition: int
    next_offset: int
    records: list[Record] = field(default_factory=list)


def visible_records(
    cursor: Cursor, part: m.FetchResponse.PartitionData, *, read_committed: bool
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Each batch with its records from the cursor on; control records and, if so asked, aborted ones are left out."""
    assert isinstance(part.records, memoryview), "a decoded reply holds its records as a view"
    data = bytes(part.records)
    aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
    for at, header in walk(data):
        check_batch(data, at, compacted=True)
        while aborted and aborted[0][0] <= header.last_offset:
            cursor.aborted[aborted.pop(0)[1]] = None
        records = [each for each in decode_batch(data, at) if each.offset >= cursor.position]
        if header.is_control:
            if any((each.key or b"")[:4] != COMMIT for each in records):
                cursor.aborted.pop(header.producer_id, None)
            records = []
        elif read_committed and header.is_transactional and header.producer_id in cursor.aborted:
            records = []
        yield header, records


def poll(
    cursor: Cursor, part: m.FetchResponse.PartitionData, records_max: int, *, read_committed: bool
) -> PolledRecords:
    """The first visible records from the cursor on."""
    polled = PolledRecords(part.partition_index, cursor.position)
    for header, records in visible_records(cursor, part, read_committed=read_committed):
        for record in records:
            if len(polled.records) >= records_max:
                return polled
            polled.records.append(record)
            polled.next_offset = record.offset + 1
        polled.next_offset = max(polled.next_offset, header.next_offset)
    return polled
