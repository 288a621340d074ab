"""Opening a partition's folder, after a clean shutdown or a crash at any moment.

After a clean shutdown the files are trusted. After a crash everything from the recovery point on is read and checked,
and a torn tail is cut off. Damage below the recovery point is different: those bytes were durable, so the
partition stays offline for an operator (or a replica) to repair, and nothing is deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID, Offset
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import File
from millpond.base.values import dataclass
from millpond.log.checkpoints import DamagedCheckpoint, decode_epochs, decode_metadata
from millpond.log.epochs import LeaderEpochs
from millpond.log.evidence_floor import floors, has_hole, write_floor
from millpond.log.failed_sync import mark_failed_sync, remove_mark, rewrite
from millpond.log.leftovers import has_leftovers, remove_indexes, settle, sync_if_there
from millpond.log.limits import LogLimits
from millpond.log.names import (
    BEGUN,
    CUT,
    DELETED,
    EPOCHS_FILE,
    FAILED_SYNC_FILE,
    FLOOR,
    INDEX_SUFFIXES,
    LOG,
    METADATA_FILE,
    SNAPSHOT,
    SWAP,
    UNSETTLED_FILE,
    offset_name,
    read_offset_name,
)
from millpond.log.open_files import OpenFiles
from millpond.log.partition_log import PartitionLog
from millpond.log.producers import ProducerStates
from millpond.log.recalled_batches import recall_batches
from millpond.log.scan import PROBE_BYTES, SCAN_BYTES, Damaged, HeldBytes, Readable, checked, copy_tail, headers
from millpond.log.segment import Segment
from millpond.log.snapshots import Snapshots, encode_snapshot
from millpond.wire.batch import HEADER_BYTES, BatchHeader, read_header

_NOWHERE = 1 << 63

LISTINGS_KEPT = 64
"""Thousands of folders hold files with the same names: each listing is analysed once."""


class LogDamaged(Exception):
    """Durable bytes have changed. The partition stays offline."""


@dataclass(slots=True)
class Opening:
    """What the data folder's checkpoints record about one partition."""

    clean: bool = False
    """Whether the last shutdown was clean: every file is complete and synced."""
    recovery_point: int = 0
    start_offset: int = 0
    clean_offset: int = 0
    now_ms: int = 0
    notes: list[str] = field(default_factory=list)
    """Messages for the operator, collected while opening."""
    has_cut: bool = False
    """Whether bytes were cut off at the end: other nodes may count on records among them."""
    before_cut: Callable[[], None] = lambda: None
    """Called before the first cut: the next start must know, in case this one does not get to report it."""

    def cut(self) -> None:
        if not self.has_cut:
            self.has_cut = True
            self.before_cut()


def open_log(files: OpenFiles, folder: str, limits: LogLimits, opening: Opening) -> PartitionLog:
    """The log in `folder`, ready for use. LogDamaged or OSError if it cannot be opened."""
    try:
        return _Opener(files, folder, limits, opening).open()
    except Damaged as damage:
        raise LogDamaged(f"{folder}: {damage}") from None


class _Listing(NamedTuple):
    """What a folder's file names reveal."""

    present: frozenset[str]
    bases: tuple[int, ...]
    """Base offsets of the segments, in order."""
    snapshots: tuple[str, ...]
    orphans: tuple[tuple[str, int], ...]
    """Indexes of segments that are gone, and their base offsets."""
    begun: tuple[int, ...]
    """Offsets at which the replica was restarted."""
    floors: tuple[int, ...]
    """Evidence floors, lowest first."""
    has_leftovers: bool


@lru_cache(LISTINGS_KEPT)
def _listing(names: tuple[str, ...]) -> _Listing:
    files = [(name, *entry) for name in names if (entry := read_offset_name(name)) is not None]
    bases = {offset for _, offset, suffix in files if suffix == LOG}
    return _Listing(
        frozenset(names),
        tuple(sorted(bases)),
        tuple(name for name, _, suffix in files if suffix == SNAPSHOT),
        tuple((name, offset) for name, offset, suffix in files if suffix in INDEX_SUFFIXES and offset not in bases),
        tuple(offset for _, offset, suffix in files if suffix == BEGUN),
        tuple(floors(names)),
        has_leftovers(list(names)),
    )


class _Opener:
    def __init__(self, files: OpenFiles, folder: str, limits: LogLimits, opening: Opening) -> None:
        disk = files.disk
        self.files = files
        self.disk = disk
        self.folder = folder
        self.limits = limits
        self.opening = opening
        names = disk.list(folder)
        self.rebuild: set[int] = set()
        self.small: tuple[Segment, HeldBytes] | None = None
        """The last segment, if it is too small to have index entries, and its content: read once for all uses.
        Most partitions are idle, and many are small."""
        self.shortened: list[Segment] = []
        self.boundary: bytes | None = None
        """The snapshot at the last segment's base offset, if it must be recreated."""
        self.ends_from = _NOWHERE
        """From the segment with this base offset on, the index of aborted transactions cannot be trusted."""
        self.listing = _listing(tuple(names))
        was_unsettled = self.is_unsettled = UNSETTLED_FILE in self.listing.present
        """Whether indexes are being rebuilt, which must stay recorded until they are on disk."""
        if self.listing.has_leftovers:
            if any(name.endswith(SWAP) for name in names):
                self.is_unsettled = True
                disk.open(f"{folder}/{UNSETTLED_FILE}", create=True).close()
                disk.sync_folder(folder)
            self.rebuild = settle(disk, folder, names)
            names = disk.list(folder)
            self.listing = _listing(tuple(names))
        if was_unsettled:
            # The last opening was interrupted: which indexes it had rebuilt is unknown.
            self.rebuild = set(self.listing.bases)
            remove_indexes(disk, folder, names)
            names = disk.list(folder)
            self.listing = _listing(tuple(names))
        if FAILED_SYNC_FILE in self.listing.present:
            rewrite(disk, folder, names, opening.recovery_point)
            opening.clean = False
            opening.notes.append(f"{folder}: a sync had failed; rewrote the data that may not be on disk")
            self.listing = _listing(tuple(disk.list(folder)))
        self.present = self.listing.present
        begun = max(self.listing.begun, default=-1)
        self.begun_at = begun if begun >= opening.recovery_point else None
        """Where the replica was restarted, if none of its records since is known to be durable."""
        self.hole_end = 0
        """The end of the last batch that compaction left incomplete, or that has a gap before it."""
        self.deleted: list[str] = []
        """Files that this opening took out of the log and that are yet to be deleted."""

    def open(self) -> PartitionLog:
        segments = self._segments()
        self._hold(segments[-1])
        if self.opening.clean:
            # After a crash the tail may be torn: there the check builds the indexes, too.
            self._rebuild(segments)
            segments[-1].load_tail(self.limits.index_interval_bytes, self.present, self._held(segments[-1]))
            self._doubt(segments[-1].next_offset)
        clean = self.opening.clean
        unsynced_from = len(segments) if clean else self._recover(segments)
        if self.opening.has_cut:
            self._keep_cut({*self.shortened, segments[-1]})
        end = segments[-1].next_offset
        self._remove_orphans(segments[0].base_offset, end)
        snapshots = self._usable_snapshots(segments, clean)
        replay_from, producers = self._noted_producers(segments, snapshots, clean)
        recall_batches(producers, segments, replay_from, self.opening.now_ms)
        noted_epochs = self._noted_epochs()
        epochs = LeaderEpochs(noted_epochs or ())
        epochs_from = segments[0].base_offset
        if noted_epochs is not None:
            epochs_from = end if clean else max(epochs_from, min(self.opening.recovery_point, end))
        if not self._agrees(epochs, segments, epochs_from):
            epochs_from = segments[0].base_offset
        # Recorded epochs from here on may belong to records that were cut off: the batches are authoritative.
        epochs.cut_end(epochs_from)
        log = PartitionLog(
            self.files,
            self.folder,
            self.limits,
            segments=segments,
            start_offset=min(max(self.opening.start_offset, segments[0].base_offset), end),
            synced_offset=end if clean else min(self.opening.recovery_point, end),
            clean_offset=min(self.opening.clean_offset, end),
            evidence_floor=max(self.listing.floors, default=None),
            epochs=epochs,
            producers=producers,
            snapshots=snapshots,
            topic_id=self._topic_id(),
        )
        self._replay(log, min(replay_from, end), epochs_from)
        self._seal_ends(log)
        if not self.listing.floors:
            self._guess_floor(log)
        self._learn_first_epochs(log)
        self._owe(log, unsynced_from, clean)
        if log.epochs.entries != (noted_epochs or []):
            # The next opening trusts these notes: up to its recovery point, or entirely after a clean shutdown.
            log.owe_epochs()
        if self.is_unsettled:
            self._keep_rebuilt(segments)
        if self.boundary is not None:
            # Last, because it needs disk space and only saves the next opening a scan.
            with contextlib.suppress(OSError):
                snapshots.write_encoded(segments[-1].base_offset, self.boundary)
        log.durability.away.retire(self.deleted)
        return log

    def _usable_snapshots(self, segments: Sequence[Segment], clean: bool) -> Snapshots:
        """The snapshots that belong to this log. One above the safe part may belong to a history that an earlier
        power cut has ended; only the state before the first batch has no other source."""
        snapshots = Snapshots(self.disk, self.folder, self.listing.snapshots)
        end, first = segments[-1].next_offset, segments[0].base_offset
        safe = end if clean else min(end, max(self.opening.recovery_point, first))
        if any(each > safe for each in snapshots.offsets):
            snapshots.drop_after(safe)
            # The removal must be durable: the log may reach the same offset again with other records.
            self.disk.sync_folder(self.folder)
        snapshots.drop_below(first)
        return snapshots

    def _noted_producers(
        self, segments: Sequence[Segment], snapshots: Snapshots, clean: bool
    ) -> tuple[int, ProducerStates]:
        """Where the scan of the log begins, and the producers known there."""
        first, end = segments[0].base_offset, segments[-1].next_offset
        # If the scan cannot begin with a snapshot, one still holds the producers that wrote before the log's start.
        newest = snapshots.newest(end) if first and self.rebuild else None
        for segment in segments:
            if segment.base_offset in self.rebuild:
                snapshots.drop_below(segment.next_offset)
        snapshot = snapshots.newest(min(end, self.ends_from))
        if snapshot is not None and not clean and snapshot[0] > self.opening.recovery_point:
            # It is reliable for producers, but not for transactions.
            newest, snapshot = snapshot, None
        if snapshot is not None:
            return snapshot
        if first:
            newest = newest or snapshots.newest(end)
        return first, ProducerStates() if newest is None else newest[1].silent_since(first)

    def _guess_floor(self, log: PartitionLog) -> None:
        """Assume the worst for a log without a floor: an earlier version wrote it, or it is from a backup.

        Dropped evidence leaves a hole, and there is none above both offsets, as far as the log was scanned.
        """
        floor = max(log.compaction.clean_offset, self.hole_end)
        if not floor:
            return
        log.compaction.evidence_floor = Offset(floor)
        # If the disk is full, the next compaction or opening records it.
        with contextlib.suppress(OSError):
            write_floor(self.disk, self.folder, floor)
            log.durability.owe_folder()
            log.compaction.is_floor_kept = True

    def _owe(self, log: PartitionLog, unsynced_from: int, clean: bool) -> None:
        """What the next sync has to cover."""
        durability = log.durability
        if clean:
            # Most partitions are idle: a file is reopened when needed.
            log.segments.active.close()
            durability.owe_nothing()
        else:
            # The process may have ended before its first sync: neither the folder's name nor its topic id is safe
            # yet.
            durability.owe_folder(self.folder.rpartition("/")[0])
            if log.topic_id != NO_TOPIC_ID:
                log.owe_topic_id()
        for number, segment in enumerate(log.segments[:-1]):
            if number >= unsynced_from or segment.base_offset >= self.ends_from:
                durability.owe_segment(segment)
        if self.ends_from != _NOWHERE:
            durability.owe_folder()

    def _remove_orphans(self, first: int, end: int) -> None:
        """Remove what is no longer needed: mostly indexes left by a removal of segments, before the log's start or
        after its end. One in the middle may belong to a log file that an operator is about to restore, and it is
        the only record of what was aborted."""
        left = [name for name, offset in self.listing.orphans if not first <= offset < end]
        # The replica has safe records beyond the offset where it was restarted.
        left += [offset_name(each, BEGUN) for each in self.listing.begun if each < self.opening.recovery_point]
        left += [offset_name(each, FLOOR) for each in self.listing.floors[:-1]]
        if left:
            # The removal of their logs must be durable.
            self.disk.sync_folder(self.folder)
        for name in left:
            self.disk.remove(f"{self.folder}/{name}")

    def _hold(self, last: Segment) -> None:
        size_max = min(self.limits.index_interval_bytes, PROBE_BYTES)
        if 0 < last.size <= size_max and last.base_offset not in self.rebuild:
            self.small = last, HeldBytes(self.disk.read(last.path(LOG)))

    def _held(self, segment: Segment) -> HeldBytes | None:
        return self.small[1] if self.small is not None and self.small[0] is segment else None

    def _rebuild(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if segment.base_offset in self.rebuild:
                segment.rebuild_indexes(self.limits.index_interval_bytes)
                self._distrust(segment)

    def _doubt(self, end: int) -> None:
        """A clean shutdown records where each log ends. One that ends elsewhere was changed since."""
        if end != self.opening.recovery_point:
            self.opening.clean = False
            self.opening.notes.append(
                f"{self.folder} ends at offset {end}, but ended at {self.opening.recovery_point} when it was closed; "
                f"checking it as after a crash"
            )

    def _agrees(self, epochs: LeaderEpochs, segments: list[Segment], upper: int) -> bool:
        """Whether the last batch before offset `upper` has the leader epoch recorded for it.

        An outdated record lacks later epochs, and replicas would be truncated below what is committed.
        """
        holding = next((each for each in reversed(segments) if each.size and each.base_offset < upper), None)
        if holding is None:
            return True
        try:
            header = self._header_at(holding, min(upper, holding.next_offset) - 1)
        except Damaged:
            # The check that reads it will report the damage.
            return True
        if header is None or header.base_offset < self.opening.start_offset:
            return True
        return epochs.of(header.base_offset) == header.leader_epoch

    def _header_at(self, segment: Segment, offset: int) -> BatchHeader | None:
        """The header of the first batch that ends at or after `offset`."""
        held = self._held(segment)
        if held is not None:
            walked = headers(held, 0, segment.size)
            return next((header for _, header in walked if header.last_offset >= offset), None)
        span = segment.locate(offset)
        return None if span is None else read_header(segment.file.read_at(span.position, HEADER_BYTES))

    def _learn_first_epochs(self, log: PartitionLog) -> None:
        """Relearn the epochs of records that were deleted just before a crash and are back."""
        start, entries = log.start_offset, log.epochs.entries
        upper = entries[0][1] if entries else log.end_offset
        for segment in log.segments if start < upper else ():
            if segment.base_offset >= upper:
                return
            for _, header in segment.batches_from(start):
                if header.base_offset >= upper:
                    return
                log.epochs.learn(header.leader_epoch, header.base_offset)

    def _segments(self) -> list[Segment]:
        bases = self.listing.bases
        if not bases:
            if self.begun_at is None and self.opening.recovery_point > self.opening.start_offset:
                raise LogDamaged(
                    f"{self.folder} is empty, but everything below offset {self.opening.recovery_point} was durable; "
                    "restore the missing files, or delete the folder to start it empty"
                )
            return [self._begin()]
        segments = []
        for base, following in zip(bases, [*bases[1:], -1], strict=True):
            size = self.disk.size(f"{self.folder}/{offset_name(base, LOG)}")
            segments.append(Segment(self.files, self.folder, base, following, size))
        # Deleted from the front before the shutdown, but not yet from the disk.
        gone = sum(segment.base_offset <= self.opening.start_offset for segment in segments[1:])
        self._mark_deleted(segments[:gone])
        return segments[gone:]

    def _begin(self) -> Segment:
        """Create the first segment of an empty log, with the file that marks its start."""
        offset = max(self.opening.start_offset, self.begun_at or 0)
        earlier = [each for each in self.listing.begun if each != offset]
        for each in earlier:
            self.disk.remove(f"{self.folder}/{offset_name(each, BEGUN)}")
        if offset or earlier:
            # A file that came back would count for what is written from here on.
            self.disk.sync_folder(self.folder)
        if offset:
            self.disk.open(f"{self.folder}/{offset_name(offset, BEGUN)}", create=True).close()
        self.listing = self.listing._replace(begun=(offset,) if offset else ())
        return Segment.create(self.files, self.folder, offset)

    def _mark_deleted(self, segments: list[Segment]) -> None:
        if segments:
            # The remaining segments must be durable first: their names may never have been synced.
            self.disk.sync_folder(self.folder)
        for segment in segments:
            self.deleted += segment.rename_all(DELETED)
            segment.close()

    # After a crash

    def _recover(self, segments: list[Segment]) -> int:
        """Check everything from the recovery point on and cut off what is damaged; the number of the first segment
        checked."""
        self._drop_overlaps(segments)
        point = self._safe_to(segments)
        first = max((n for n, segment in enumerate(segments) if segment.base_offset <= point), default=0)
        for segment in segments[:first]:
            # A segment that ends at the recovery point may have been sealed after the last sync.
            is_safe = segment.next_offset < point and segment.base_offset not in self.rebuild
            if segment.next_offset == point:
                self._cut_behind(segment)
            if not (segment.has_plausible_indexes() if is_safe else segment.has_whole_indexes()):
                segment.rebuild_indexes(self.limits.index_interval_bytes)
            if not is_safe or not segment.aborted.is_plausible(segment.base_offset, segment.next_offset):
                self._distrust(segment)
        self._distrust(segments[first])
        number = first
        while number < len(segments):
            segment = segments[number]
            damage = segment.recover(point, self.limits.index_interval_bytes, self.present, self._held(segment))
            if damage is not None:
                self._cut(segments, number, damage)
            following = segments[number + 1] if number + 1 < len(segments) else None
            if following is not None and point <= segment.next_offset != following.base_offset:
                # Above the recovery point a gap is a lost tail; below it, compaction by another program.
                self._drop_following(segments, number)
                following = None
            if following is not None:
                segment.next_offset = following.base_offset
                segment.seal()
            number += 1
        if segments[-1].next_offset < point:
            raise LogDamaged(
                f"{self.folder} ends at offset {segments[-1].next_offset}, but everything below {point} was durable; "
                f"restore the missing files, or delete the partition's folder to replicate it again"
            )
        if segments[-1].next_offset < self.opening.recovery_point:
            return self._begin_again(segments)
        return first

    def _safe_to(self, segments: Sequence[Segment]) -> int:
        """Up to where nothing may be missing. A replica that was restarted inside a batch of its leader has a
        segment that begins below its start, and nothing in it is safe until it has more than this batch."""
        point = self.opening.recovery_point
        return point if self.begun_at is None else min(point, segments[0].base_offset)

    def _begin_again(self, segments: list[Segment]) -> int:
        """Restart a replica that stopped before its first batch."""
        self._mark_deleted(segments)
        self.shortened = []
        segments[:] = [self._begin()]
        return 0

    def _drop_overlaps(self, segments: list[Segment]) -> None:
        """Drop segments that a compacted one before them covers: their removal did not survive the crash."""
        number = 0
        while number + 1 < len(segments):
            segment = segments[number]
            end = segment.true_next_offset() if segment.size else segment.base_offset
            bases = [other.base_offset for other in segments]
            # A compacted segment ends exactly where another begins. Any other end is damage, and no reason to delete.
            covered = bases.index(end) if end in bases else 0
            if covered > number + 1 and not self._is_copy(segment, segments[number + 1]):
                covered = 0
            self._mark_deleted(segments[number + 1 : covered])
            del segments[number + 1 : covered]
            if number + 1 < len(segments):
                segment.next_offset = segments[number + 1].base_offset
            number += 1

    def _is_copy(self, segment: Segment, following: Segment) -> bool:
        """Whether the segment's overlap with the following one can be a copy. A tail that a follower truncated for
        lack of space, and a power cut brought back, may overlap too: it has an earlier leader epoch."""
        try:
            mine = self._header_at(segment, following.base_offset)
            other = self._header_at(following, following.base_offset)
        except Damaged:
            # Segments replaced by a compaction are whole and safe.
            return False
        return mine is not None and other is not None and mine.leader_epoch >= other.leader_epoch

    def _cut_behind(self, segment: Segment) -> None:
        """Cut off what a write on a full disk left after the end of a sealed segment."""
        position = segment.end_position()
        if position is not None and position < segment.size:
            self._begin_cut()
            segment.cut(position, self.limits.index_interval_bytes)
            segment.seal()
            self.shortened.append(segment)

    def _cut(self, segments: list[Segment], number: int, damage: Damaged) -> None:
        segment = segments[number]
        if segment.next_offset < self._safe_to(segments):
            raise LogDamaged(
                f"{segment.path(LOG)} is damaged at {damage}, but everything below offset "
                f"{self.opening.recovery_point} was durable; repair or remove the file, or delete the partition's "
                "folder to replicate it again"
            )
        if _holds_a_batch_after(segment.file, damage.position, segment.size):
            path = f"{self.folder}/{offset_name(segment.next_offset, CUT)}"
            copy_tail(self.disk, segment.file, damage.position, segment.size, path)
            self.disk.sync_folder(self.folder)
            self.opening.notes.append(
                f"{segment.path(LOG)}: {damage}; truncated the log to offset {segment.next_offset} and kept the "
                f"{segment.size - damage.position} bytes after the damage in {path}"
            )
        self._begin_cut()
        segment.cut(damage.position, self.limits.index_interval_bytes)
        self.shortened.append(segment)
        if [each.base_offset for each in segments[number + 1 : number + 2]] != [segment.next_offset]:
            self._drop_following(segments, number)

    def _begin_cut(self) -> None:
        """Record that data is about to be cut: if this opening is interrupted, the next one finds no torn tail,
        and must still not trust the page cache."""
        if not self.opening.has_cut:
            mark_failed_sync(self.disk, self.folder)
        self.opening.cut()

    def _keep_cut(self, shortened: Iterable[Segment]) -> None:
        """Make the cut durable before anything is written: a power cut could bring back what was cut off."""
        for segment in shortened:
            segment.file.sync()
        self.disk.sync_folder(self.folder)
        remove_mark(self.disk, self.folder)

    def _keep_rebuilt(self, segments: Sequence[Segment]) -> None:
        """Nothing else records that an index must be rebuilt: a segment without aborted transactions has none."""
        for segment in segments:
            if segment.base_offset in self.rebuild or segment.base_offset >= self.ends_from:
                for path in segment.index_paths():
                    sync_if_there(self.disk, path)
        self.disk.sync_folder(self.folder)
        self.disk.remove(f"{self.folder}/{UNSETTLED_FILE}")

    def _drop_following(self, segments: list[Segment], number: int) -> None:
        """Set aside the segments after one that the log now ends in: they do not connect to it."""
        for segment in segments[number + 1 :]:
            if segment.size:
                self._begin_cut()
                self.opening.notes.append(
                    f"{segment.path(LOG)} does not connect to offset {segments[number].next_offset} before it; "
                    f"kept it as {segment.path(LOG)}{CUT}"
                )
            renamed = segment.rename_all(CUT if segment.size else DELETED)
            if not segment.size:
                self.deleted += renamed
            segment.close()
        del segments[number + 1 :]

    # Files beside the log

    def _topic_id(self) -> UUID:
        if METADATA_FILE not in self.present:
            return NO_TOPIC_ID
        try:
            return decode_metadata(self.disk.read(f"{self.folder}/{METADATA_FILE}"))
        except DamagedCheckpoint as damage:
            self.opening.notes.append(f"{self.folder}: {damage}")
            return NO_TOPIC_ID

    def _noted_epochs(self) -> list[tuple[int, int]] | None:
        """The leader epochs from their file; None if it is missing or damaged."""
        if EPOCHS_FILE not in self.present:
            return None
        try:
            return decode_epochs(self.disk.read(f"{self.folder}/{EPOCHS_FILE}"))
        except DamagedCheckpoint:
            return None

    def _distrust(self, segment: Segment) -> None:
        self.ends_from = min(self.ends_from, segment.base_offset)

    def _replay(self, log: PartitionLog, producers_from: int, epochs_from: int) -> None:
        """Rebuild the state of producers and epochs from the log and, where unknown, the aborted transactions."""
        last = log.segments.active
        for segment in log.segments:
            if (
                segment is last
                and last.base_offset > producers_from
                and last.base_offset not in log.snapshots.offsets
            ):
                self.boundary = encode_snapshot(log.producers)
            if segment.base_offset >= self.ends_from:
                segment.aborted.start()
            start = min(producers_from, epochs_from)
            if segment.next_offset <= start or not segment.size:
                continue
            file: Readable | None = self._held(segment)
            position = 0
            if file is None:
                file = segment.file
                span = segment.locate(start) if start > segment.base_offset else None
                position = span.position if span else 0
            expected = segment.base_offset if not position else _NOWHERE
            walked = headers(file, position, segment.size, SCAN_BYTES)
            walked = self._epochs_noted(log, self._holes_noted(walked, expected), epochs_from)
            for ended in log.producers.replay(file, walked, producers_from, self.opening.now_ms):
                if segment.base_offset >= self.ends_from:
                    segment.note_ended(ended)

    def _epochs_noted(
        self, log: PartitionLog, walked: Iterator[tuple[int, BatchHeader]], epochs_from: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        for position, header in walked:
            if header.base_offset >= epochs_from:
                log.epochs.learn(header.leader_epoch, header.base_offset)
            yield position, header

    def _holes_noted(
        self, walked: Iterator[tuple[int, BatchHeader]], expected_offset: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        for position, header in walked:
            if has_hole(header, expected_offset):
                self.hole_end = header.next_offset
            expected_offset = header.next_offset
            yield position, header

    def _seal_ends(self, log: PartitionLog) -> None:
        for segment in log.segments[:-1]:
            if segment.base_offset >= self.ends_from:
                segment.aborted.seal()


def _holds_a_batch_after(file: File, position: int, end: int) -> bool:
    """Whether a whole batch follows the damaged one: then this is more than a torn tail."""
    data = file.read_at(position, HEADER_BYTES)
    size = read_header(data).size if len(data) == HEADER_BYTES else 0
    if not HEADER_BYTES <= size < end - position:
        return False
    try:
        next(checked(file, position + size, end))
    except Damaged:
        return False
    return True
