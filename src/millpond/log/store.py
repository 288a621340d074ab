"""All partitions of one data folder, and the files beside them that say how far each one is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.ports import Disk, Entropy, FileLock
from millpond.log.checkpoints import DamagedCheckpoint, decode_lines, encode_lines, read_offsets, write_offsets
from millpond.log.handles import OpenSegments
from millpond.log.limits import LogLimits
from millpond.log.names import (
    APPEND_TIMES_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    DELETE_FOLDER,
    LOCK_FILE,
    RECOVERY_FILE,
    START_FILE,
    STRAY_FOLDER,
    former_folder_name,
    read_partition_folder,
)
from millpond.log.partition_log import PartitionLog
from millpond.log.recovery import LogDamaged, Opening, open_log
from millpond.log.retention import RetentionClock, append_times, move_append_times
from millpond.log.segment import Segment
from millpond.log.syncing import FolderRemovalJob
from millpond.log.together import run_tickets


class FolderInUse(Exception):
    """Another process works on this data folder."""


@dataclass(slots=True)
class OpenReport:
    """How a data folder was found."""

    clean: bool
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that could not be opened, and why; they stay on the disk as they are."""
    notes: list[str] = field(default_factory=list)


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
        self._leaving: dict[TopicPartition, list[PartitionLog]] = {}
        self._entropy = entropy
        self._lock: FileLock | None = None
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._append_times: list[tuple[str, int, int, int]] = []
        self._clock = RetentionClock()
        self._open_segments = OpenSegments()

    # Opening

    def open(self, now_ms: int, limits_for: Callable[[TopicPartition], LogLimits] | None = None) -> OpenReport:
        """Take the folder and open every partition in it. One that cannot be opened is reported, the others go on."""
        self._make_data_folder()
        try:
            self._lock = self.disk.lock(self._path(LOCK_FILE))
        except BlockingIOError:
            raise FolderInUse(f"another process uses the data folder {self.folder}") from None
        report = OpenReport(clean=self._take_marker())
        for name in (RECOVERY_FILE, START_FILE, CLEANER_FILE):
            self._written[name] = self._checkpoint(name, report)
        for name in self.disk.list(self.folder):
            if name.endswith(DELETE_FOLDER):
                self.disk.remove_folder(self._path(name))
                continue
            tp = read_partition_folder(name)
            if tp is None:
                continue
            report.notes += self._open_one(tp, limits_for(tp) if limits_for else self.limits, report.clean, now_ms)
        report.failed = dict(self.failed)
        self._restore_append_times(report)
        return report

    def _open_one(self, tp: TopicPartition, limits: LogLimits, clean: bool, now_ms: int) -> list[str]:
        """Open one partition's folder, or write down why that cannot be; what a person should hear of."""
        points, starts, cleaned = (self._written[name] for name in (RECOVERY_FILE, START_FILE, CLEANER_FILE))
        opening = Opening(clean, points.get(tp, 0), starts.get(tp, 0), cleaned.get(tp, 0), now_ms)
        try:
            log = open_log(self.disk, self._path(tp.folder), limits, opening)
        except (LogDamaged, OSError) as fault:
            self.failed[tp] = str(fault)
            if isinstance(fault, LogDamaged):
                self.damaged.add(tp)
        else:
            self.failed.pop(tp, None)
            self._adopt(tp, log)
        return opening.notes

    def reopen(self, tp: TopicPartition, limits: LogLimits, now_ms: int) -> list[str]:
        """Try again a partition that could not be opened for want of files or by a fault of the disk that may pass.

        What was known at the start still holds; that the last end was clean is not relied on. Waits for the disk.
        """
        assert tp in self.failed, f"{tp.folder} is no partition that could not be opened"
        return [] if tp in self.damaged else self._open_one(tp, limits, False, now_ms)

    def _restore_append_times(self, report: OpenReport) -> None:
        try:
            rows = decode_lines(self.disk.read(self._path(APPEND_TIMES_FILE)), 4)
            self._append_times = [(topic, int(n), int(base), int(moment)) for topic, n, base, moment in rows]
        except FileNotFoundError:
            return
        except (DamagedCheckpoint, ValueError) as damage:
            report.notes.append(f"{self._path(APPEND_TIMES_FILE)}: {damage}")
            return
        for topic, partition, base, moment in self._append_times:
            log = self.logs.get(TopicPartition(topic, partition))
            if log is not None and base in log.bases:
                log.segment_at(base).appended_ms = moment

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
            report.clean = report.clean and name != RECOVERY_FILE
            return {}

    def _adopt(self, tp: TopicPartition, log: PartitionLog) -> None:
        log.checkpoint_now = self.checkpoint
        log.open_segments = self._open_segments
        self.logs[tp] = log

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
            if any(tp in offsets for offsets in self._written.values()):
                # The offsets of an earlier partition of this name would mislead the next recovery.
                self.checkpoint()
            self.disk.make_folder(path)
            log = PartitionLog(self.disk, path, limits or self.limits, segments=[Segment.create(self.disk, path, 0)])
            log.set_topic_id(topic_id)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from error
        # The folder itself is new: its own name must be synced, too.
        log.debts.folders.add(self.folder)
        self._adopt(tp, log)
        return log

    def delete(self, tp: TopicPartition) -> FolderRemovalJob:
        """Take the partition away: gone for everyone at once, its files go with the job."""
        log = self.logs.get(tp)
        path = self._move_away(tp, DELETE_FOLDER)
        return FolderRemovalJob(self.disk, path, log.limits.file_delete_delay_ms if log is not None else 0)

    def is_leaving(self, tp: TopicPartition) -> bool:
        """Whether workers are still busy with a deleted partition of this name: they would meddle with a new one."""
        still = [log for log in self._leaving.pop(tp, []) if log.away]
        if still:
            self._leaving[tp] = still
        return bool(still)

    def set_aside(self, tp: TopicPartition) -> str:
        """Take a partition that belongs to nobody out of use, but keep its files; the folder's new path."""
        return self._move_away(tp, STRAY_FOLDER)

    def _move_away(self, tp: TopicPartition, ending: str) -> str:
        log = self.logs.pop(tp, None)
        self.failed.pop(tp, None)
        self.damaged.discard(tp)
        if log is not None:
            log.abandon()
            self._leaving.setdefault(tp, []).append(log)
        path = self._path(former_folder_name(tp, self._entropy.uuid(), ending))
        with contextlib.suppress(FileNotFoundError):
            self.disk.rename(self._path(tp.folder), path)
        return path

    # Time

    def retention_now(self, wall_ms: int, monotonic_ms: int) -> int:
        """The time that retention goes by: the wall clock's, unless it has just leapt forward."""
        now_ms, leap_ms = self._clock.observe(wall_ms, monotonic_ms)
        if leap_ms:
            for log in self.logs.values():
                move_append_times(log, leap_ms, now_ms)
        return now_ms

    # Checkpoints

    def checkpoint(self) -> None:
        """Write down how far each log is. Only what changed is written; waits for the disk."""
        for log in self.logs.values():
            log.mark_failure()
        self._write(RECOVERY_FILE, {tp: log.synced_offset for tp, log in self.logs.items()})
        self._write(START_FILE, {tp: log.start_offset for tp, log in self.logs.items() if log.start_offset})
        self._write(CLEANER_FILE, {tp: log.clean_offset for tp, log in self.logs.items() if log.clean_offset})
        times = append_times(self.logs)
        if times != self._append_times:
            self.disk.replace(self._path(APPEND_TIMES_FILE), encode_lines(times))
            self._append_times = times

    def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        # A partition that could not be opened keeps what is known of it.
        kept = {tp: offset for tp, offset in self._written[name].items() if tp in self.failed}
        offsets = {**kept, **offsets}
        if offsets != self._written[name]:
            write_offsets(self.disk, self._path(name), offsets)
            self._written[name] = offsets

    # Ending

    def close(self) -> None:
        """Close every log and say that it was done; waits for the disk."""
        if self._lock is None:
            return
        is_certain = not any(log.away.syncs for log in self.logs.values())
        closing = [(log, ticket) for log in self.logs.values() if (ticket := log.begin_close()) is not None]
        errors = run_tickets(self.disk, self.folder, [ticket for _, ticket in closing])
        for (log, ticket), error in zip(closing, errors, strict=True):
            log.end_close(ticket, error)
        for log in self.logs.values():
            log.abandon()
        self.checkpoint()
        # A partition that could not be opened has not been recovered: the next start must not take it for clean.
        if is_certain and not self.failed and not any(log.failed for log in self.logs.values()):
            self.disk.replace(self._path(CLEAN_SHUTDOWN_FILE), b'{"version":0,"brokerEpoch":-1}')
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
