"""All partitions of one data folder, and the files beside them that say how far each one is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import field
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID, TopicPartition
from millpond.base.ports import Disk, Entropy, FileLock
from millpond.base.values import dataclass
from millpond.log.checkpoints import (
    DamagedCheckpoint,
    decode_lines,
    decode_metadata,
    encode_lines,
    encode_offsets,
    read_offsets,
)
from millpond.log.durability import run_tickets
from millpond.log.limits import LogLimits
from millpond.log.names import (
    APPEND_TIMES_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    DELETE_FOLDER,
    LOCK_FILE,
    LOST_FILE,
    METADATA_FILE,
    RECOVERY_FILE,
    START_FILE,
    STRAY_FOLDER,
    former_folder_name,
    read_partition_folder,
)
from millpond.log.open_files import OpenFiles
from millpond.log.partition_log import PartitionLog
from millpond.log.recovery import LogDamaged, Opening, open_log
from millpond.log.removal import FolderRemovalJob, Renames
from millpond.log.retention import RetentionClock, is_append_time_needed, move_append_times
from millpond.log.segment import NO_TIMESTAMP, Segment

_UNCERTAIN = TopicPartition("", -1)
"""No partition: what is noted with it is not known to be what a checkpoint file holds."""

MISSING_NAMED = 5
"""How many folders that are gone are named."""


class FolderInUse(Exception):
    """Another process works on this data folder."""


@dataclass(slots=True)
class OpenReport:
    """How a data folder was found."""

    clean: bool
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that could not be opened, and why; they stay on the disk as they are."""
    notes: list[str] = field(default_factory=list)
    has_lost: bool = False
    """Whether records may be missing though the machine has kept its power: the end of a log was cut off, or a
    partition could not be opened."""


@dataclass(slots=True)
class CheckpointJob:
    """Files that say how far the logs are. Made on the loop, run on any thread, handed back on the loop."""

    disk: Disk
    folder: str
    offsets: dict[str, dict[TopicPartition, int]]
    """Those of the files that have changed."""
    append_times: list[tuple[str, int, int, int]] | None

    def run(self) -> None:
        """Write what has changed. OSError: some of it may not be written."""
        for name, offsets in self.offsets.items():
            self.disk.replace(f"{self.folder}/{name}", encode_offsets(offsets))
        if self.append_times is not None:
            self.disk.replace(f"{self.folder}/{APPEND_TIMES_FILE}", encode_lines(self.append_times))


class LogStore:
    """The logs of one data folder."""

    def __init__(self, disk: Disk, folder: str, limits: LogLimits, entropy: Entropy) -> None:
        self.disk = disk
        self.folder = folder
        self.limits = limits
        """What a log goes by until its own limits are known."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failed: dict[TopicPartition, str] = {}
        """Partitions that could not be opened, and why."""
        self.damaged: set[TopicPartition] = set()
        """Those of them that will not get better by themselves."""
        self.missing: set[TopicPartition] = set()
        """Partitions that had records when that was noted last, and of which not even the folder is there any more:
        deleted just before a crash, or by somebody else."""
        self._leaving: dict[TopicPartition, list[PartitionLog]] = {}
        self._entropy = entropy
        self._lock: FileLock | None = None
        self._is_open = False
        """Whether all of the folder has been looked through."""
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._append_times: list[tuple[str, int, int, int]] = []
        self._noted_times: dict[TopicPartition, dict[int, int]] = {}
        """The same as the last life has left it, by partition and base offset."""
        self._clock = RetentionClock()
        self._ahead_ms = 0
        self.files = OpenFiles.of_process(disk)
        self._checkpoint_away: CheckpointJob | None = None
        self._renames = Renames(folder)

    # Opening

    def lock(self) -> None:
        """Take the folder, which is made if need be. FolderInUse where another process has it."""
        if self._lock is not None:
            return
        self._make_data_folder()
        try:
            self._lock = self.disk.lock(self._path(LOCK_FILE))
        except BlockingIOError:
            raise FolderInUse(f"another process uses the data folder {self.folder}") from None

    def open(self, now_ms: int, limits_for: Callable[[TopicPartition], LogLimits] | None = None) -> OpenReport:
        """Take the folder and open every partition in it. One that cannot be opened is reported, the others go on."""
        self.lock()
        report = OpenReport(clean=self._take_marker())
        for name in (RECOVERY_FILE, START_FILE, CLEANER_FILE):
            self._written[name] = self._checkpoint(name, report)
        self._read_append_times(report)
        was_clean = report.clean
        known = {tp: tp for tp in self._written[RECOVERY_FILE]}
        names = self.disk.list(self.folder)
        self._remove_leftovers([name for name in names if name.endswith(DELETE_FOLDER)], report)
        for name in names:
            tp = read_partition_folder(name)
            if tp is None:
                continue
            tp = known.get(tp, tp)
            opening = self._open_one(tp, limits_for(tp) if limits_for else self.limits, was_clean, now_ms)
            report.notes += opening.notes
            report.has_lost |= opening.has_cut or self._has_lost_owner(tp, report)
            report.clean = report.clean and opening.clean
        self._look_for_missing(report, was_clean=was_clean)
        self._correct_notes(self.logs)
        report.failed = dict(self.failed)
        report.has_lost |= bool(self.failed) or self.disk.exists(self._path(LOST_FILE))
        self._is_open = True
        return report

    def _has_lost_owner(self, tp: TopicPartition, report: OpenReport) -> bool:
        """Whether a log does not say whose it is, though its first sync wrote that down: now it is nobody's."""
        log = self.logs.get(tp)
        if log is None or log.topic_id != NO_TOPIC_ID or not self._written[RECOVERY_FILE].get(tp, 0):
            return False
        report.notes.append(f"{log.folder} does not say of which topic it is: {METADATA_FILE} is missing or damaged")
        return True

    def _remove_leftovers(self, names: list[str], report: OpenReport) -> None:
        """What is left of deleted partitions."""
        self._renames.made += len(names)
        for name in names:
            try:
                FolderRemovalJob(self.disk, self._path(name), self._renames, self._renames.made).run()
            except OSError as error:
                report.notes.append(f"files of a deleted partition cannot be removed: {error}")

    def _look_for_missing(self, report: OpenReport, *, was_clean: bool) -> None:
        noted = self._written[RECOVERY_FILE].items()
        self.missing = {tp for tp, offset in noted if offset > 0 and tp not in self.logs and tp not in self.failed}
        if was_clean and self.missing:
            # Whoever ends in order notes what is there.
            report.has_lost = True
            names = ", ".join(tp.folder for tp in sorted(self.missing)[:MISSING_NAMED])
            report.notes.append(
                f"{self.folder}: folders that were there at the last end are gone: {len(self.missing)} ({names})"
            )

    def _correct_notes(self, opened: Iterable[TopicPartition]) -> None:
        """Before logs grow of which more is noted than they have, because a crash took their end: what they get below
        a start that is not theirs would be lost. While that cannot be written down they stay closed."""
        wrong = [tp for tp in opened if self._notes_too_much(tp, self.logs[tp])]
        if not wrong:
            return
        try:
            if self._checkpoint_away is not None:
                raise OSError("another checkpoint is being written")
            self.checkpoint()
        except OSError as error:
            for tp in wrong:
                self.logs.pop(tp).abandon()
                self.failed[tp] = f"{tp.folder}: where it begins has to be written down first: {error}"

    def _notes_too_much(self, tp: TopicPartition, log: PartitionLog) -> bool:
        starts, cleaned = self._written[START_FILE], self._written[CLEANER_FILE]
        return (
            _UNCERTAIN in starts
            or _UNCERTAIN in cleaned
            or starts.get(tp, 0) > log.start_offset
            or cleaned.get(tp, 0) > log.compaction.clean_offset
        )

    def _open_one(self, tp: TopicPartition, limits: LogLimits, clean: bool, now_ms: int) -> Opening:
        """Open one partition's folder, or write down why that cannot be; how it went."""
        points, starts, cleaned = (self._written[name] for name in (RECOVERY_FILE, START_FILE, CLEANER_FILE))
        opening = Opening(clean, points.get(tp, 0), starts.get(tp, 0), cleaned.get(tp, 0), now_ms)
        opening.before_cut = self._note_loss
        try:
            log = open_log(self.files, self._path(tp.folder), limits, opening)
        except (LogDamaged, OSError) as fault:
            self.failed[tp] = str(fault)
            if isinstance(fault, LogDamaged):
                self.damaged.add(tp)
        else:
            self.failed.pop(tp, None)
            self.logs[tp] = log
            self._set_append_times(tp, log, opening)
        return opening

    def _note_loss(self) -> None:
        # Without room for it there is only this life that can tell.
        with contextlib.suppress(OSError):
            self.disk.replace(self._path(LOST_FILE), b"")

    def forget_loss(self) -> None:
        """It is told, or written down elsewhere, what recovery had to cut off. On any thread; waits for the disk."""
        if self.disk.exists(self._path(LOST_FILE)):
            self.disk.remove(self._path(LOST_FILE))
            self.disk.sync_folder(self.folder)

    def _set_append_times(self, tp: TopicPartition, log: PartitionLog, opening: Opening) -> None:
        noted = self._noted_times.get(tp, {})
        for segment in log.segments if noted or not opening.clean else ():
            segment.appended_ms = noted.get(segment.base_offset, segment.appended_ms)
            if not opening.clean and segment.size and segment.next_offset > opening.recovery_point:
                # Written since the last checkpoint, and when exactly nobody knows: its time begins now.
                segment.appended_ms = opening.now_ms

    def reopen(self, tp: TopicPartition, limits: LogLimits, now_ms: int) -> list[str]:
        """Try again a partition that could not be opened for want of files or by a fault of the disk that may pass.

        What was known at the start still holds; that the last end was clean is not relied on. Waits for the disk.
        """
        assert tp in self.failed, f"{tp.folder} is no partition that could not be opened"
        if tp in self.damaged:
            return []
        notes = self._open_one(tp, limits, False, now_ms).notes
        self._correct_notes([tp] if tp in self.logs else ())
        return notes

    def _read_append_times(self, report: OpenReport) -> None:
        try:
            rows = decode_lines(self.disk.read(self._path(APPEND_TIMES_FILE)), 4)
            self._append_times = [(topic, int(n), int(base), int(moment)) for topic, n, base, moment in rows]
        except FileNotFoundError:
            return
        except (DamagedCheckpoint, ValueError) as damage:
            report.notes.append(f"{self._path(APPEND_TIMES_FILE)}: {damage}")
        for topic, partition, base, moment in self._append_times:
            self._noted_times.setdefault(TopicPartition(topic, partition), {})[base] = moment

    def _make_data_folder(self) -> None:
        """Create it with its parents; their names must outlive a power cut as the data in them will."""
        missing = [self.folder.rstrip("/")]
        while missing[-1] and not self.disk.exists(missing[-1]):
            missing.append(missing[-1].rpartition("/")[0])
        self.disk.make_folder(self.folder)
        for parent in missing[1:]:
            self.disk.sync_folder(parent or ("/" if self.folder.startswith("/") else "."))

    def _take_marker(self) -> bool:
        """Whether the last end was clean. The marker goes at once: from now on the end may be any."""
        marker = self._path(CLEAN_SHUTDOWN_FILE)
        if not self.disk.exists(marker):
            return False
        self.disk.remove(marker)
        self.disk.sync_folder(self.folder)
        return True

    def _checkpoint(self, name: str, report: OpenReport) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self.disk, self._path(name))
        except DamagedCheckpoint as damage:
            report.notes.append(f"{self._path(name)}: {damage}; everything is checked instead")
            report.clean = report.clean and name == CLEANER_FILE
            return {}

    # Partitions

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        return self.logs.get(tp)

    def create(self, tp: TopicPartition, topic_id: UUID, limits: LogLimits | None = None) -> PartitionLog:
        """A new, empty log, or the one that is there."""
        there = self.logs.get(tp)
        if there is not None:
            return there
        if tp in self.failed:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp.folder} is offline: {self.failed[tp]}")
        path = self._path(tp.folder)
        if self.is_leaving(tp):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is still being written for a deleted topic")
        try:
            if self.disk.exists(path):
                # One that could not be renamed when its partition was deleted: a new log in it would get its files.
                self.disk.rename(path, self._path(former_folder_name(tp, self._entropy.uuid(), STRAY_FOLDER)))
            self.missing.discard(tp)
            if self._is_noted(tp):
                # The offsets of an earlier partition of this name would mislead the next recovery.
                self.checkpoint()
            log = self._new_log(path, topic_id, limits or self.limits)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from error
        # The folder itself is new: its own name must be synced, too.
        log.durability.owe_folder(self.folder)
        self.logs[tp] = log
        return log

    def _new_log(self, path: str, topic_id: UUID, limits: LogLimits) -> PartitionLog:
        self.disk.make_folder(path)
        log: PartitionLog | None = None
        try:
            log = PartitionLog(self.files, path, limits, segments=[Segment.create(self.files, path, 0)])
            log.set_topic_id(topic_id)
        except OSError:
            if log is not None:
                log.abandon()
            with contextlib.suppress(OSError):
                self.disk.remove_folder(path)
            raise
        return log

    def _is_noted(self, tp: TopicPartition) -> bool:
        """Whether a checkpoint, also one that is being written, tells of a partition of this name."""
        away = self._checkpoint_away.offsets if self._checkpoint_away is not None else {}
        return any(tp in offsets for offsets in (*self._written.values(), *away.values()))

    def delete(self, tp: TopicPartition) -> FolderRemovalJob:
        """Take the partition away: gone for everyone at once, its files go with the job."""
        log = self.logs.get(tp)
        path = self._move_away(tp, DELETE_FOLDER)
        delay_ms = log.limits.file_delete_delay_ms if log is not None else 0
        return FolderRemovalJob(self.disk, path, self._renames, self._renames.made, delay_ms)

    def is_leaving(self, tp: TopicPartition) -> bool:
        """Whether workers are still busy with a deleted partition of this name: they would meddle with a new one."""
        still = [log for log in self._leaving.pop(tp, []) if log.durability.away]
        if still:
            self._leaving[tp] = still
        # A checkpoint that is being written may name it: another must follow, and only one is written at a time.
        return bool(still) or (self._checkpoint_away is not None and tp not in self.logs and self._is_noted(tp))

    def owner_of(self, tp: TopicPartition) -> UUID:
        """Whose a partition's folder says it is, also of one that could not be opened; NO_TOPIC_ID if it does not."""
        try:
            return decode_metadata(self.disk.read(f"{self._path(tp.folder)}/{METADATA_FILE}"))
        except (OSError, DamagedCheckpoint):
            return NO_TOPIC_ID

    def set_aside(self, tp: TopicPartition) -> str:
        """Take a partition that belongs to nobody out of use, but keep its files; the folder's new path."""
        return self._move_away(tp, STRAY_FOLDER)

    def _move_away(self, tp: TopicPartition, ending: str) -> str:
        log = self.logs.pop(tp, None)
        self.failed.pop(tp, None)
        self.damaged.discard(tp)
        if log is not None:
            log.abandon()
            if log.durability.away:
                self._leaving.setdefault(tp, []).append(log)
        path = self._path(former_folder_name(tp, self._entropy.uuid(), ending))
        with contextlib.suppress(FileNotFoundError):
            self.disk.rename(self._path(tp.folder), path)
            self._renames.made += 1
        return path

    # Time

    def retention_now(self, wall_ms: int, monotonic_ms: int) -> int:
        """The time that retention goes by: the wall clock's, unless it has just leapt forward."""
        now_ms, leap_ms = self._clock.observe(wall_ms - self._ahead_ms, monotonic_ms)
        if self._ahead_ms and leap_ms <= -self._ahead_ms // 2:
            # Somebody has set it right.
            self._ahead_ms = 0
            now_ms, leap_ms = self._clock.observe(wall_ms, monotonic_ms)
        if leap_ms:
            for log in self.logs.values():
                move_append_times(log.segments, leap_ms, now_ms)
                log.producers.move_times(leap_ms, now_ms)
        return now_ms

    def hold_back(self, ahead_ms: int) -> None:
        """This machine's clock is so much ahead of what others say: what they would keep is kept."""
        self._ahead_ms = ahead_ms
        self._clock = RetentionClock()

    # Checkpoints

    def checkpoint(self) -> None:
        """Write down how far each log is, at once. Waits for the disk."""
        job = self.begin_checkpoint()
        error: OSError | None = None
        try:
            job.run()
        except OSError as fault:
            error = fault
            raise
        finally:
            self.end_checkpoint(job, error)

    def begin_checkpoint(self) -> CheckpointJob:
        """What has to be written down of how far each log is now. One at a time; then `end_checkpoint`."""
        assert self._checkpoint_away is None, "one checkpoint is written at a time"
        synced: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        cleaned: dict[TopicPartition, int] = {}
        times: list[tuple[str, int, int, int]] = []
        for tp in list(self._leaving):
            # Whose names nobody uses again are forgotten here.
            self.is_leaving(tp)
        # One pass, and little for each: there may be ten thousand, and the loop waits.
        for tp, log in self.logs.items():
            durability = log.durability
            if durability.failed is not None:
                durability.mark_failure()
            synced[tp] = durability.synced_offset
            if log.start_offset:
                starts[tp] = log.start_offset
            if log.compaction.clean_offset:
                cleaned[tp] = log.compaction.clean_offset
            times += [
                (*tp, segment.base_offset, segment.appended_ms)
                for segment in log.segments.list
                if segment.appended_ms != NO_TIMESTAMP and is_append_time_needed(segment)
            ]
        noted = {RECOVERY_FILE: synced, START_FILE: starts, CLEANER_FILE: cleaned}
        if self.failed or self.missing:
            for name, offsets in noted.items():
                # A partition that could not be opened keeps what is known of it.
                offsets.update({tp: offset for tp, offset in self._written[name].items() if self._is_away(tp)})
            times += [row for row in self._append_times if self._is_away(TopicPartition(*row[:2]))]
        times.sort()
        changed = {name: offsets for name, offsets in noted.items() if offsets != self._written[name]}
        self._checkpoint_away = CheckpointJob(
            self.disk, self.folder, changed, times if times != self._append_times else None
        )
        return self._checkpoint_away

    def _is_away(self, tp: TopicPartition) -> bool:
        return tp in self.failed or tp in self.missing

    def noted_start(self, tp: TopicPartition) -> int:
        """Where the log begins as the checkpoint tells it; -1 if nobody knows what that tells."""
        starts = self._written[START_FILE]
        return -1 if _UNCERTAIN in starts else starts.get(tp, 0)

    def notes_no_more_than(self, tp: TopicPartition, offset: int) -> bool:
        """Whether no checkpoint, also none that is being written, says that more of the log is safe than this."""
        away = self._checkpoint_away.offsets if self._checkpoint_away is not None else {}
        files = (self._written[RECOVERY_FILE], away.get(RECOVERY_FILE, {}))
        return all(noted.get(tp, 0) <= offset and _UNCERTAIN not in noted for noted in files)

    @property
    def is_checkpoint_away(self) -> bool:
        return self._checkpoint_away is not None

    def end_checkpoint(self, job: CheckpointJob, error: OSError | None = None) -> None:
        """The job has been run. After an error nobody knows what of it was written: the next one writes all of it."""
        assert self._checkpoint_away is job, "another checkpoint is under way"
        self._checkpoint_away = None
        if error is not None:
            for name, offsets in job.offsets.items():
                # What may be noted counts as noted, so that a partition of such a name waits for the next checkpoint.
                self._written[name] = {**self._written[name], **offsets, _UNCERTAIN: -1}
            if job.append_times is not None:
                self._append_times = [*job.append_times, (*_UNCERTAIN, 0, 0)]
            return
        self._written.update(job.offsets)
        if job.append_times is not None:
            self._append_times = job.append_times

    # Ending

    def close(self, *, is_vouched: bool = True) -> None:
        """Close every log and say that it was done; waits for the disk.

        Unless it `is_vouched` for, the next start takes the end for a crash: it is not written down what this life
        found to be lost.
        """
        if self._lock is None:
            return
        if not self._is_open:
            # Some partitions were not even looked at: they are neither recovered nor in a checkpoint of this life.
            self.abandon()
            return
        closing = [(log, ticket) for log in self.logs.values() if (ticket := log.begin_close()) is not None]
        errors = run_tickets(self.disk, self.folder, [ticket for _, ticket in closing])
        is_clean = len(closing) == len(self.logs) and not any(errors)
        for (log, ticket), error in zip(closing, errors, strict=True):
            log.end_close(ticket, error)
        for log in self.logs.values():
            log.abandon()
        if self._checkpoint_away is not None:
            # The loop ended before it heard how it went.
            self.end_checkpoint(self._checkpoint_away, OSError("not known"))
        try:
            self.checkpoint()
            # A partition that could not be opened has not been recovered: the next start must not take it for clean.
            if is_clean and is_vouched and not self.failed:
                self.disk.replace(self._path(CLEAN_SHUTDOWN_FILE), b'{"version":0,"brokerEpoch":-1}')
        finally:
            self._release()

    def abandon(self) -> None:
        """Let everything go as it is, as a crash would."""
        for log in self.logs.values():
            log.abandon()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"
