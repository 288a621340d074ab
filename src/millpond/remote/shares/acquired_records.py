"""Decode the records of a ShareFetch response: those that were acquired, and the offsets without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millpond.base.errors import MalformedMessage, RemoteError
from millpond.base.ports import Buffer
from millpond.wire import kernel
from millpond.wire.batch import CONTROL, CorruptBatch
from millpond.wire.records import Record, decode_batch

OFFSETS_MAX: Final = 1_000_000
"""Offsets that one response may acquire; a partition has at most a few thousand locks."""


@dataclass(slots=True)
class AcquiredRecords:
    records: list[tuple[Record, int]] = field(default_factory=list)
    """With their delivery counts."""
    gaps: list[int] = field(default_factory=list)
    """Offsets without a record: compaction removed it, or the batch is a control batch."""
    unreadable: list[int] = field(default_factory=list)
    """Offsets of records that are damaged or not in the response."""
    fault: str = ""


def decode_acquired(data: Buffer, ranges: Sequence[tuple[int, int, int]]) -> AcquiredRecords:
    """`ranges` are first offset, last offset and delivery count."""
    if sum(max(last - first + 1, 0) for first, last, _ in ranges) > OFFSETS_MAX:
        raise MalformedMessage(f"more than {OFFSETS_MAX} offsets were acquired at once")
    result = AcquiredRecords()
    try:
        scanned = kernel.scan(data, 0, len(data), True) if len(data) else []
    except CorruptBatch as fault:
        scanned, result.fault = [], str(fault)
    found: dict[int, Record] = {}
    damaged: list[tuple[int, int]] = []
    for batch in scanned:
        if batch.attributes & CONTROL or not _overlaps(batch.base_offset, batch.last_offset, ranges):
            continue
        try:
            found.update((each.offset, each) for each in decode_batch(data, batch.position))
        except RemoteError as fault:
            damaged.append((batch.base_offset, batch.last_offset))
            result.fault = str(fault)
    end = scanned[-1].last_offset if scanned else -1
    for first, last, deliveries in ranges:
        for offset in range(first, last + 1):
            record = found.get(offset)
            if record is not None:
                result.records.append((record, deliveries))
            elif offset > end or any(begin <= offset <= until for begin, until in damaged):
                result.unreadable.append(offset)
            else:
                result.gaps.append(offset)
    return result


def _overlaps(begin: int, end: int, ranges: Sequence[tuple[int, int, int]]) -> bool:
    return any(first <= end and begin <= last for first, last, _ in ranges)
