"""Opening a partition's folder, after a clean end or after a crash at any moment.

After a clean end the files are taken at their word. After a crash everything from the recovery point on is read and
checked: what a power cut tore at the end is cut off. Damage below the recovery point is another matter: those bytes
were known to be safe, so the partition stays offline for a person (or a replica) to mend, and nothing is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID
from millpond.base.ports import File
from millpond.log.checkpoints import DamagedCheckpoint, decode_epochs, decode_metadata
from millpond.log.epochs import LeaderEpochs
from millpond.log.failed_sync import rewrite
from millpond.log.leftovers import has_leftovers, settle
from millpond.log.limits import LogLimits
from millpond.log.names import (
    CUT,
    DELETED,
    EPOCHS_FILE,
    FAILED_SYNC_FILE,
    LOG,
    METADATA_FILE,
    offset_name,
    read_offset_name,
)
from millpond.log.open_files import OpenFiles
from millpond.log.partition_log import PartitionLog
from millpond.log.producers import ProducerStates
from millpond.log.scan import SCAN_BYTES, Damaged, checked, headers
from millpond.log.segment import Segment
from millpond.log.snapshots import Snapshots
from millpond.wire.batch import HEADER_BYTES, BatchHeader, read_header

_NOWHERE = 1 << 63

RECALLED_ENTRIES = 64
"""How many entries of the offset index to go back: so many large batches, or 256 KiB of small ones."""


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


def open_log(files: OpenFiles, folder: str, limits: LogLimits, opening: Opening) -> PartitionLog:
    """The log in `folder`, ready for use. LogDamaged or OSError if it cannot be."""
    try:
        return _Opener(files, folder, limits, opening).open()
    except Damaged as damage:
        raise LogDamaged(f"{folder}: {damage}") from None


class _Opener:
    def __init__(self, files: OpenFiles, folder: str, limits: LogLimits, opening: Opening) -> None:
        disk = files.disk
        self.files = files
        self.disk = disk
        self.folder = folder
        self.limits = limits
        self.opening = opening
        self.names = disk.list(folder)
        self.rebuild: set[int] = set()
        self.ends_from = _NOWHERE
        """From the segment of this base offset on, what is noted about ended transactions cannot be trusted."""
        if has_leftovers(self.names):
            self.rebuild = settle(disk, folder, self.names)
            self.names = disk.list(folder)
        if FAILED_SYNC_FILE in self.names:
            rewrite(disk, folder, self.names, opening.recovery_point)
            opening.clean = False
            opening.notes.append(f"{folder}: a sync had failed; what may not have reached the disk was written again")
            self.names = disk.list(folder)
        self.present = set(self.names)

    def open(self) -> PartitionLog:
        segments = self._segments()
        clean = self.opening.clean
        for segment in segments:
            if segment.base_offset in self.rebuild:
                segment.rebuild_indexes(self.limits.index_interval_bytes)
                self._distrust(segment)
        unsynced_from = len(segments)
        if clean:
            segments[-1].load_tail(self.limits.index_interval_bytes, self.present)
            # Most partitions are idle: a file is opened again when it is needed.
            segments[-1].close()
        else:
            unsynced_from = self._recover(segments)
        end = segments[-1].next_offset
        snapshots = Snapshots(self.disk, self.folder, self.names)
        snapshots.drop_after(end)
        for segment in segments:
            if segment.base_offset in self.rebuild:
                snapshots.drop_below(segment.next_offset)
        noted_epochs = self._noted_epochs()
        epochs = LeaderEpochs(noted_epochs or ())
        epochs.cut_end(end)
        snapshot = snapshots.newest(min(end, self.ends_from))
        replay_from, producers = snapshot or (segments[0].base_offset, ProducerStates())
        self._recall(producers, segments, replay_from)
        log = PartitionLog(
            self.files,
            self.folder,
            self.limits,
            segments=segments,
            start_offset=min(max(self.opening.start_offset, segments[0].base_offset), end),
            synced_offset=end if clean else min(self.opening.recovery_point, end),
            clean_offset=min(self.opening.clean_offset, end),
            epochs=epochs,
            producers=producers,
            snapshots=snapshots,
            topic_id=self._topic_id(),
        )
        epochs_from = segments[0].base_offset
        if noted_epochs is not None:
            epochs_from = end if clean else max(epochs_from, min(self.opening.recovery_point, end))
        self._replay(log, min(replay_from, end), epochs_from)
        self._seal_ends(log)
        durability = log.durability
        if clean:
            durability.owe_nothing()
        else:
            # The process may have ended before its first sync: neither the folder's name nor its owner is safe yet.
            durability.owe_folder(self.folder.rpartition("/")[0])
            if log.topic_id != NO_TOPIC_ID:
                log.owe_topic_id()
        if log.epochs.entries != (noted_epochs or []):
            # The next opening goes by what is noted: up to its recovery point, or all of it after a clean end.
            log.owe_epochs()
        for number, segment in enumerate(segments[:-1]):
            if number >= unsynced_from or segment.base_offset >= self.ends_from:
                durability.owe_segment(segment)
        if self.ends_from != _NOWHERE:
            durability.owe_folder()
        return log

    def _recall(self, producers: ProducerStates, segments: list[Segment], upto: int) -> None:
        """Complete what a snapshot at offset `upto` told, as far as the last batches before it are cheap to find."""
        if not producers.retrying(self.opening.now_ms):
            return
        # Two segments, because the last one may have just begun.
        before = [segment for segment in segments if segment.base_offset < upto and segment.size][-2:]
        walked = (
            header
            for segment in before
            for _, header in headers(segment.file, segment.position_back(RECALLED_ENTRIES), segment.size)
        )
        producers.recall(walked, self.opening.now_ms)

    def _segments(self) -> list[Segment]:
        files = (read_offset_name(name) for name in self.names)
        bases = sorted(entry[0] for entry in files if entry and entry[1] == LOG)
        if not bases:
            # Better an offset that was never used than one that was used before.
            base = max(self.opening.start_offset, self.opening.recovery_point)
            return [Segment.create(self.files, self.folder, base)]
        segments = []
        for base, following in zip(bases, [*bases[1:], -1], strict=True):
            size = self.disk.size(f"{self.folder}/{offset_name(base, LOG)}")
            segments.append(Segment(self.files, self.folder, base, following, size))
        # Deleted from the front before the end, but not yet from the disk.
        gone = sum(segment.base_offset <= self.opening.start_offset for segment in segments[1:])
        self._mark_deleted(segments[:gone])
        return segments[gone:]

    def _mark_deleted(self, segments: list[Segment]) -> None:
        if segments:
            # What stays must be there for certain first: its name may have been synced by nobody yet.
            self.disk.sync_folder(self.folder)
        for segment in segments:
            segment.rename_all(DELETED)
            segment.close()

    # After a crash

    def _recover(self, segments: list[Segment]) -> int:
        """Check everything from the recovery point on and cut off what does not hold; the first segment checked."""
        self._drop_overlaps(segments)
        point = self.opening.recovery_point
        first = max((n for n, segment in enumerate(segments) if segment.base_offset <= point), default=0)
        for segment in segments[:first]:
            if not segment.has_plausible_indexes():
                segment.rebuild_indexes(self.limits.index_interval_bytes)
            # A segment that ends at the recovery point may have been sealed after the last sync.
            is_safe = segment.next_offset < point
            if not is_safe or not segment.aborted.is_plausible(segment.base_offset, segment.next_offset):
                self._distrust(segment)
        self._distrust(segments[first])
        number = first
        while number < len(segments):
            segment = segments[number]
            damage = segment.recover(point, self.limits.index_interval_bytes)
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
        return first

    def _drop_overlaps(self, segments: list[Segment]) -> None:
        """Segments that a compacted one before them covers: their removal did not survive the crash."""
        number = 0
        while number + 1 < len(segments):
            segment = segments[number]
            end = segment.true_next_offset() if segment.size else segment.base_offset
            bases = [other.base_offset for other in segments]
            # A compacted segment ends exactly where another begins. Any other end is damage, and no reason to delete.
            covered = bases.index(end) if end in bases else 0
            self._mark_deleted(segments[number + 1 : covered])
            del segments[number + 1 : covered]
            if number + 1 < len(segments):
                segment.next_offset = segments[number + 1].base_offset
            number += 1

    def _cut(self, segments: list[Segment], number: int, damage: Damaged) -> None:
        segment = segments[number]
        self.opening.has_cut = True
        if segment.next_offset < self.opening.recovery_point:
            raise LogDamaged(
                f"{segment.path(LOG)} is damaged at {damage}, below offset {self.opening.recovery_point} that was "
                f"known to be safe; mend or remove the file, or delete the partition's folder to copy it anew"
            )
        if _holds_a_batch_after(segment.file, damage.position, segment.size):
            path = f"{self.folder}/{offset_name(segment.next_offset, CUT)}"
            self._copy_tail(segment, damage.position, path)
            self.opening.notes.append(
                f"{segment.path(LOG)}: {damage}; the log ends at offset {segment.next_offset}, and the "
                f"{segment.size - damage.position} bytes from the damage on are kept in {path}"
            )
        segment.cut(damage.position, self.limits.index_interval_bytes)
        self._drop_following(segments, number)

    def _copy_tail(self, segment: Segment, position: int, path: str) -> None:
        copy = self.disk.open(path, create=True)
        try:
            copy.truncate(0)
            while position < segment.size:
                piece = segment.file.read_at(position, SCAN_BYTES)
                copy.append((piece,))
                position += len(piece)
            copy.sync()
        finally:
            copy.close()
        self.disk.sync_folder(self.folder)

    def _drop_following(self, segments: list[Segment], number: int) -> None:
        """The log ends inside this segment: later ones do not connect to it."""
        for segment in segments[number + 1 :]:
            if segment.size:
                self.opening.has_cut = True
                self.opening.notes.append(
                    f"{segment.path(LOG)} does not connect to offset {segments[number].next_offset} before it; "
                    f"kept as {segment.path(LOG)}{CUT}"
                )
            segment.rename_all(CUT if segment.size else DELETED)
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
        for segment in log.segments:
            if segment.base_offset >= self.ends_from:
                segment.aborted.start()
            start = min(producers_from, epochs_from)
            if segment.next_offset <= start or not segment.size:
                continue
            span = segment.locate(start) if start > segment.base_offset else None
            position = span.position if span else 0
            file = segment.file
            walked = self._epochs_noted(log, headers(file, position, segment.size, SCAN_BYTES), epochs_from)
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
