"""From an offset to the bytes that a consumer gets, without reading them."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ports import FileRange
from millpond.log.scan import Damaged
from millpond.wire.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from millpond.log.partition_log import PartitionLog


class LogSlice(NamedTuple):
    """Whole batches, except that the last may be cut. The file of the range is retained for whoever sends it."""

    range: FileRange | None
    first_offset: int
    """The base offset of the first batch; it may lie before the offset that was asked for."""


def read_slice(log: PartitionLog, offset: int, max_bytes: int, upper: int, min_one: bool) -> LogSlice:
    """Where the batches from `offset` on lie, within one segment and below offset `upper`."""
    if offset >= log.active.base_offset:
        candidates = [log.active]
    else:
        candidates = log.segments[max(bisect_right(log.bases, offset) - 1, 0) :]
    for segment in candidates:
        place = segment.locate(offset)
        if place is None:
            # Compaction left a hole up to the end of this segment.
            continue
        available = segment.position_of_end(upper) - place.position
        length = min(max_bytes, available)
        if length < place.size:
            length = place.size if min_one and available >= place.size else 0
        if length <= 0:
            break
        file = segment.file
        file.retain()
        if segment is not log.active and segment.base_offset not in log.debts.sealed_bases:
            # A file that owes a sync stays open: a new descriptor might not hear of a failed write.
            log.open_segments.touch(segment)
        return LogSlice(FileRange(file, place.position, length), place.base_offset)
    return LogSlice(None, offset)


def whole_batches(found: LogSlice) -> bytes:
    """The bytes of a slice, without the batch that was cut at its end."""
    if found.range is None:
        return b""
    try:
        data = found.range.file.read_at(found.range.position, found.range.length)
    finally:
        found.range.file.release()
    whole = 0
    while whole + HEADER_BYTES <= len(data):
        size = read_header(data, whole).size
        if size < HEADER_BYTES or whole + size > len(data):
            break
        whole += size
    return data[:whole]


def unreadable(folder: str, fault: OSError) -> Refused:
    code = ErrorCode.CORRUPT_MESSAGE if isinstance(fault, Damaged) else ErrorCode.KAFKA_STORAGE_ERROR
    return Refused(code, f"{folder}: {fault}")
