"""All partitions of one data folder, and the checkpoint files beside them."""

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
"""No partition: marks a file's recorded offsets as possibly different from what the file holds."""

MISSING_NAMED = 5
"""How many missing folders are named."""


class FolderInUse(Exception):
    """Another process uses this data folder."""


@dataclass(slots=True)
class OpenReport:
    """The state in which a data folder was found."""

    clean: bool
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that could not be opened, and why; their files are left unchanged."""
    notes: list[str] = field(default_factory=list)
    has_lost: bool = False
    """Whether records may be missing although the machine did not lose power: a log was cut at its end, or a
    partition could not be opened."""


@dataclass(slots=True)
class CheckpointJob:
    """The checkpoint files. Made on the loop, run on any thread, ended on the loop."""

    disk: Disk
    folder: str
    offsets: dict[str, dict[TopicPartition, int]]
    """Offsets of the files that have changed."""
    append_times: list[tuple[str, int, int, int]] | None

    def run(self) -> None:
        """Write what has changed. OSError: some of it may not be written."""
        for name, offsets in self.offsets.items():
            self.disk.replace(f"{self.folder}/{name}", encode_offsets(offsets))
        if self.append_times is not None:
            self.disk.replace(f"{self.folder}/{APPEND_TIMES_FILE}", encode_lines(self.append_times))


class LogStore:
    def __init__(self, disk: Disk, folder: str, limits: LogLimits, entropy: Entropy) -> None:
        self.disk = disk
        self.folder = folder
        self.limits = limits
        """The limits of a log until its own are known."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failed: dict[TopicPartition, str] = {}
        """Partitions that could not be opened, and why."""
        self.damaged: set[TopicPartition] = set()
        """The failed partitions that only an operator can repair."""
        self.missing: set[TopicPartition] = set()
        """Partitions with records at the last checkpoint whose folder is gone: deleted just before a crash, or by
        someone else."""
        self._leaving: dict[TopicPartition, list[PartitionLog]] = {}
        self._entropy = entropy
        self._lock: FileLock | None = None
        self._is_open = False
        """Whether all partitions have been opened."""
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._append_times: list[tuple[str, int, int, int]] = []
        self._noted_times: dict[TopicPartition, dict[int, int]] = {}
        """The same as the previous run left it, by partition and base offset."""
        self._clock = RetentionClock()
        self._ahead_ms = 0
        self.files = OpenFiles.of_process(disk)
        self._checkpoint_away: CheckpointJob | None = None
        self._renames = Renames(folder)

    # Opening

    def lock(self) -> None:
        """Lock the folder, which is created if necessary. FolderInUse if another process has it."""
        if self._lock is not None:
            return
        self._make_data_folder()
        try:
            self._lock = self.disk.lock(self._path(LOCK_FILE))
        except BlockingIOError:
            raise FolderInUse(f"another process uses the data folder {self.folder}") from None

    def open(self, now_ms: int, limits_for: Callable[[TopicPartition], LogLimits] | None = None) -> OpenReport:
        """Lock the folder and open every partition in it. One that cannot be opened is reported; the others
        continue."""
        self.lock()
        report = OpenReport(clean=self._take_marker())
        for name in (RECOVERY_FILE, START_FILE, CLEANER_FILE):
            self._written[name] = self._checkpoint(name, report)
        self._read_append_times(report)
        was_clean = report.clean
        listed = {tp: tp for tp in self._written[RECOVERY_FILE]}
        names = self.disk.list(self.folder)
        self._remove_leftovers([name for name in names if name.endswith(DELETE_FOLDER)], report)
        for name in names:
            tp = read_partition_folder(name)
            if tp is None:
                continue
            tp = listed.get(tp, tp)
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
        """Whether a log lost its topic id, which its first sync had written: now it is a stray."""
        log = self.logs.get(tp)
        if log is None or log.topic_id != NO_TOPIC_ID or not self._written[RECOVERY_FILE].get(tp, 0):
            return False
        report.notes.append(f"{log.folder} has no topic id: {METADATA_FILE} is missing or damaged")
        return True

    def _remove_leftovers(self, names: list[str], report: OpenReport) -> None:
        """Remove what is left of deleted partitions."""
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
            # A clean shutdown records every folder.
            report.has_lost = True
            names = ", ".join(tp.folder for tp in sorted(self.missing)[:MISSING_NAMED])
            report.notes.append(
                f"{self.folder}: folders present at the last shutdown are missing: {len(self.missing)} ({names})"
            )

    def _correct_notes(self, opened: Iterable[TopicPartition]) -> None:
        """Correct checkpoints that exceed a log whose tail a crash took, before it grows: appends below a recorded
        start that is too high would be lost. Until that is written the logs stay closed."""
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
                self.failed[tp] = f"{tp.folder}: its start offset could not be checkpointed: {error}"

    def _notes_too_much(self, tp: TopicPartition, log: PartitionLog) -> bool:
        starts, cleaned = self._written[START_FILE], self._written[CLEANER_FILE]
        return (
            _UNCERTAIN in starts
            or _UNCERTAIN in cleaned
            or starts.get(tp, 0) > log.start_offset
            or cleaned.get(tp, 0) > log.compaction.clean_offset
        )

    def _open_one(self, tp: TopicPartition, limits: LogLimits, clean: bool, now_ms: int) -> Opening:
        """Open one partition's folder, or record why that failed; how it went."""
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
        # On a full disk only this run can report it.
        with contextlib.suppress(OSError):
            self.disk.replace(self._path(LOST_FILE), b"")

    def forget_loss(self) -> None:
        """Called once what recovery cut off is reported, or recorded elsewhere. Safe on any thread; waits for the
        disk."""
        if self.disk.exists(self._path(LOST_FILE)):
            self.disk.remove(self._path(LOST_FILE))
            self.disk.sync_folder(self.folder)

    def _set_append_times(self, tp: TopicPartition, log: PartitionLog, opening: Opening) -> None:
        noted = self._noted_times.get(tp, {})
        for segment in log.segments if noted or not opening.clean else ():
            segment.appended_ms = noted.get(segment.base_offset, segment.appended_ms)
            if not opening.clean and segment.size and segment.next_offset > opening.recovery_point:
                # Written since the last checkpoint at an unknown time: its age counts from now.
                segment.appended_ms = opening.now_ms

    def reopen(self, tp: TopicPartition, limits: LogLimits, now_ms: int) -> list[str]:
        """Retry a partition that could not be opened for lack of descriptors or a temporary disk fault.

        What was known at the start still holds, except that the shutdown is not assumed to be clean. Waits for the
        disk.
        """
        assert tp in self.failed, f"{tp.folder} did not fail to open"
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
        """Create it with its parents, whose names must survive a power cut like the data."""
        missing = [self.folder.rstrip("/")]
        while missing[-1] and not self.disk.exists(missing[-1]):
            missing.append(missing[-1].rpartition("/")[0])
        self.disk.make_folder(self.folder)
        for parent in missing[1:]:
            self.disk.sync_folder(parent or ("/" if self.folder.startswith("/") else "."))

    def _take_marker(self) -> bool:
        """Whether the last shutdown was clean. Removes the marker at once, as this run may end in any way."""
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
            report.notes.append(f"{self._path(name)}: {damage}; checking everything instead")
            report.clean = report.clean and name == CLEANER_FILE
            return {}

    # Partitions

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        return self.logs.get(tp)

    def create(self, tp: TopicPartition, topic_id: UUID, limits: LogLimits | None = None) -> PartitionLog:
        """A new, empty log, or the existing one."""
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
                # It could not be renamed when its partition was deleted: a new log in it would adopt its files.
                self.disk.rename(path, self._path(former_folder_name(tp, self._entropy.uuid(), STRAY_FOLDER)))
            self.missing.discard(tp)
            if self._is_noted(tp):
                # The offsets of an earlier partition of this name would mislead the next recovery.
                self.checkpoint()
            log = self._new_log(path, topic_id, limits or self.limits)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from error
        # The folder is new: its own directory entry must be synced, too.
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
        """Whether a checkpoint, including one being written, lists a partition of this name."""
        away = self._checkpoint_away.offsets if self._checkpoint_away is not None else {}
        return any(tp in offsets for offsets in (*self._written.values(), *away.values()))

    def delete(self, tp: TopicPartition) -> FolderRemovalJob:
        """Remove the partition: it is gone at once, and the job deletes its files."""
        log = self.logs.get(tp)
        path = self._move_away(tp, DELETE_FOLDER)
        delay_ms = log.limits.file_delete_delay_ms if log is not None else 0
        return FolderRemovalJob(self.disk, path, self._renames, self._renames.made, delay_ms)

    def is_leaving(self, tp: TopicPartition) -> bool:
        """Whether workers are still busy with a deleted partition of this name: they would interfere with a new
        one."""
        still = [log for log in self._leaving.pop(tp, []) if log.durability.away]
        if still:
            self._leaving[tp] = still
        # A checkpoint being written may list it: another must follow, and only one is written at a time.
        return bool(still) or (self._checkpoint_away is not None and tp not in self.logs and self._is_noted(tp))

    def owner_of(self, tp: TopicPartition) -> UUID:
        """The topic id in a partition's folder, even of one that could not be opened; NO_TOPIC_ID if there is
        none."""
        try:
            return decode_metadata(self.disk.read(f"{self._path(tp.folder)}/{METADATA_FILE}"))
        except (OSError, DamagedCheckpoint):
            return NO_TOPIC_ID

    def set_aside(self, tp: TopicPartition) -> str:
        """Take a stray partition out of use, but keep its files; the folder's new path."""
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
        """The time for retention: the wall clock, unless it has just jumped forward."""
        now_ms, leap_ms = self._clock.observe(wall_ms - self._ahead_ms, monotonic_ms)
        if self._ahead_ms and leap_ms <= -self._ahead_ms // 2:
            # The clock was corrected.
            self._ahead_ms = 0
            now_ms, leap_ms = self._clock.observe(wall_ms, monotonic_ms)
        if leap_ms:
            for log in self.logs.values():
                move_append_times(log.segments, leap_ms, now_ms)
                log.producers.move_times(leap_ms, now_ms)
        return now_ms

    def hold_back(self, ahead_ms: int) -> None:
        """Account for a clock that is ahead of other nodes' clocks: retention keeps what they would keep."""
        self._ahead_ms = ahead_ms
        self._clock = RetentionClock()

    # Checkpoints

    def checkpoint(self) -> None:
        """Write checkpoints at once. Waits for the disk."""
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
        """The checkpoints to write now. One at a time; then call `end_checkpoint`."""
        assert self._checkpoint_away is None, "one checkpoint is written at a time"
        synced: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        cleaned: dict[TopicPartition, int] = {}
        times: list[tuple[str, int, int, int]] = []
        for tp in list(self._leaving):
            # Forgets the names that are free again.
            self.is_leaving(tp)
        # One pass with little work each: there may be ten thousand, and the loop waits.
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
                # A partition that could not be opened keeps its recorded offsets.
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
        """The log start in the checkpoint; -1 if the checkpoint's content is uncertain."""
        starts = self._written[START_FILE]
        return -1 if _UNCERTAIN in starts else starts.get(tp, 0)

    def notes_no_more_than(self, tp: TopicPartition, offset: int) -> bool:
        """Whether no checkpoint, including one being written, records more of the log as safe than this."""
        away = self._checkpoint_away.offsets if self._checkpoint_away is not None else {}
        files = (self._written[RECOVERY_FILE], away.get(RECOVERY_FILE, {}))
        return all(noted.get(tp, 0) <= offset and _UNCERTAIN not in noted for noted in files)

    @property
    def is_checkpoint_away(self) -> bool:
        return self._checkpoint_away is not None

    def end_checkpoint(self, job: CheckpointJob, error: OSError | None = None) -> None:
        """Take over the outcome. After an error it is unknown what was written: the next checkpoint writes
        everything."""
        assert self._checkpoint_away is job, "another checkpoint is under way"
        self._checkpoint_away = None
        if error is not None:
            for name, offsets in job.offsets.items():
                # What may be recorded counts as recorded, so that a partition of that name waits for the next
                # checkpoint.
                self._written[name] = {**self._written[name], **offsets, _UNCERTAIN: -1}
            if job.append_times is not None:
                self._append_times = [*job.append_times, (*_UNCERTAIN, 0, 0)]
            return
        self._written.update(job.offsets)
        if job.append_times is not None:
            self._append_times = job.append_times

    # Closing

    def close(self, *, is_vouched: bool = True) -> None:
        """Close every log and record a clean shutdown; waits for the disk.

        Unless `is_vouched`, the next start treats this as a crash: what this run found to be lost is not recorded
        yet.
        """
        if self._lock is None:
            return
        if not self._is_open:
            # Some partitions were not opened: they are neither recovered nor in a checkpoint of this run.
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
            # The loop ended before it got the result.
            self.end_checkpoint(self._checkpoint_away, OSError("not known"))
        try:
            self.checkpoint()
            # A partition that could not be opened has not been recovered: the next start must not consider it clean.
            if is_clean and is_vouched and not self.failed:
                self.disk.replace(self._path(CLEAN_SHUTDOWN_FILE), b'{"version":0,"brokerEpoch":-1}')
        finally:
            self._release()

    def abandon(self) -> None:
        """Close everything as it is, as a crash would."""
        for log in self.logs.values():
            log.abandon()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"
