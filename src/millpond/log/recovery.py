"""Opening a partition's folder, after a clean end or after a crash at any moment.

After a clean end the files are taken at their word. After a crash everything from the recovery point on is read and
checked: what a power cut tore at the end is cut off. Damage below the recovery point is another matter: those bytes
were known to be safe, so the partition stays offline for a person (or a replica) to mend, and nothing is thrown away.
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
"""Thousands of folders have files of the same names: what those tell is worked out once."""


class LogDamaged(Exception):
    """Bytes that were known to be safe are not what they were. The partition stays offline."""


@dataclass(slots=True)
class Opening:
    """What the data folder's checkpoints know about one partition."""

    clean: bool = False
    """The last end was a clean one: every file is whole and synced."""
    recovery_point: int = 0
    start_offset: int = 0
    clean_offset: int = 0
    now_ms: int = 0
    notes: list[str] = field(default_factory=list)
    """What a person should hear of; filled while opening."""
    has_cut: bool = False
    """Whether bytes were cut off at the end: records that others count on may have been among them."""
    before_cut: Callable[[], None] = lambda: None
    """Called before the first of them goes: the next start must know, should this one not come to tell."""

    def cut(self) -> None:
        if not self.has_cut:
            self.has_cut = True
            self.before_cut()


def open_log(files: OpenFiles, folder: str, limits: LogLimits, opening: Opening) -> PartitionLog:
    """The log in `folder`, ready for use. LogDamaged or OSError if it cannot be."""
    try:
        return _Opener(files, folder, limits, opening).open()
    except Damaged as damage:
        raise LogDamaged(f"{folder}: {damage}") from None


class _Listing(NamedTuple):
    """What the names of a folder's files tell."""

    present: frozenset[str]
    bases: tuple[int, ...]
    """Where its segments begin, in order."""
    snapshots: tuple[str, ...]
    orphans: tuple[tuple[str, int], ...]
    """Indexes of segments that are gone, and where those began."""
    begun: tuple[int, ...]
    """Where the replica was begun anew."""
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
        """The last segment if it is so small that no index has an entry for it, and its file: read once, for all who
        ask. Most partitions are idle, and many are small."""
        self.shortened: list[Segment] = []
        self.boundary: bytes | None = None
        """The snapshot of the last segment's beginning, if it is to be made again."""
        self.ends_from = _NOWHERE
        """From the segment of this base offset on, what is noted about ended transactions cannot be trusted."""
        self.listing = _listing(tuple(names))
        was_unsettled = self.is_unsettled = UNSETTLED_FILE in self.listing.present
        """Whether indexes are made again, and this is to be known until they are on the disk."""
        if self.listing.has_leftovers:
            if any(name.endswith(SWAP) for name in names):
                self.is_unsettled = True
                disk.open(f"{folder}/{UNSETTLED_FILE}", create=True).close()
                disk.sync_folder(folder)
            self.rebuild = settle(disk, folder, names)
            names = disk.list(folder)
            self.listing = _listing(tuple(names))
        if was_unsettled:
            # The last opening did not come to its end: which ones it had settled nobody knows.
            self.rebuild = set(self.listing.bases)
            remove_indexes(disk, folder, names)
            names = disk.list(folder)
            self.listing = _listing(tuple(names))
        if FAILED_SYNC_FILE in self.listing.present:
            rewrite(disk, folder, names, opening.recovery_point)
            opening.clean = False
            opening.notes.append(f"{folder}: a sync had failed; what may not have reached the disk was written again")
            self.listing = _listing(tuple(disk.list(folder)))
        self.present = self.listing.present
        begun = max(self.listing.begun, default=-1)
        self.begun_at = begun if begun >= opening.recovery_point else None
        """Where the replica was begun anew, if nothing that it has got since is known to be safe."""
        self.hole_end = 0
        """The end of the last batch that compaction has left incomplete, or that has a gap before it."""
        self.deleted: list[str] = []
        """Files that this opening has taken out of the log, and that are yet to be removed."""

    def open(self) -> PartitionLog:
        segments = self._segments()
        self._hold(segments[-1])
        if self.opening.clean:
            # After a crash the end may be torn: there what checks it makes the indexes, too.
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
        # What is noted from there on may be of what was cut off since: the batches tell.
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
            # The next opening goes by what is noted: up to its recovery point, or all of it after a clean end.
            log.owe_epochs()
        if self.is_unsettled:
            self._keep_rebuilt(segments)
        if self.boundary is not None:
            # Only to spare the next one the walk, and so the last that needs room.
            with contextlib.suppress(OSError):
                snapshots.write_encoded(segments[-1].base_offset, self.boundary)
        log.durability.away.retire(self.deleted)
        return log

    def _usable_snapshots(self, segments: Sequence[Segment], clean: bool) -> Snapshots:
        """Those that tell of this log. Above what is known to be safe one may be of a history that an earlier power
        cut has ended; only what is before the first batch nobody else could tell."""
        snapshots = Snapshots(self.disk, self.folder, self.listing.snapshots)
        end, first = segments[-1].next_offset, segments[0].base_offset
        safe = end if clean else min(end, max(self.opening.recovery_point, first))
        if any(each > safe for each in snapshots.offsets):
            snapshots.drop_after(safe)
            # For certain: the log may come to the same offset again, by another way.
            self.disk.sync_folder(self.folder)
        snapshots.drop_below(first)
        return snapshots

    def _noted_producers(
        self, segments: Sequence[Segment], snapshots: Snapshots, clean: bool
    ) -> tuple[int, ProducerStates]:
        """Where the walk through the log begins, and what is known of its producers there."""
        first, end = segments[0].base_offset, segments[-1].next_offset
        # If the walk cannot begin with a snapshot, one tells of those who wrote before the log's beginning.
        newest = snapshots.newest(end) if first and self.rebuild else None
        for segment in segments:
            if segment.base_offset in self.rebuild:
                snapshots.drop_below(segment.next_offset)
        snapshot = snapshots.newest(min(end, self.ends_from))
        if snapshot is not None and not clean and snapshot[0] > self.opening.recovery_point:
            # It tells of producers, and nothing certain of transactions.
            newest, snapshot = snapshot, None
        if snapshot is not None:
            return snapshot
        if first:
            newest = newest or snapshots.newest(end)
        return first, ProducerStates() if newest is None else newest[1].silent_since(first)

    def _guess_floor(self, log: PartitionLog) -> None:
        """Assume the worst of a log that has no floor: an earlier version wrote it, or it comes from a backup.

        Evidence that has gone leaves a hole, and there are none above both offsets, as far as the log was walked.
        """
        floor = max(log.compaction.clean_offset, self.hole_end)
        if not floor:
            return
        log.compaction.evidence_floor = Offset(floor)
        # Without room for it, the next compaction or the next opening records it.
        with contextlib.suppress(OSError):
            write_floor(self.disk, self.folder, floor)
            log.durability.owe_folder()
            log.compaction.is_floor_kept = True

    def _owe(self, log: PartitionLog, unsynced_from: int, clean: bool) -> None:
        """What the next sync has to make last."""
        durability = log.durability
        if clean:
            # Most partitions are idle: a file is opened again when it is needed.
            log.segments.active.close()
            durability.owe_nothing()
        else:
            # The process may have ended before its first sync: neither the folder's name nor its owner is safe yet.
            durability.owe_folder(self.folder.rpartition("/")[0])
            if log.topic_id != NO_TOPIC_ID:
                log.owe_topic_id()
        for number, segment in enumerate(log.segments[:-1]):
            if number >= unsynced_from or segment.base_offset >= self.ends_from:
                durability.owe_segment(segment)
        if self.ends_from != _NOWHERE:
            durability.owe_folder()

    def _remove_orphans(self, first: int, end: int) -> None:
        """What nobody needs any more: above all indexes that a removal of segments has left, before the beginning of
        the log or behind its end. One in the middle may be of a log file that somebody is going to put back, and
        nothing else says what was aborted."""
        left = [name for name, offset in self.listing.orphans if not first <= offset < end]
        # Behind where it was begun it has records that are safe by now.
        left += [offset_name(each, BEGUN) for each in self.listing.begun if each < self.opening.recovery_point]
        left += [offset_name(each, FLOOR) for each in self.listing.floors[:-1]]
        if left:
            # Their logs must be gone for certain.
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
        """Whoever ends in order notes where each log ends. One that ends elsewhere was changed by somebody since."""
        if end != self.opening.recovery_point:
            self.opening.clean = False
            self.opening.notes.append(
                f"{self.folder} ends at offset {end}, and ended at {self.opening.recovery_point} when it was closed; "
                f"it is checked as after a crash"
            )

    def _agrees(self, epochs: LeaderEpochs, segments: list[Segment], upper: int) -> bool:
        """Whether the last batch before offset `upper` is of the leader epoch that is noted for it.

        An older note does not know the epochs since: by it replicas would be cut back below what is committed.
        """
        holding = next((each for each in reversed(segments) if each.size and each.base_offset < upper), None)
        if holding is None:
            return True
        try:
            header = self._header_at(holding, min(upper, holding.next_offset) - 1)
        except Damaged:
            # Whoever reads it will find out.
            return True
        if header is None or header.base_offset < self.opening.start_offset:
            return True
        return epochs.of(header.base_offset) == header.leader_epoch

    def _header_at(self, segment: Segment, offset: int) -> BatchHeader | None:
        """Of the first batch that ends at or after `offset`."""
        held = self._held(segment)
        if held is not None:
            walked = headers(held, 0, segment.size)
            return next((header for _, header in walked if header.last_offset >= offset), None)
        span = segment.locate(offset)
        return None if span is None else read_header(segment.file.read_at(span.position, HEADER_BYTES))

    def _learn_first_epochs(self, log: PartitionLog) -> None:
        """Records that were deleted just before a crash may be back, and their epochs not be noted any more."""
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
                    f"{self.folder} is empty, but all below offset {self.opening.recovery_point} was known to be "
                    f"safe; put the missing files back, or delete the folder to begin it anew"
                )
            return [self._begin()]
        segments = []
        for base, following in zip(bases, [*bases[1:], -1], strict=True):
            size = self.disk.size(f"{self.folder}/{offset_name(base, LOG)}")
            segments.append(Segment(self.files, self.folder, base, following, size))
        # Deleted from the front before the end, but not yet from the disk.
        gone = sum(segment.base_offset <= self.opening.start_offset for segment in segments[1:])
        self._mark_deleted(segments[:gone])
        return segments[gone:]

    def _begin(self) -> Segment:
        """The first segment of a log that has nothing, with the file that says so."""
        offset = max(self.opening.start_offset, self.begun_at or 0)
        earlier = [each for each in self.listing.begun if each != offset]
        for each in earlier:
            self.disk.remove(f"{self.folder}/{offset_name(each, BEGUN)}")
        if offset or earlier:
            # One that came back would count for what is written from here on.
            self.disk.sync_folder(self.folder)
        if offset:
            self.disk.open(f"{self.folder}/{offset_name(offset, BEGUN)}", create=True).close()
        self.listing = self.listing._replace(begun=(offset,) if offset else ())
        return Segment.create(self.files, self.folder, offset)

    def _mark_deleted(self, segments: list[Segment]) -> None:
        if segments:
            # What stays must be there for certain first: its name may have been synced by nobody yet.
            self.disk.sync_folder(self.folder)
        for segment in segments:
            self.deleted += segment.rename_all(DELETED)
            segment.close()

    # After a crash

    def _recover(self, segments: list[Segment]) -> int:
        """Check everything from the recovery point on and cut off what does not hold; the first segment checked."""
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
                # Above the recovery point a gap is a tail that was lost; below it, compaction by another program.
                self._drop_following(segments, number)
                following = None
            if following is not None:
                segment.next_offset = following.base_offset
                segment.seal()
            number += 1
        if segments[-1].next_offset < point:
            raise LogDamaged(
                f"{self.folder} ends at offset {segments[-1].next_offset}, but all below {point} was known to be "
                f"safe; put the missing files back, or delete the partition's folder to copy it anew"
            )
        if segments[-1].next_offset < self.opening.recovery_point:
            return self._begin_again(segments)
        return first

    def _safe_to(self, segments: Sequence[Segment]) -> int:
        """Up to where nothing may be missing. A replica that was begun anew inside a batch of its leader has a
        segment that begins below its start, and until it has more than this there is nothing in it that is safe."""
        point = self.opening.recovery_point
        return point if self.begun_at is None else min(point, segments[0].base_offset)

    def _begin_again(self, segments: list[Segment]) -> int:
        """The replica that was begun anew has not come to its first batch: it begins once more."""
        self._mark_deleted(segments)
        self.shortened = []
        segments[:] = [self._begin()]
        return 0

    def _drop_overlaps(self, segments: list[Segment]) -> None:
        """Segments that a compacted one before them covers: their removal did not survive the crash."""
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
        """Whether what the segment has of the following one can be a copy. What a follower had to cut off for want of
        room, and a power cut brings back, may reach as far: it is of an earlier leader then."""
        try:
            mine = self._header_at(segment, following.base_offset)
            other = self._header_at(following, following.base_offset)
        except Damaged:
            # What a compaction replaces is whole and safe.
            return False
        return mine is not None and other is not None and mine.leader_epoch >= other.leader_epoch

    def _cut_behind(self, segment: Segment) -> None:
        """Cut off what a write that found no room has left behind the end of a sealed segment."""
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
                f"{segment.path(LOG)} is damaged at {damage}, below offset {self.opening.recovery_point} that was "
                f"known to be safe; mend or remove the file, or delete the partition's folder to copy it anew"
            )
        if _holds_a_batch_after(segment.file, damage.position, segment.size):
            path = f"{self.folder}/{offset_name(segment.next_offset, CUT)}"
            copy_tail(self.disk, segment.file, damage.position, segment.size, path)
            self.disk.sync_folder(self.folder)
            self.opening.notes.append(
                f"{segment.path(LOG)}: {damage}; the log ends at offset {segment.next_offset}, and the "
                f"{segment.size - damage.position} bytes from the damage on are kept in {path}"
            )
        self._begin_cut()
        segment.cut(damage.position, self.limits.index_interval_bytes)
        self.shortened.append(segment)
        if [each.base_offset for each in segments[number + 1 : number + 2]] != [segment.next_offset]:
            self._drop_following(segments, number)

    def _begin_cut(self) -> None:
        """Before the first of it: should this opening not come to its end, the next one finds nothing torn any more,
        and must not take the page cache's word for it."""
        if not self.opening.has_cut:
            mark_failed_sync(self.disk, self.folder)
        self.opening.cut()

    def _keep_cut(self, shortened: Iterable[Segment]) -> None:
        """Make it last before anything is written behind it: the next power cut could bring back what was cut off."""
        for segment in shortened:
            segment.file.sync()
        self.disk.sync_folder(self.folder)
        remove_mark(self.disk, self.folder)

    def _keep_rebuilt(self, segments: Sequence[Segment]) -> None:
        """Nothing else says that an index is to be made again: a segment without aborted transactions has none."""
        for segment in segments:
            if segment.base_offset in self.rebuild or segment.base_offset >= self.ends_from:
                for path in segment.index_paths():
                    sync_if_there(self.disk, path)
        self.disk.sync_folder(self.folder)
        self.disk.remove(f"{self.folder}/{UNSETTLED_FILE}")

    def _drop_following(self, segments: list[Segment], number: int) -> None:
        """The log ends inside this segment: later ones do not connect to it."""
        for segment in segments[number + 1 :]:
            if segment.size:
                self._begin_cut()
                self.opening.notes.append(
                    f"{segment.path(LOG)} does not connect to offset {segments[number].next_offset} before it; "
                    f"kept as {segment.path(LOG)}{CUT}"
                )
            renamed = segment.rename_all(CUT if segment.size else DELETED)
            if not segment.size:
                self.deleted += renamed
            segment.close()
        del segments[number + 1 :]

    # What stands beside the log

    def _topic_id(self) -> UUID:
        if METADATA_FILE not in self.present:
            return NO_TOPIC_ID
        try:
            return decode_metadata(self.disk.read(f"{self.folder}/{METADATA_FILE}"))
        except DamagedCheckpoint as damage:
            self.opening.notes.append(f"{self.folder}: {damage}")
            return NO_TOPIC_ID

    def _noted_epochs(self) -> list[tuple[int, int]] | None:
        """The leader epochs as their file tells them; None if it does not."""
        if EPOCHS_FILE not in self.present:
            return None
        try:
            return decode_epochs(self.disk.read(f"{self.folder}/{EPOCHS_FILE}"))
        except DamagedCheckpoint:
            return None

    def _distrust(self, segment: Segment) -> None:
        self.ends_from = min(self.ends_from, segment.base_offset)

    def _replay(self, log: PartitionLog, producers_from: int, epochs_from: int) -> None:
        """Make again what the log tells about producers, epochs and, where that is not known, ended transactions."""
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
    """Whether a whole batch follows the damaged one: then this is more than a torn end."""
    data = file.read_at(position, HEADER_BYTES)
    size = read_header(data).size if len(data) == HEADER_BYTES else 0
    if not HEADER_BYTES <= size < end - position:
        return False
    try:
        next(checked(file, position + size, end))
    except Damaged:
        return False
    return True
