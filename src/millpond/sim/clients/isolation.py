"""What a simulated consumer makes of a fetch: which records it is shown, and where it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from millpond.wire import messages as m
from millpond.wire.batch import check_batch, walk
from millpond.wire.records import Record, decode_batch

COMMIT: Final = b"\0\0\0\1"
"""How the key of a marker begins that commits a transaction."""


@dataclass(slots=True)
class Cursor:
    """Where a consumer is in one partition."""

    position: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    aborted: dict[int, None] = field(default_factory=dict)
    """Producers inside an aborted transaction, where we are."""


@dataclass(slots=True)
class Taken:
    """Records of one partition, and where to go on once they are done."""

    partition: int
    next_offset: int
    records: list[Record] = field(default_factory=list)


def take(cursor: Cursor, part: m.FetchResponse.PartitionData, records_max: int, *, read_committed: bool) -> Taken:
    """The first records from the cursor on. Markers are not shown, nor to some readers aborted records."""
    taken = Taken(part.partition_index, cursor.position)
    assert isinstance(part.records, memoryview), "a decoded reply holds its records as a view"
    data = bytes(part.records)
    aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
    for at, header in walk(data):
        check_batch(data, at, compacted=True)
        while aborted and aborted[0][0] <= header.last_offset:
            cursor.aborted[aborted.pop(0)[1]] = None
        if header.next_offset <= cursor.position:
            continue
        records = [each for each in decode_batch(data, at) if each.offset >= cursor.position]
        if header.is_control:
            if any((each.key or b"")[:4] != COMMIT for each in records):
                cursor.aborted.pop(header.producer_id, None)
            taken.next_offset = header.next_offset
            continue
        is_hidden = read_committed and header.is_transactional and header.producer_id in cursor.aborted
        for record in () if is_hidden else records:
            if len(taken.records) >= records_max:
                return taken
            taken.records.append(record)
            taken.next_offset = record.offset + 1
        taken.next_offset = header.next_offset
    return taken
