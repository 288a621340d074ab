"""Reading the log for share groups: which batches there are, which of them members may see, and where they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.broker.fetch.page_cache import cold_ranges
from millpond.broker.requests.replies import release_ranges
from millpond.log.aborted_transactions import Aborted
from millpond.wire.batch import BatchHeader, CorruptBatch, walk

if TYPE_CHECKING:
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.shares.acquisition import Acquired

READ_BYTES_MAX: Final = 1 << 20
"""One read of a partition, however many bytes the client takes."""
READ_BATCHES_MAX: Final = 500
"""One read of a partition; each batch takes the loop up to 20 microseconds until its records are acquired."""


class BatchRead(NamedTuple):
    """A batch that members may see, and its bytes."""

    first: int
    last: int
    range: FileRange
    record_count: int
    is_unlooked: bool
    """It may have something to say about the delivery of its records, and nobody has looked."""


class LookingFor(NamedTuple):
    """Which batches of a read have to be looked at."""

    first: int
    """Those with records from this offset on."""
    names: tuple[bytes, ...]
    """If they have one of these names, or are compressed."""
    all: bool = False
    """In any case."""

    def is_in(self, data: bytes, begin: int, end: int) -> bool:
        return any(data.find(name, begin, end) >= 0 for name in self.names)


class LogRead(NamedTuple):
    """An interval of the log. Its owner releases `ranges`."""

    first: int
    last: int
    """Everything from `first` to `last` was read."""
    batches: list[BatchRead]
    ranges: list[FileRange]
    batch_count: int
    """Also those that members may not see."""
    cold: list[FileRange]
    """Ranges that a worker has to bring into memory first; then nothing was read."""
    is_ahead: bool = False
    """It was read to look at it, not to deliver it."""

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(each.first, each.last) for each in self.batches]

    def release(self) -> None:
        release_ranges(self.ranges)

    def records(self, acquired: Sequence[Acquired]) -> list[FileRange]:
        """The batches with acquired records, retained; neighbours are one range."""
        kept: list[FileRange] = []
        left = iter(acquired)
        range_first, range_last = 0, -1
        for batch in self.batches:
            first, last, part = batch.first, batch.last, batch.range
            while range_last < first:
                following = next(left, None)
                if following is None:
                    return _retained(kept)
                range_first, range_last = following.first, following.last
            if range_first > last:
                continue
            if kept and kept[-1].file is part.file and kept[-1].position + kept[-1].length == part.position:
                kept[-1] = FileRange(part.file, kept[-1].position, kept[-1].length + part.length)
            else:
                kept.append(part)
        return _retained(kept)


def upper_offset(partition: Partition, *, committed_only: bool) -> int:
    """How far share groups may read."""
    return partition.last_stable_offset if committed_only else partition.committed_offset


def read_log(
    partition: Partition,
    first: int,
    bytes_max: int,
    *,
    committed_only: bool,
    is_warm: bool = False,
    looking_for: LookingFor | None = None,
) -> LogRead:
    """Read from `first` on: at least one batch, if there is one. Refused if the log cannot be read.

    With `is_warm` a worker has just read the same, and it is not asked again.
    """
    log, upper = partition.log, upper_offset(partition, committed_only=committed_only)
    aborted: list[Aborted] = []
    if committed_only and first < upper:
        aborted, end = log.aborted_between(first, upper)
        if first < end < upper:
            upper = end
    bytes_max = min(bytes_max, READ_BYTES_MAX)
    ranges, _ = partition.read(first, bytes_max, at_least_one_batch=True, upper_offset=upper)
    cold = [] if is_warm else cold_ranges(ranges)
    if cold:
        return LogRead(first, first - 1, [], ranges, 0, cold)
    try:
        last, batches, count = _visible_batches(ranges, first, upper, aborted, looking_for)
    except (OSError, CorruptBatch) as fault:
        release_ranges(ranges)
        code = ErrorCode.CORRUPT_MESSAGE if isinstance(fault, CorruptBatch) else ErrorCode.KAFKA_STORAGE_ERROR
        raise Refused(code, f"{partition.name}: {fault}") from fault
    return LogRead(first, last, batches, ranges, count, [])


def _visible_batches(
    ranges: Sequence[FileRange],
    first: int,
    upper: int,
    aborted: Sequence[Aborted],
    wanted: LookingFor | None,
) -> tuple[int, list[BatchRead], int]:
    """The offset up to which the ranges have been read, the batches that members may see, and how many were read."""
    batches: list[BatchRead] = []
    count, last = 0, first - 1
    aborted_by: dict[int, list[Aborted]] = {}
    for entry in aborted:
        aborted_by.setdefault(entry.producer_id, []).append(entry)
    for part in ranges:
        data = part.file.read_at(part.position, part.length)
        has_name = wanted is not None and wanted.is_in(data, 0, len(data))
        for position, header in walk(data):
            if header.base_offset >= upper or count == READ_BATCHES_MAX:
                return last, batches, count
            count += 1
            last = min(header.last_offset, upper - 1)
            if last >= first and _is_visible(header, aborted_by):
                place = FileRange(part.file, part.position + position, header.size)
                is_unlooked = (
                    wanted is not None
                    and last >= wanted.first
                    and (
                        wanted.all
                        or header.codec > 0
                        or (has_name and wanted.is_in(data, position, position + header.size))
                    )
                )
                batches.append(BatchRead(header.base_offset, last, place, header.record_count, is_unlooked))
    return last, batches, count


def _is_visible(header: BatchHeader, aborted_by: dict[int, list[Aborted]]) -> bool:
    if header.is_control or header.record_count == 0:
        return False
    if not aborted_by or not header.is_transactional:
        return True
    # Transactions of one producer follow each other: only the first that ends at or after the batch can contain it.
    entries = aborted_by.get(header.producer_id, [])
    index = bisect_left(entries, header.base_offset, key=_last_offset)
    return index == len(entries) or entries[index].first_offset > header.base_offset


def _last_offset(entry: Aborted) -> int:
    return entry.last_offset


def _retained(parts: list[FileRange]) -> list[FileRange]:
    for part in parts:
        part.file.retain()
    return parts
