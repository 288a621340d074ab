"""A segment of a partition's log: a file of batches with its indexes."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Set

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer, File
from millpond.log.aborted_transactions import Aborted, AbortedIndex
from millpond.log.index import SparseIndex, offset_index, time_index
from millpond.log.limits import LogLimits
from millpond.log.names import (
    INDEX_SUFFIXES,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TXN_INDEX,
    offset_name,
)
from millpond.log.open_files import CachedFile, OpenFiles
from millpond.log.producers import Ended
from millpond.log.scan import SCAN_BYTES, Damaged, Readable, checked, headers
from millpond.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header
from millpond.wire.kernel import ShortProduce

RELATIVE_OFFSET_MAX = (1 << 31) - 1
NO_TIMESTAMP = -1
_SMALL_BYTES = 1 << 16
"""A segment up to this size can do without an index."""
_NEVER = 1 << 62

RECENT_BATCHES_MAX = 1024

Walk = Callable[[Readable, int, int], Iterator[tuple[int, BatchHeader]]]


class BatchSpan(NamedTuple):
    """The position of one batch in its segment's file."""

    position: int
    size: int
    base_offset: int


class RecentBatches:
    """Base offsets and positions of a segment's newest batches, without gaps up to its end.

    With these, readers at the log end need neither index nor file.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def add(self, base_offset: int, position: int) -> None:
        self.offsets.append(base_offset)
        self.positions.append(position)
        if len(self.offsets) > RECENT_BATCHES_MAX:
            del self.offsets[: RECENT_BATCHES_MAX // 2]
            del self.positions[: RECENT_BATCHES_MAX // 2]

    def clear(self) -> None:
        self.offsets, self.positions = [], []

    def holding(self, offset: int, segment_size: int) -> BatchSpan | None:
        """The batch that holds `offset`, which is in the segment; None if it is not among the newest."""
        if not self.offsets or offset < self.offsets[0]:
            return None
        number = bisect_right(self.offsets, offset) - 1
        position = self.positions[number]
        end = self.positions[number + 1] if number + 1 < len(self.positions) else segment_size
        return BatchSpan(position, end - position, self.offsets[number])

    def position_from(self, offset: int, segment_size: int) -> int | None:
        """The position of the first batch that begins at or after `offset`; None if unknown."""
        if not self.offsets or offset < self.offsets[0]:
            return None
        number = bisect_left(self.offsets, offset)
        return self.positions[number] if number < len(self.positions) else segment_size

    def start_before(self, position: int) -> int:
        """The position of the last batch that begins at `position` or before; `position` if unknown."""
        number = bisect_right(self.positions, position) - 1
        return self.positions[number] if number >= 0 else position

    def offset_from(self, position: int) -> int | None:
        """The base offset of the first batch at or after `position`; None if unknown."""
        number = bisect_left(self.positions, position)
        return self.offsets[number] if 0 < number < len(self.offsets) else None


class Segment:
    """Batches from `base_offset` up to `next_offset`. Only the last segment of a log grows."""

    __slots__ = (
        "_aborted",
        "_begins",
        "_bytes_since_entry",
        "_files",
        "_log",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offsets",
        "_recent",
        "_times",
        "_unindexed_from",
        "appended_ms",
        "base_offset",
        "first_append_ms",
        "folder",
        "is_gone",
        "next_offset",
        "reads_only",
        "size",
        "stage",
    )

    def __init__(
        self, files: OpenFiles, folder: str, base_offset: int, next_offset: int, size: int, stage: str = ""
    ) -> None:
        self._files = files
        self.stage = stage
        """The suffix of file names while compaction writes the segment."""
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size = size
        # There may be a hundred thousand idle partitions: what only busy ones need is created on first use.
        self._offsets: SparseIndex | None = None
        self._times: SparseIndex | None = None
        self._aborted: AbortedIndex | None = None
        self._log: CachedFile | None = None
        self._recent: RecentBatches | None = None
        self._begins = False
        """Whether an index that does not exist yet begins empty and in memory, whatever its file holds."""
        self._unindexed_from: int | None = None
        """Set only while the batches are too few for an index entry and no index exists: the size at which both
        index files were complete, or -1 if they may not be."""
        self.appended_ms = NO_TIMESTAMP
        """The wall clock at the last append, as far as this process or a checkpoint knows."""
        self.first_append_ms: int | None = None
        # Not determined yet; a sealed segment's time index has it.
        self._max_timestamp: int | None = None
        self._max_timestamp_offset = -1
        self._bytes_since_entry = 0
        self.reads_only = False
        """Set on readers on other threads: they work around lost index entries, but do not rewrite the index."""
        self.is_gone = False
        """It was taken out of its log: its files may be deleted at any time."""

    @classmethod
    def create(cls, files: OpenFiles, folder: str, base_offset: int, stage: str = "") -> Segment:
        """A new, empty segment to append to."""
        segment = cls(files, folder, base_offset, base_offset, 0, stage)
        file = segment._cached_log().open(create=True)
        try:
            if file.size():
                file.truncate(0)
        except OSError:
            # The log continues without it: if it were left, recovery would take it for the next segment.
            segment.close()
            with contextlib.suppress(OSError):
                files.disk.remove(segment.path(LOG))
            raise
        segment._begins = True
        segment._max_timestamp = NO_TIMESTAMP
        return segment

    # Parts

    @property
    def offsets(self) -> SparseIndex:
        if self._offsets is None:
            if self._unindexed_from is not None:
                return self._index_few()[0]
            self._offsets = offset_index(self._files, self.path(OFFSET_INDEX))
            if self._begins:
                self._offsets.start()
        return self._offsets

    @property
    def times(self) -> SparseIndex:
        if self._times is None:
            if self._unindexed_from is not None:
                return self._index_few()[1]
            self._times = time_index(self._files, self.path(TIME_INDEX))
            if self._begins:
                self._times.start()
        return self._times

    def _index_few(self) -> tuple[SparseIndex, SparseIndex]:
        """Begin both indexes in memory, where the batches are too few for an entry."""
        self._unindexed_from = None
        self._offsets = offset_index(self._files, self.path(OFFSET_INDEX))
        self._times = time_index(self._files, self.path(TIME_INDEX))
        self._offsets.start()
        self._times.start()
        return self._offsets, self._times

    @property
    def aborted(self) -> AbortedIndex:
        if self._aborted is None:
            self._aborted = AbortedIndex(self._files, self.path(TXN_INDEX))
            if self._begins:
                self._aborted.start()
        return self._aborted

    def _cached_log(self) -> CachedFile:
        if self._log is None:
            self._log = CachedFile(self._files, self.path(LOG))
        return self._log

    def name(self, suffix: str) -> str:
        return f"{offset_name(self.base_offset, suffix)}{self.stage}"

    def path(self, suffix: str) -> str:
        return f"{self.folder}/{self.name(suffix)}"

    @property
    def file(self) -> File:
        return self._cached_log().open()

    @property
    def open_file(self) -> File | None:
        """The log file if it is open; None otherwise."""
        return self._log.open() if self._log is not None and self._log.is_open else None

    # Appending

    def write(self, batches: Buffer, *, urgent: bool = False) -> None:
        """Append to the file, which stays open until it is synced. OSError leaves a tail that must be cut off."""
        (self._log or self._cached_log()).open_to_write(urgent=urgent).append((batches,))

    def append_short(
        self, short: ShortProduce, offset: int, leader_epoch: int, now_ms: int, limits: LogLimits
    ) -> bool:
        """Write one small batch at `offset` and record it. OSError as with `write`.

        False, with nothing written, if it does not fit, or if determining the segment's age would need a read.
        """
        size = short.size
        last_offset = offset + short.record_count - 1
        first_append_ms = self.first_append_ms
        if (
            first_append_ms is None
            or now_ms - first_append_ms >= limits.segment_ms
            or not self.fits(size, last_offset, limits.segment_bytes, limits.index_bytes_max)
        ):
            return False
        short.stamp(offset, leader_epoch)
        (self._log or self._cached_log()).open_to_write(urgent=False).append((short.records,))
        self.note(offset, last_offset, short.max_timestamp, size, limits.index_interval_bytes)
        if now_ms > self.appended_ms:
            self.appended_ms = now_ms
        return True

    def cut_torn_tail(self) -> None:
        """Remove what a failed write may have left."""
        self.file.truncate(self.size)

    def unpin(self) -> None:
        """Everything written has been synced."""
        if self._log is not None:
            self._log.unpin()

    def note(self, base_offset: int, last_offset: int, max_timestamp: int, size: int, interval: int) -> None:
        """Record a batch that has just been written at the end of the file."""
        position = self.size
        assert self._max_timestamp is not None
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if self._bytes_since_entry > interval:
            self.offsets.add(last_offset - self.base_offset, position)
            self._add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.size = position + size
        recent = self._recent
        if recent is None:
            recent = self._recent = RecentBatches()
        elif base_offset != self.next_offset:
            # A leader has compacted the offsets in between, which would be attributed to the batch before.
            recent.clear()
        self.next_offset = last_offset + 1
        recent.add(base_offset, position)

    def note_ended(self, ended: Ended) -> None:
        if not ended.committed:
            self.aborted.add(Aborted(ended.producer_id, ended.first_offset, ended.last_offset, ended.stable_offset))

    def _add_time_entry(self) -> None:
        last = self.times.last()
        if self._max_timestamp is not None and self._max_timestamp > (last[0] if last else NO_TIMESTAMP):
            self.times.add(self._max_timestamp, self._max_timestamp_offset - self.base_offset)

    def age_ms(self, now_ms: int) -> int:
        """How long ago the first batch was appended."""
        if self.first_append_ms is None:
            # Written before the last restart: use the first batch's timestamp, unless it is in the future.
            first_ms = self.first_timestamp()
            self.first_append_ms = min(first_ms, now_ms) if first_ms >= 0 else now_ms
        return now_ms - self.first_append_ms

    def fits(self, size: int, last_offset: int, segment_bytes: int, index_bytes_max: int) -> bool:
        """Whether `size` more bytes, up to this offset, fit in the segment."""
        return (
            self.size + size <= segment_bytes
            and (self._offsets is None or self._offsets.count * 8 + 8 <= index_bytes_max)
            and (self._times is None or self._times.count * 12 + 12 <= index_bytes_max)
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    def seal(self) -> None:
        """Complete the indexes and free their memory. After `flush_indexes` nothing is written, so nothing can
        fail."""
        self.flush_indexes()
        if self._unindexed_from is None:
            self.offsets.seal()
            self.times.seal()
        self._unindexed_from = None
        self.aborted.seal()
        self._recent = None

    def flush_indexes(self) -> None:
        """Bring the index files up to date, before a clean close or before sealing."""
        if not self.size and self._begins and not any(map(self._files.disk.exists, self.index_paths())):
            # Nothing was written to it, and no earlier run left files of this name.
            return
        if self._unindexed_from == self.size:
            # Nothing was written since its files were completed.
            self.aborted.flush()
            return
        self._add_time_entry()
        self.offsets.flush()
        self.times.flush()
        self.aborted.flush()

    # Looking up

    def locate(self, offset: int) -> BatchSpan | None:
        """The first batch that ends at or after `offset`; None if compaction removed all of them in this segment."""
        if offset < self.next_offset:
            span = self._recent.holding(offset, self.size) if self._recent is not None else None
            if span is not None:
                return span
        return self._locate_by_index(offset)

    def _locate_by_index(self, offset: int) -> BatchSpan | None:
        for position, header in self._walk_from(self._index_entry(offset)):
            if header.last_offset >= offset:
                return BatchSpan(position, header.size, header.base_offset)
        return None

    def _index_entry(self, offset: int) -> tuple[int, int] | None:
        """The index entry to start from. An entry that does not point to its batch triggers a rebuild."""
        entry = self.offsets.floor(offset - self.base_offset)
        if entry is None:
            is_lost = not self.offsets.count and self.size > _SMALL_BYTES and not self.offsets.is_in_memory
        else:
            is_lost = self._last_offset_at(entry[1]) != self.base_offset + entry[0]
        if is_lost and self.reads_only:
            return None
        if is_lost:
            # The log is authoritative.
            self.rebuild_indexes(keep=self.offsets.is_in_memory)
            entry = self.offsets.floor(offset - self.base_offset)
        return entry

    def _last_offset_at(self, position: int) -> int | None:
        """The last offset of the batch at `position`, if there is one."""
        if not 0 <= position <= self.size - HEADER_BYTES:
            return None
        header = read_header(self.file.read_at(position, HEADER_BYTES))
        return header.last_offset if header.magic == MAGIC else None

    def _walk_from(self, entry: tuple[int, int] | None) -> Iterator[tuple[int, BatchHeader]]:
        return headers(self.file, entry[1] if entry else 0, self.size)

    def position_back(self, entries: int) -> int:
        """The position of a batch with this many index entries after it; 0 if there are fewer, or if in doubt."""
        entry = self.offsets.from_end(entries)
        if entry is None or self._last_offset_at(entry[1]) != self.base_offset + entry[0]:
            return 0
        return entry[1]

    def position_of_end(self, upper_offset: int) -> int:
        """The position of the first batch that begins at or after `upper_offset`; the size if there is none."""
        if upper_offset >= self.next_offset:
            return self.size
        position = self._recent.position_from(upper_offset, self.size) if self._recent is not None else None
        if position is not None:
            return position
        span = self._locate_by_index(upper_offset)
        if span is None:
            return self.size
        return span.position if span.base_offset >= upper_offset else span.position + span.size

    def size_from(self, offset: int) -> int:
        """The number of bytes from `offset` on; the whole segment if unknown in memory."""
        return self.size - ((self._recent.position_from(offset, self.size) or 0) if self._recent is not None else 0)

    def start_before(self, position: int) -> int:
        """The position of the last batch that begins at `position` or before; `position` if unknown in memory."""
        return self._recent.start_before(position) if self._recent is not None else position

    def offset_bound(self, position: int) -> int:
        """An upper bound for the offsets of records before `position`, as tight as the index allows."""
        recent = self._recent.offset_from(position) if self._recent is not None else None
        if recent is not None:
            return recent
        entry = self.offsets.ceiling_by_value(position)
        return min(self.base_offset + entry[0] + 1, self.next_offset) if entry else self.next_offset

    # Timestamps

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp is None:
            self._find_max_timestamp()
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch with the largest timestamp."""
        if self._max_timestamp is None:
            self._find_max_timestamp()
        return self._max_timestamp_offset

    def _find_max_timestamp(self) -> None:
        last = self.times.last()
        if self.size and (last is None or not self._holds_time(last)):
            if self.reads_only:
                self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, -1
                for _, header in headers(self.file, 0, self.size, SCAN_BYTES):
                    self._see_time(header)
                return
            self.rebuild_indexes()
            last = self.times.last()
        self._max_timestamp, relative = last if last else (NO_TIMESTAMP, 0)
        self._max_timestamp_offset = self.base_offset + relative if last else -1

    @property
    def known_max_timestamp(self) -> int | None:
        """None if a file must be read to know it."""
        return self._max_timestamp

    def learn_max_timestamp(self, timestamp: int, last_offset: int) -> None:
        """Store what a reader has found."""
        if self._max_timestamp is None:
            self._max_timestamp, self._max_timestamp_offset = timestamp, last_offset

    def reader(self, next_offset: int, size: int) -> Segment:
        """The segment as it was with this end and size, for any thread, with its own file handles."""
        copy = Segment(OpenFiles(self._files.disk), self.folder, self.base_offset, next_offset, size, self.stage)
        copy.reads_only = True
        return copy

    def batches_from(self, offset: int, position: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from the one that holds `offset`, none before `position`."""
        if position is None:
            span = self.locate(max(offset, self.base_offset))
            return headers(self.file, span.position, self.size) if span else iter(())
        return (each for each in headers(self.file, position, self.size) if each[1].last_offset >= offset)

    def position_before_time(self, timestamp: int, from_offset: int) -> int | None:
        """A lower bound for the position of batches from `from_offset` with a record of this time; None if it
        needs a file."""
        if not (self.times.is_in_memory and self.offsets.is_in_memory):
            return None
        entry = self.times.floor(timestamp)
        start = max(self.base_offset + entry[1] if entry else self.base_offset, from_offset)
        lies_at = self.offsets.floor(start - self.base_offset)
        return lies_at[1] if lies_at else 0

    def batches_from_time(
        self, timestamp: int, from_offset: int, position: int | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Batches from `from_offset` that include all with a record of this time or later.

        None of them begins before `position`; without it the indexes are used.
        """
        start = from_offset
        if position is None:
            entry = self.times.floor(timestamp)
            if entry is not None and not self._holds_time(entry):
                entry = None
            start = max(self.base_offset + entry[1] if entry else self.base_offset, from_offset)
        return self.batches_from(start, position)

    def _holds_time(self, entry: tuple[int, int]) -> bool:
        """Whether the batch that a time index entry points to exists and has that timestamp."""
        timestamp, relative = entry
        if not 0 <= relative < self.next_offset - self.base_offset:
            return False
        span = self.locate(self.base_offset + relative)
        if span is None:
            return False
        header = read_header(self.file.read_at(span.position, HEADER_BYTES))
        return header.max_timestamp == timestamp and header.last_offset == self.base_offset + relative

    # Rebuilding

    def load_tail(self, interval: int, present: Set[str] | None = None, held: Readable | None = None) -> None:
        """Prepare the segment for appends: load the indexes, and read from the file what they do not cover.

        `present` names the folder's files, to skip those that do not exist. `held` is the content of a segment that
        is too small for index entries: its indexes are left alone until they are needed.
        """
        if self._is_untouched(present):
            self._begin_empty()
            return
        if held is None:
            self._load_indexes(present)
        else:
            is_whole = present is not None and {self.name(OFFSET_INDEX), self.name(TIME_INDEX)} <= present
            self._unindexed_from = self.size if is_whole else -1
        if present is None or self.name(TXN_INDEX) in present:
            self.aborted.load()
        else:
            self.aborted.start(is_file_there=False)
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, -1
        try:
            self._take_from_last_entry(headers, interval, held)
        except Damaged:
            self.rebuild_indexes(interval, keep=True)

    def _is_untouched(self, present: Set[str] | None) -> bool:
        """Whether nothing was ever written to its partition; there may be thousands of those."""
        return not self.size and present is not None and present.isdisjoint(map(self.name, INDEX_SUFFIXES))

    def _begin_empty(self) -> None:
        self._begins = True
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, -1
        self.next_offset = self.base_offset

    def recover(
        self, recovery_point: int, interval: int, present: Set[str] | None = None, held: Readable | None = None
    ) -> Damaged | None:
        """Check every byte from the recovery point on and index it again; the damage, if any.

        Afterwards `next_offset` and the indexes cover what precedes the damage. `held` is as in `load_tail`.
        """
        if self._is_untouched(present):
            self._begin_empty()
            return None
        if held is not None:
            self._unindexed_from = -1
            try:
                self._take_from_last_entry(checked, interval, held)
            except Damaged as damage:
                return damage
            return None
        self._load_indexes(present)
        # Entries from the recovery point on are unreliable; those of one index count as far as the other reaches.
        last_time = self.times.last()
        self.offsets.cut(min(recovery_point - self.base_offset, last_time[1] if last_time else 0), self.size)
        last_offset = self.offsets.last()
        self.times.cut(1 << 62, last_offset[0] + 1 if last_offset else 0)
        try:
            self._take_from_last_entry(checked, interval)
            return None
        except Damaged as damage:
            if not self.offsets.count:
                return damage
        self.offsets.start()
        self.times.start()
        try:
            self._take_from_last_entry(checked, interval)
            return None
        except Damaged as damage:
            return damage

    def _load_indexes(self, present: Set[str] | None) -> None:
        for index in (self.offsets, self.times):
            if present is None or index.path.rpartition("/")[2] in present:
                index.load()
            else:
                index.start()
        self.offsets.cut(RELATIVE_OFFSET_MAX + 1, self.size)

    def _take_from_last_entry(self, walk: Walk, interval: int, held: Readable | None = None) -> None:
        """Continue the indexes where they end; `held` content is read from its start, and has no entries."""
        entry = last_time = None
        if held is None:
            entry, last_time = self.offsets.last(), self.times.last()
        start = entry[1] if entry else 0
        self._max_timestamp, relative = last_time or (NO_TIMESTAMP, -1)
        self._max_timestamp_offset = self.base_offset + relative
        self._bytes_since_entry = 0
        self.next_offset = self.base_offset
        if not self.size:
            return
        before_gap: tuple[int, int] | None = None
        for position, header in walk(held or self.file, start, self.size):
            self._check_offset(position, header, before_gap)
            before_gap = (position, self.next_offset) if header.base_offset > self.next_offset else None
            if entry and position == start:
                if header.last_offset - self.base_offset != entry[0]:
                    raise Damaged(position, "the index does not match the log")
                self._take(position, header, _NEVER)
            else:
                self._take(position, header, interval)
        if self._max_timestamp_offset >= self.next_offset:
            raise Damaged(self.size, "the time index is ahead of the log")

    def _check_offset(self, position: int, header: BatchHeader, before_gap: tuple[int, int] | None) -> None:
        """Check that offsets rise. They are outside the CRC, so of two that conflict the one after a gap is wrong."""
        if header.base_offset < self.next_offset and before_gap is not None:
            position, self.next_offset = before_gap
            raise Damaged(position, "its offset is beyond that of the next batch")
        if not 0 <= header.base_offset - self.next_offset <= RELATIVE_OFFSET_MAX:
            raise Damaged(position, f"offset {header.base_offset} after {self.next_offset - 1}")

    def true_next_offset(self) -> int:
        """The offset after the last batch in the file, whatever the next segment's name suggests."""
        entry = self.offsets.last()
        end = self.base_offset
        start = entry[1] if entry and 0 <= entry[1] < self.size else 0
        try:
            for _, header in headers(self.file, start, self.size):
                end = header.next_offset
        except Damaged:
            # The next reader reports the damage; here only what is certain counts.
            return end
        return end

    def end_position(self) -> int | None:
        """The end of the batch after which the next segment begins; None if there is none."""
        entry = self.offsets.last() if self.has_whole_indexes() else None
        try:
            for position, header in headers(self.file, entry[1] if entry else 0, self.size):
                if header.next_offset == self.next_offset:
                    return position + header.size
        except Damaged:
            # The next reader reports the damage.
            return None
        return None

    def has_plausible_indexes(self) -> bool:
        relative_max = self.next_offset - self.base_offset
        return self.offsets.is_plausible(
            relative_max, self.size, may_be_empty=self.size < 2 * _SMALL_BYTES
        ) and self.times.is_plausible(1 << 62, relative_max, may_be_empty=not self.size)

    def has_whole_indexes(self) -> bool:
        """A closer check of indexes that may be partly on disk: entries rise, and the last ones are valid."""
        if not (self.has_plausible_indexes() and self.offsets.is_rising() and self.times.is_rising()):
            return False
        offset, time = self.offsets.last(), self.times.last()
        is_offset_true = offset is None or self._last_offset_at(offset[1]) == self.base_offset + offset[0]
        return is_offset_true and (time is None or self._holds_time(time))

    def rebuild_indexes(self, interval: int = 4096, *, keep: bool = False) -> None:
        """Build both indexes from the log file; `keep` leaves them in memory, for a segment that grows."""
        self._unindexed_from = None
        self.offsets.start()
        self.times.start()
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, -1
        self._bytes_since_entry = 0
        self.next_offset = self.base_offset if keep else self.next_offset
        end = self.next_offset
        for position, header in headers(self.file, 0, self.size, SCAN_BYTES):
            self._take(position, header, interval)
        if not keep:
            self.next_offset = max(end, self.next_offset)
            self.seal()

    def _take(self, position: int, header: BatchHeader, interval: int) -> None:
        """Index one batch that is already in the file."""
        self._see_time(header)
        if self._bytes_since_entry > interval:
            self.offsets.add(header.last_offset - self.base_offset, position)
            self._add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size
        self.next_offset = header.next_offset

    def _see_time(self, header: BatchHeader) -> None:
        assert self._max_timestamp is not None
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset

    def cut(self, position: int, interval: int) -> None:
        """Truncate the file at `position` and prepare for appends."""
        self.file.truncate(position)
        self.size = position
        self._recent = None
        self.rebuild_indexes(interval, keep=True)
        self.aborted.load()
        self.aborted.cut(self.next_offset)
        self.flush_indexes()

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch."""
        data = self.file.read_at(0, HEADER_BYTES)
        return read_header(data).max_timestamp if len(data) == HEADER_BYTES else NO_TIMESTAMP

    def move(self, stage: str, files: OpenFiles | None = None) -> None:
        """Use the new names of the renamed, closed files."""
        self.stage = stage
        self._files = files = files or self._files
        if self._log is not None:
            self._log.move(files, self.path(LOG))
        if self._offsets is not None:
            self._offsets.move(files, self.path(OFFSET_INDEX))
        if self._times is not None:
            self._times.move(files, self.path(TIME_INDEX))
        if self._aborted is not None:
            self._aborted.move(files, self.path(TXN_INDEX))

    # Closing and removing

    def close(self) -> None:
        for part in (self._log, self._offsets, self._times, self._aborted):
            if part is not None:
                part.close()

    def index_paths(self) -> list[str]:
        """Files that must be synced before a sealed segment counts as safe; an empty index has no file."""
        return [self.path(suffix) for suffix in INDEX_SUFFIXES]

    def paths_to_remove(self) -> list[str]:
        """Every file, in the order of removal. Missing indexes are rebuilt while the log exists, except that of
        aborted transactions, as most segments have none."""
        return [self.path(suffix) for suffix in (OFFSET_INDEX, TIME_INDEX, LOG, TXN_INDEX)]

    def paths(self) -> list[str]:
        """Every file that the segment may have, the log last."""
        return [self.path(suffix) for suffix in SEGMENT_SUFFIXES]

    def rename_all(self, ending: str) -> list[str]:
        """Replace the files' stage suffix with `ending`; the new paths of those that exist."""
        renamed = []
        for path in self.paths():
            target = path.removesuffix(self.stage) + ending
            try:
                self._files.disk.rename(path, target)
            except FileNotFoundError:
                continue
            renamed.append(target)
        return renamed
