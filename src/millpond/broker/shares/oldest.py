"""Since when the oldest unfinished record of a share partition has been there: the timestamp of its batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.base.named_tuple import NamedTuple
from millpond.wire.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from millpond.base.ports import FileRange, Workers
    from millpond.broker.replication.partitions import Partition


class _Batch(NamedTuple):
    first: int
    """The offset for which it was read."""
    last: int
    timestamp_ms: int
    """-1 if the batch has no records for members."""


class OldestRecord:
    """The batch of the oldest unfinished record, as far as anyone has asked for it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._batch: _Batch | None = None

    def knows(self, start_offset: int) -> bool:
        return self._batch is not None and self._batch.first <= start_offset <= self._batch.last

    def timestamp_ms(self, start_offset: int) -> int:
        """-1 if it is unknown, or if all records are finished."""
        return self._batch.timestamp_ms if self._batch is not None and self.knows(start_offset) else -1

    def range(self, start_offset: int) -> FileRange | None:
        """Where the header of the batch is; the caller releases it."""
        try:
            upper = self._partition.committed_offset
            return self._partition.log.read(start_offset, HEADER_BYTES, upper_offset=upper).range
        except Refused:
            # The log begins at a later offset, is being truncated, or has failed.
            return None

    def note(self, batch: _Batch | None) -> None:
        self._batch = batch


def find_oldest(workers: Workers, wanted: Iterable[tuple[OldestRecord, int]]) -> Later[None]:
    """Read the batches at these start offsets, as far as they are not known, on a worker."""
    reads: list[tuple[OldestRecord, int, FileRange]] = []
    for oldest, start_offset in wanted:
        part = None if oldest.knows(start_offset) else oldest.range(start_offset)
        if part is not None:
            reads.append((oldest, start_offset, part))
    if not reads:
        return done(None)

    def note(found: Sequence[_Batch | None]) -> None:
        for (oldest, _, part), batch in zip(reads, found, strict=True):
            part.file.release()
            oldest.note(batch)

    return workers.run(lambda: [_read(first, part) for _, first, part in reads]).map(note)


def _read(first: int, part: FileRange) -> _Batch | None:
    try:
        header = read_header(part.file.read_at(part.position, HEADER_BYTES))
    except OSError:
        return None
    has_records = header.record_count > 0 and not header.is_control
    return _Batch(first, header.last_offset, header.base_timestamp if has_records else -1)
