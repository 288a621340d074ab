"""Log compaction: choosing what to compact, rewriting segments, and swapping the result in.

A `CompactionPlan` is made on the loop, run on a worker, finished on the loop. The worker reads only sealed segments,
which never change, and writes new ones beside them. The swap is a few renames, which `leftovers` completes or undoes
after a crash. Offsets never change. The last batch of each new segment stays, emptied if need be, so that segments
always connect; the last batch of an active producer stays too, so that its sequence is known.

Records of aborted transactions are dropped. A marker stays as long as a batch of its transaction does, and then for
`delete.retention.ms`: a consumer in the middle of the transaction needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import field
from hashlib import blake2b

from millpond.base.errors import Refused, RemoteError
from millpond.base.ids import Offset
from millpond.base.ports import Buffer, Disk
from millpond.base.values import dataclass
from millpond.log.durability import Durability
from millpond.log.evidence_floor import keep_floor, write_floor
from millpond.log.leftovers import remove_swaps, swap_names, sync_if_there
from millpond.log.limits import LogLimits
from millpond.log.markers import read_marker
from millpond.log.names import CLEANED, DELETED, LOG, SNAPSHOT, SWAP, read_offset_name
from millpond.log.open_files import OpenFiles
from millpond.log.producers import ProducerStates
from millpond.log.removal import RemovalJob
from millpond.log.scan import batches
from millpond.log.segment import RELATIVE_OFFSET_MAX, Segment
from millpond.log.segments import Segments
from millpond.log.snapshots import Snapshots
from millpond.log.transaction_filter import TransactionFilter
from millpond.wire.batch import BatchHeader, read_header
from millpond.wire.kernel.plain import SHORT_KEY_BYTES
from millpond.wire.records import batch_keys, emptied, flag_latest, note_keys, retained

WRITE_BYTES = 1 << 20
UNPACKED_RECORDS_MAX = 1_000_000
UNPACKED_BYTES_MAX = 128 << 20
"""A batch that unpacks to more than this, or cannot be unpacked, is kept unchanged."""

ENTRY_BYTES = 160
"""The memory for one entry of an `OffsetMap`: the digest, the offset, and their share of the table."""


class OffsetMap:
    """The latest offset of each key, in bounded memory.

    Long keys are stored as digests, short ones verbatim: no short key has a digest's length.
    """

    __slots__ = ("_offsets", "capacity")

    def __init__(self, bytes_max: int) -> None:
        self.capacity = max(bytes_max // ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, count: int) -> bool:
        return len(self._offsets) + count <= self.capacity

    def note(self, batch: Buffer) -> None:
        """Record all keys of a batch, which follows the batches before. One that cannot be unpacked is ignored."""
        with contextlib.suppress(RemoteError, Refused):
            note_keys(batch, self._offsets, _digest, limit_bytes=UNPACKED_BYTES_MAX)

    def flags(self, batch: Buffer) -> tuple[list[bool], bool] | None:
        """Which records of the batch are the latest for their keys, and whether one of these is a tombstone; None if
        the batch cannot be unpacked."""
        try:
            return flag_latest(batch, self._offsets, _digest, limit_bytes=UNPACKED_BYTES_MAX)
        except (RemoteError, Refused):
            return None


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=SHORT_KEY_BYTES).digest()


class Cancelled(Exception):
    """The owner of the plan no longer needs the result."""


@dataclass(slots=True, frozen=True)
class Source:
    """One sealed segment as the worker reads it."""

    base_offset: int
    next_offset: int
    size: int
    path: str


@dataclass(slots=True)
class Swap:
    """A new segment, complete and synced, and the base offsets of the segments it replaces."""

    bases: list[int]
    segment: Segment


@dataclass(slots=True)
class CompactionPlan:
    """One compaction of one log."""

    disk: Disk
    folder: str
    limits: LogLimits
    now_ms: int
    generation: int
    """The log's durability generation: after a truncation the sources no longer match."""
    first_dirty: int
    sources: list[Source]
    producers_last: dict[int, int]
    """The last offset of every active producer."""
    marker_epochs: dict[int, int] = field(default_factory=dict)
    """The epoch of every active producer that is known only from a marker."""
    transactions: TransactionFilter = field(default_factory=TransactionFilter)
    start_offset: int = 0
    """The log start offset when this was planned."""
    keeps_ends: bool = False
    """Segments before these are waiting for removal. A crash may bring them back, and then they need the tombstones
    and markers in these segments."""
    floor: int = 0
    """The evidence floor, including what this plan has dropped."""
    is_floor_kept: bool = False
    """Whether this floor is on disk."""
    evidence_upto: int = 1 << 63
    """Evidence from this offset on stays: a follower has not copied it yet."""
    cancelled: bool = False
    end_offset: int = 0
    """Keys are unique below this offset once the plan is finished."""
    swaps: list[Swap] = field(default_factory=list)
    drops_markers: bool = False

    def run(self) -> None:
        """Read the sources and write the new segments. On a worker thread; OSError and Cancelled leave the log as it
        was."""
        # Remove leftovers of an abandoned plan, or they would be swapped in instead of this plan's segments.
        remove_swaps(self.disk, self.folder)
        latest = self._latest_offsets()
        reach = [source for source in self.sources if source.base_offset < self.end_offset]
        for group in _groups(reach, self.limits):
            self._rewrite(group, latest)

    def _latest_offsets(self) -> OffsetMap:
        """The latest offset of each key in the dirty part, as far as memory allows."""
        latest = OffsetMap(self.limits.dedupe_buffer_bytes)
        self.end_offset = self.first_dirty
        for source in self.sources:
            if source.next_offset <= self.first_dirty:
                continue
            for header, view in self._batches(source):
                if header.next_offset <= self.first_dirty:
                    continue
                # The first batch is always taken, or compaction with little memory would never make progress.
                if len(latest) and not latest.has_room_for(header.record_count):
                    return latest
                if _is_unpacked(header) and not header.is_control and not self.transactions.is_aborted(header):
                    latest.note(view)
                self.end_offset = header.next_offset
            self.end_offset = source.next_offset
        return latest

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        file = self.disk.open(source.path)
        try:
            for header, view in batches(file, 0, source.size):
                if self.cancelled:
                    raise Cancelled
                yield header, view
        finally:
            file.close()

    def _rewrite(self, group: Sequence[Source], latest: OffsetMap) -> None:
        target = Segment.create(OpenFiles(self.disk), self.folder, group[0].base_offset, CLEANED)
        try:
            if self._write_kept(target, group, latest):
                target.next_offset = group[-1].next_offset
                self._publish(target, [source.base_offset for source in group])
                return
        finally:
            target.close()
        for path in reversed(target.paths()):
            if self.disk.exists(path):
                self.disk.remove(path)

    def _write_kept(self, target: Segment, group: Sequence[Source], latest: OffsetMap) -> bool:
        """Write the records that stay; whether anything changed."""
        writer = _Writer(target, self.limits.index_interval_bytes)
        self.transactions.target = target.aborted
        is_changed = len(group) > 1
        for source in group:
            for header, view in self._batches(source):
                is_last = header.next_offset == group[-1].next_offset
                kept = self._kept(header, view, latest, is_last)
                if kept is not None:
                    writer.add(kept)
                is_changed = is_changed or kept is None or len(kept) != header.size or kept != view
        writer.finish()
        return is_changed

    def _kept(self, header: BatchHeader, view: memoryview, latest: OffsetMap, is_last: bool) -> Buffer | None:
        """The part of a batch that stays; None if nothing does."""
        if header.is_control:
            return self._kept_marker(header, view, is_last)
        is_needed = is_last or self.producers_last.get(header.producer_id) == header.last_offset
        is_aborted = self.transactions.on_data(header)
        if not header.record_count:
            return view if is_needed else None
        if is_aborted:
            return emptied(view) if is_needed else None
        latest_flags = latest.flags(view) if _is_unpacked(header) else None
        if latest_flags is None:
            return view
        flags, has_tombstone = latest_flags
        horizon = header.delete_horizon_ms
        # A batch that was not read may follow an older value of its keys. So may one before a start offset that is in
        # no checkpoint yet: the start may move back, and nothing below it is compacted.
        is_reached = self.start_offset <= header.base_offset and header.next_offset <= self.end_offset
        if not is_reached or self.keeps_ends:
            has_tombstone = False
        is_due = horizon is not None and horizon <= self.now_ms and header.next_offset <= self.evidence_upto
        if has_tombstone and is_due:
            values = batch_keys(view, limit_bytes=UNPACKED_BYTES_MAX)
            flags = [flag and has_value for flag, (_, _, has_value, _) in zip(flags, values, strict=True)]
            has_tombstone = False
            self._drop_evidence(header)
        new_horizon = self.now_ms + self.limits.delete_retention_ms if has_tombstone and horizon is None else None
        try:
            kept = retained(view, 0, flags, new_horizon)
        except RemoteError:
            # Its timestamps do not fit in a batch (no client writes such a batch): keep it, like one that cannot be
            # unpacked.
            return view
        return emptied(view) if kept is None and is_needed else kept

    def _kept_marker(self, header: BatchHeader, view: memoryview, is_last: bool) -> Buffer | None:
        if header.producer_id < 0 or self.transactions.is_needed_by_records(header, read_marker(view)):
            return view
        horizon = header.delete_horizon_ms
        is_due = horizon is not None and horizon <= self.now_ms and header.next_offset <= self.evidence_upto
        if header.record_count and not is_due:
            fresh = self.now_ms + self.limits.delete_retention_ms if horizon is None else None
            return retained(view, 0, [True] * header.record_count, fresh)
        self.drops_markers = True
        if header.record_count:
            self._drop_evidence(header)
        is_needed = is_last or self.marker_epochs.get(header.producer_id) == header.producer_epoch
        return emptied(view) if is_needed else None

    def _drop_evidence(self, header: BatchHeader) -> None:
        if header.next_offset > self.floor:
            self.floor, self.is_floor_kept = header.next_offset, False

    def _keep_floor(self) -> None:
        """Record the floor before a segment without the evidence replaces the old one."""
        if not self.is_floor_kept:
            keep_floor(self.disk, self.folder, self.floor)
            self.is_floor_kept = True

    def _publish(self, target: Segment, bases: list[int]) -> None:
        """Commit the new segment: from here on recovery completes the swap."""
        target.aborted.make_file()
        target.file.sync()
        for path in target.index_paths():
            sync_if_there(self.disk, path)
        if self.drops_markers:
            self._remove_old_snapshots()
        self._keep_floor()
        target.close()
        target.rename_all(SWAP)
        self.disk.sync_folder(self.folder)
        target.move(SWAP)
        self.swaps.append(Swap(bases, target))

    def _remove_old_snapshots(self) -> None:
        """Remove snapshots that may list a transaction as open whose marker is gone: nothing would ever end it."""
        for name in self.disk.list(self.folder):
            parts = read_offset_name(name)
            if parts and parts[1] == SNAPSHOT and parts[0] < self.sources[-1].next_offset:
                self.disk.remove(f"{self.folder}/{name}")


def _is_unpacked(header: BatchHeader) -> bool:
    return header.record_count <= UNPACKED_RECORDS_MAX


class _Writer:
    def __init__(self, segment: Segment, interval: int) -> None:
        self.segment = segment
        self.interval = interval
        self.pending: list[Buffer] = []
        self.pending_bytes = 0

    def add(self, batch: Buffer) -> None:
        header = read_header(batch)
        self.segment.note(header.base_offset, header.last_offset, header.max_timestamp, header.size, self.interval)
        self.pending.append(batch)
        self.pending_bytes += header.size
        if self.pending_bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            self.segment.file.append(self.pending)
        self.pending, self.pending_bytes = [], 0

    def finish(self) -> None:
        self.flush()
        self.segment.seal()


def _groups(sources: Sequence[Source], limits: LogLimits) -> Iterator[list[Source]]:
    """Neighbours that together still fit in one segment."""
    group: list[Source] = []
    for source in sources:
        if group and (
            sum(member.size for member in group) + source.size > limits.segment_bytes
            or source.next_offset - group[0].base_offset > RELATIVE_OFFSET_MAX
        ):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


class Compaction:
    """How far one log is compacted, and the plan that a worker is running."""

    def __init__(self, disk: Disk, folder: str, files: OpenFiles, durability: Durability) -> None:
        self.clean_offset = Offset(0)
        """Keys below this offset are unique."""
        self.evidence_floor = Offset(0)
        """One above the highest offset whose tombstone or marker was dropped (`evidence_floor.py`)."""
        self.is_floor_kept = False
        """Whether the floor is on disk."""
        self._disk = disk
        self._folder = folder
        self._files = files
        self._durability = durability
        self._plan: CompactionPlan | None = None

    @property
    def held(self) -> frozenset[int]:
        """Base offsets of segments that a plan is reading: they must not be removed."""
        return frozenset(source.base_offset for source in self._plan.sources) if self._plan else frozenset()

    def plan(
        self,
        segments: Segments,
        producers: ProducerStates,
        limits: LogLimits,
        now_ms: int,
        *,
        start_offset: int,
        upper_offset: int,
        evidence_upto: int = 1 << 63,
    ) -> CompactionPlan | None:
        """A plan, if enough of the log is dirty or has been for too long; None otherwise.

        Nothing at or above `upper_offset` (uncommitted or undecided) is touched. Tombstones and markers at or above
        `evidence_upto` stay.
        """
        if not limits.cleanup_compact or self._plan is not None or self._durability.away.others:
            return None
        first_dirty = max(self.clean_offset, start_offset)
        within = _cleanable(segments, limits.min_compaction_lag_ms, now_ms, upper_offset)
        dirty = [segment for segment in within if segment.next_offset > first_dirty and segment.size]
        if not dirty:
            return None
        total_bytes = sum(segment.size for segment in within)
        dirty_bytes = sum(segment.size for segment in dirty)
        waited_ms = now_ms - max(dirty[0].first_timestamp(), 0)
        if dirty_bytes / total_bytes < limits.min_cleanable_dirty_ratio and waited_ms < limits.max_compaction_lag_ms:
            return None
        keeps_ends = self._durability.away.retired is not None
        # A transaction that begins here may end in a later segment.
        aborted = (entry for segment in segments for entry in segment.aborted.entries())
        self._plan = CompactionPlan(
            self._disk,
            self._folder,
            limits,
            now_ms,
            self._durability.generation,
            first_dirty,
            [Source(each.base_offset, each.next_offset, each.size, each.path(LOG)) for each in within],
            producers.last_offsets(),
            producers.marker_epochs(),
            TransactionFilter(aborted, keeps_ends=keeps_ends),
            start_offset,
            keeps_ends,
            self.evidence_floor,
            self.is_floor_kept,
            evidence_upto,
        )
        self._durability.away.others += 1
        return self._plan

    def finish(self, plan: CompactionPlan, segments: Segments, snapshots: Snapshots, delay_ms: int) -> RemovalJob:
        """Swap in the new segments after the plan has run; the job removes the old ones."""
        if plan.generation != self._durability.generation:
            return self.give_up(plan)
        paths: list[str] = []
        try:
            if plan.drops_markers:
                snapshots.drop_below(plan.sources[-1].next_offset)
            for swap in plan.swaps:
                paths += self._put_in_place(swap, segments)
            self.clean_offset = Offset(max(self.clean_offset, plan.end_offset))
        finally:
            self._let_go(plan)
        away = self._durability.away
        return RemovalJob(self._disk, self._folder, tuple(paths), delay_ms, away, away.beginnings, is_replaced=True)

    def _put_in_place(self, swap: Swap, segments: Segments) -> list[str]:
        old = [segment for segment in segments if segment.base_offset in swap.bases]
        assert [segment.base_offset for segment in old] == swap.bases, "held segments cannot go away"
        paths: list[str] = []
        for segment in old:
            segment.close()
        for segment in old[1:]:
            segment.is_gone = True
            paths += segment.rename_all(DELETED)
        swap.segment.rename_all("")
        swap.segment.move("", self._files)
        swap.segment.appended_ms = max(segment.appended_ms for segment in old)
        segments.swap(old, swap.segment)
        for segment in old:
            self._durability.forget(segment)
        self._durability.owe_folder()
        return paths

    def give_up(self, plan: CompactionPlan) -> RemovalJob:
        """Abandon a plan that failed or is obsolete. The log stays as it was; the job removes what the plan wrote."""
        self._let_go(plan)
        try:
            names = self._disk.list(self._folder)
        except FileNotFoundError:
            # The partition was deleted in the meantime.
            names = []
        paths = tuple(f"{self._folder}/{name}" for name in swap_names(names))
        away = self._durability.away
        return RemovalJob(self._disk, self._folder, paths, away=away, beginnings=away.beginnings)

    def inherit_floor(self, offset: int) -> None:
        """Adopt the floor of the leader that this log is copied from: the copy lacks the same evidence."""
        if offset > self.evidence_floor:
            write_floor(self._disk, self._folder, offset)
            self._durability.owe_folder()
            self.evidence_floor, self.is_floor_kept = Offset(offset), True

    def cut_back(self, offset: int) -> None:
        """Adjust to a log that was truncated to `offset`."""
        self.clean_offset = min(self.clean_offset, Offset(offset))
        self.cancel()

    def cancel(self) -> None:
        """End the running plan, if any, as soon as possible."""
        if self._plan is not None:
            self._plan.cancelled = True

    def _let_go(self, plan: CompactionPlan) -> None:
        """Release the plan's segments, whatever its outcome."""
        if plan.is_floor_kept and plan.floor >= self.evidence_floor:
            self.evidence_floor, self.is_floor_kept = Offset(plan.floor), True
        if self._plan is plan:
            self._plan = None
            self._durability.away.others -= 1


def _cleanable(segments: Segments, lag_ms: int, now_ms: int, upper_offset: int) -> list[Segment]:
    """The oldest sealed segments up to the first that holds uncommitted, undecided or too recent records."""
    cleanable = []
    for segment in segments[:-1]:
        if segment.next_offset > upper_offset:
            break
        if lag_ms and now_ms - max(segment.max_timestamp, segment.appended_ms) < lag_ms:
            break
        cleanable.append(segment)
    return cleanable
