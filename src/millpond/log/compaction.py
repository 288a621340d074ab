"""Keeping the latest record of every key: what to compact, the work itself, and putting the result in place.

A `CompactionPlan` is made on the loop, run on a worker, finished on the loop. The worker reads sealed segments only,
which nobody changes, and writes new ones beside them; the swap is a few renames, and `leftovers` finishes or undoes
it after a crash. Offsets never change. The last batch of each new segment stays, empty if need be, so that segments
always connect; the last batch of a living producer stays likewise, so that its sequence is known.

Records of aborted transactions go. A marker stays as long as a batch of its transaction does, and then for
`delete.retention.ms`: a consumer in the middle of the transaction needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.base.ids import Offset
from millpond.base.ports import Buffer, Disk, File
from millpond.log.dedupe import OffsetMap
from millpond.log.limits import LogLimits
from millpond.log.markers import read_marker
from millpond.log.names import CLEANED, DELETED, LOG, SNAPSHOT, SWAP, read_offset_name
from millpond.log.scan import batches
from millpond.log.segment import RELATIVE_OFFSET_MAX, Segment
from millpond.log.syncing import RemovalJob
from millpond.log.transaction_filter import TransactionFilter
from millpond.wire.batch import BatchHeader, read_header
from millpond.wire.records import batch_keys, emptied, retained

if TYPE_CHECKING:
    from millpond.log.partition_log import PartitionLog

WRITE_BYTES = 1 << 20


class Cancelled(Exception):
    """The plan's owner does not want the result any more."""


@dataclass(slots=True, frozen=True)
class Source:
    """One sealed segment as the worker reads it."""

    base_offset: int
    next_offset: int
    size: int
    file: File


@dataclass(slots=True)
class Swap:
    """A new segment, complete and synced, and the segments that it replaces."""

    bases: list[int]
    segment: Segment


@dataclass(slots=True)
class CompactionPlan:
    """One compaction of one log."""

    disk: Disk
    folder: str
    limits: LogLimits
    now_ms: int
    first_dirty: int
    sources: list[Source]
    producers_last: dict[int, int]
    """The last offset of every living producer."""
    marker_epochs: dict[int, int] = field(default_factory=dict)
    """The epoch of every living producer that only a marker knows."""
    transactions: TransactionFilter = field(default_factory=TransactionFilter)
    cancelled: bool = False
    end_offset: int = 0
    """Keys are unique below this offset once the plan is finished."""
    swaps: list[Swap] = field(default_factory=list)
    drops_markers: bool = False
    is_held: bool = True

    def run(self) -> None:
        """Read, and write the new segments. On a worker thread; OSError and Cancelled leave the log as it was."""
        latest = self._latest_offsets()
        reach = [source for source in self.sources if source.base_offset < self.end_offset]
        for group in _groups(reach, self.limits):
            self._rewrite(group, latest)

    def _latest_offsets(self) -> OffsetMap:
        """The latest offset of each key in the dirty part, as far as the memory goes."""
        latest = OffsetMap(self.limits.dedupe_buffer_bytes)
        self.end_offset = self.first_dirty
        for source in self.sources:
            if source.next_offset <= self.first_dirty:
                continue
            for header, view in self._batches(source):
                if header.next_offset <= self.first_dirty:
                    continue
                # The first batch is taken in any case, or a small memory would stand still for ever.
                if len(latest) and not latest.has_room_for(header.record_count):
                    return latest
                if not header.is_control and not self.transactions.is_aborted(header):
                    for delta, key, _, _ in batch_keys(view):
                        if key is not None:
                            latest.put(key, header.base_offset + delta)
                self.end_offset = header.next_offset
            self.end_offset = source.next_offset
        return latest

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        for header, view in batches(source.file, 0, source.size):
            if self.cancelled:
                raise Cancelled
            yield header, view

    def _rewrite(self, group: Sequence[Source], latest: OffsetMap) -> None:
        target = Segment.create(self.disk, self.folder, group[0].base_offset, CLEANED)
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
        if is_changed:
            target.next_offset = group[-1].next_offset
            self._publish(target, [source.base_offset for source in group])
        else:
            target.close()
            for path in reversed(target.paths()):
                if self.disk.exists(path):
                    self.disk.remove(path)

    def _kept(self, header: BatchHeader, view: memoryview, latest: OffsetMap, is_last: bool) -> Buffer | None:
        """What stays of a batch."""
        if header.is_control:
            return self._kept_marker(header, view, is_last)
        is_needed = is_last or self.producers_last.get(header.producer_id) == header.last_offset
        is_aborted = self.transactions.on_data(header)
        if not header.record_count:
            return view if is_needed else None
        if is_aborted:
            return emptied(view) if is_needed else None
        horizon = header.delete_horizon_ms
        flags = []
        has_tombstone = False
        for delta, key, has_value, _ in batch_keys(view):
            keep = key is not None and latest.latest(key) <= header.base_offset + delta
            if keep and not has_value:
                keep = horizon is None or horizon > self.now_ms
                has_tombstone = has_tombstone or keep
            flags.append(keep)
        new_horizon = self.now_ms + self.limits.delete_retention_ms if has_tombstone and horizon is None else None
        kept = retained(view, 0, flags, new_horizon)
        return emptied(view) if kept is None and is_needed else kept

    def _kept_marker(self, header: BatchHeader, view: memoryview, is_last: bool) -> Buffer | None:
        if header.producer_id < 0 or self.transactions.is_needed_by_records(header, read_marker(view)):
            return view
        horizon = header.delete_horizon_ms
        if header.record_count and (horizon is None or horizon > self.now_ms):
            fresh = self.now_ms + self.limits.delete_retention_ms if horizon is None else None
            return retained(view, 0, [True] * header.record_count, fresh)
        self.drops_markers = True
        is_needed = is_last or self.marker_epochs.get(header.producer_id) == header.producer_epoch
        return emptied(view) if is_needed else None

    def _publish(self, target: Segment, bases: list[int]) -> None:
        """Make the new segment the truth for a recovery: from here on a crash completes the swap."""
        target.aborted.make_file()
        for file in target.files_for_sync():
            file.sync()
        if self.drops_markers:
            self._remove_old_snapshots()
        target.close()
        target.rename_all(SWAP)
        self.disk.sync_folder(self.folder)
        target.move_to(SWAP)
        self.swaps.append(Swap(bases, target))

    def _remove_old_snapshots(self) -> None:
        """A snapshot may know a transaction as open whose marker is gone: nobody would ever end it."""
        for name in self.disk.list(self.folder):
            found = read_offset_name(name)
            if found and found[1] == SNAPSHOT and found[0] < self.sources[-1].next_offset:
                self.disk.remove(f"{self.folder}/{name}")

    def release(self) -> None:
        for source in self.sources:
            source.file.release()
        self.sources = []


class _Writer:
    """Appends batches to a new segment in large pieces."""

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
    """Neighbours that together still make one segment."""
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


def candidate(log: PartitionLog, now_ms: int, upper_offset: int) -> CompactionPlan | None:
    """A plan if enough of the log is dirty, or has been for too long; None if there is nothing to do now."""
    limits = log.limits
    if not limits.cleanup_compact or log.held_segments or log.away.others:
        return None
    first_dirty = max(log.clean_offset, log.start_offset)
    within = _cleanable(log, now_ms, upper_offset)
    dirty = [segment for segment in within if segment.next_offset > first_dirty and segment.size]
    if not dirty:
        return None
    total_bytes = sum(segment.size for segment in within)
    dirty_bytes = sum(segment.size for segment in dirty)
    waited_ms = now_ms - max(dirty[0].first_timestamp(), 0)
    if dirty_bytes / total_bytes < limits.min_cleanable_dirty_ratio and waited_ms < limits.max_compaction_lag_ms:
        return None
    # A transaction that begins here may end in a later segment.
    transactions = TransactionFilter(entry for segment in log.segments for entry in segment.aborted.entries())
    # Files are opened first: if that fails none has been taken hold of.
    sources = [Source(each.base_offset, each.next_offset, each.size, each.file) for each in within]
    for source in sources:
        source.file.retain()
    log.held_segments = frozenset(source.base_offset for source in sources)
    log.away.others += 1
    return CompactionPlan(
        log.disk,
        log.folder,
        limits,
        now_ms,
        first_dirty,
        sources,
        log.producers.last_offsets(),
        log.producers.marker_epochs(),
        transactions,
    )


def _cleanable(log: PartitionLog, now_ms: int, upper_offset: int) -> list[Segment]:
    """Sealed segments from the start on that hold nothing uncommitted, undecided or too young."""
    upper = log.stable_offset(upper_offset)
    lag_ms = log.limits.min_compaction_lag_ms
    found = []
    for segment in log.segments[:-1]:
        if segment.next_offset > upper:
            break
        if lag_ms and now_ms - max(segment.max_timestamp, segment.appended_ms) < lag_ms:
            break
        found.append(segment)
    return found


def finish(log: PartitionLog, plan: CompactionPlan) -> RemovalJob:
    """Put the new segments in place of the old ones; the job removes what is left of those."""
    paths: list[str] = []
    if plan.drops_markers:
        log.snapshots.drop_below(plan.sources[-1].next_offset)
    for swap in plan.swaps:
        old = [segment for segment in log.segments if segment.base_offset in swap.bases]
        assert [segment.base_offset for segment in old] == swap.bases, "held segments cannot go away"
        for segment in old:
            segment.close()
        for segment in old[1:]:
            paths += segment.rename_all(DELETED)
        swap.segment.rename_all("")
        swap.segment.move_to("")
        swap.segment.appended_ms = max(segment.appended_ms for segment in old)
        place = log.segments.index(old[0])
        log.replace_segments([*log.segments[:place], swap.segment, *log.segments[place + len(old) :]])
        for segment in old:
            log.debts.forget(segment.base_offset)
        log.debts.folders.add(log.folder)
    log.clean_offset = Offset(max(log.clean_offset, plan.end_offset))
    return RemovalJob(log.disk, log.folder, tuple(paths), log.limits.file_delete_delay_ms, log.away)


def give_up(log: PartitionLog, plan: CompactionPlan) -> RemovalJob:
    """The plan failed or is not wanted: the log stays as it was, the job removes what was written."""
    let_go(log, plan)
    try:
        names = log.disk.list(log.folder)
    except FileNotFoundError:
        # The partition was deleted meanwhile, with all that is in it.
        names = []
    # The log goes first: without it a recovery undoes the swap instead of finishing it.
    written = sorted((name for name in names if name.endswith((CLEANED, SWAP))), key=lambda name: LOG not in name)
    paths = tuple(f"{log.folder}/{name}" for name in written)
    return RemovalJob(log.disk, log.folder, paths, away=log.away)


def let_go(log: PartitionLog, plan: CompactionPlan) -> None:
    """The plan has ended, in whatever way: its segments and files are free again."""
    if plan.is_held:
        plan.is_held = False
        log.held_segments = frozenset()
        log.away.others -= 1
    plan.release()
