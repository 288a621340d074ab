"""What must reach the disk, and the jobs that bring it there, packed so that a worker needs nothing of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.base.ids import Offset
from millpond.base.ports import Disk, File
from millpond.log.checkpoints import encode_metadata
from millpond.log.names import EPOCHS_FILE, LOG, METADATA_FILE

if TYPE_CHECKING:
    from millpond.log.partition_log import PartitionLog


@dataclass(slots=True)
class Away:
    """The work of one log that is with a worker now.

    It finds files by their names. So until it is back no other log may be made in a folder of the same name.
    """

    syncs: int = 0
    others: int = 0
    closed: bool = False
    """The log is no more: work that has not begun must not begin."""

    def __bool__(self) -> bool:
        return self.syncs > 0 or self.others > 0


@dataclass(slots=True)
class SyncTicket:
    """Everything below `offset` is safe once `run` has returned. Made and handed back on the loop."""

    offset: Offset
    disk: Disk
    debts: Debts
    files: list[File] = field(default_factory=list)
    replacements: list[tuple[str, bytes]] = field(default_factory=list)
    away: Away | None = None

    def run(self) -> None:
        """Sync it all; OSError means that nothing may be acknowledged. May run on any thread."""
        for file in self.files:
            file.sync()
        # A file is only there after a power cut if its name is, too.
        for folder in sorted(self.debts.folders):
            self.disk.sync_folder(folder)
        for path, data in self.replacements:
            self.disk.replace(path, data)

    @property
    def is_owed(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self.files or self.debts.folders or self.replacements)

    def release(self) -> None:
        """Back on the loop: let the files go. Once is enough, more does no harm."""
        for file in self.files:
            file.release()
        self.files = []
        if self.away is not None:
            self.away.syncs -= 1
            self.away = None


@dataclass(slots=True)
class Debts:
    """What a log still owes the disk, besides its active segment."""

    generation: int = 0
    """How often the log has been cut back: a ticket from before says nothing about what was written since."""
    sealed_bases: list[int] = field(default_factory=list)
    """Base offsets of sealed segments that were written to since the last sync."""
    folders: set[str] = field(default_factory=set)
    epochs: bool = False
    metadata: bool = False

    def __bool__(self) -> bool:
        return bool(self.sealed_bases or self.folders or self.epochs or self.metadata)

    def hand_over(self) -> Debts:
        """A copy for a ticket. What a retry could not mend, as a failed ticket closes the log, is owed no more."""
        handed = Debts(self.generation, list(self.sealed_bases), self.folders, self.epochs, self.metadata)
        self.folders = set()
        self.epochs = self.metadata = False
        return handed

    def settle(self, paid: Debts) -> None:
        self.sealed_bases = [base for base in self.sealed_bases if base not in paid.sealed_bases]

    def forget(self, base: int) -> None:
        """The segment is gone."""
        self.sealed_bases = [other for other in self.sealed_bases if other != base]


def make_ticket(log: PartitionLog) -> SyncTicket:
    """All that must be synced for everything appended so far. OSError leaves the log as it was."""
    # Files are opened first: if that fails nothing has been handed over, and the log can try again.
    files: list[File] = []
    for base in log.debts.sealed_bases:
        files += log.segment_at(base).files_for_sync()
    if log.end_offset > log.synced_offset and log.active.size:
        files.append(log.active.file)
    for file in files:
        file.retain()
    ticket = SyncTicket(log.end_offset, log.disk, log.debts.hand_over(), files)
    owed = ticket.debts
    if owed.epochs:
        ticket.replacements.append((f"{log.folder}/{EPOCHS_FILE}", log.epochs.encode()))
    if owed.metadata:
        ticket.replacements.append((f"{log.folder}/{METADATA_FILE}", encode_metadata(log.topic_id)))
    ticket.away = log.away
    log.away.syncs += 1
    return ticket


def make_last_ticket(log: PartitionLog) -> SyncTicket:
    """Write what a clean start wants to find; the ticket makes that last, too. OSError: it is no clean end."""
    ticket = make_ticket(log)
    try:
        log.active.flush_indexes()
        ended = log.active.aborted.file_for_sync()
        if ended is not None:
            ended.retain()
            ticket.files.append(ended)
            ticket.debts.folders.add(log.folder)
        if log.end_offset not in log.snapshots.offsets and log.end_offset > 0:
            log.snapshots.write(log.end_offset, log.producers)
    except OSError:
        ticket.release()
        raise
    return ticket


@dataclass(slots=True, frozen=True)
class RemovalJob:
    """Files that nobody needs any more, in the order in which they must go. `run` is for a worker, after a delay."""

    disk: Disk
    folder: str
    paths: tuple[str, ...] = ()
    delay_ms: int = 0
    away: Away = field(default_factory=Away)

    def begin(self) -> bool:
        """On the loop, just before `run`: whether it is still wanted."""
        if self.away.closed:
            # The folder of this name may be another log's by now.
            return False
        self.away.others += 1
        return True

    def end(self) -> None:
        """On the loop, after `run`."""
        self.away.others -= 1

    def run(self) -> None:
        if self.paths:
            # What takes their place must be there for certain, or a crash would make the offsets start again.
            self._sync()
        for path in self.paths:
            try:
                self.disk.remove(path)
            except FileNotFoundError:
                continue
            if LOG in path:
                # A crash must find a log without its beginning, never one without its middle.
                self._sync()

    def _sync(self) -> None:
        try:
            self.disk.sync_folder(self.folder)
        except FileNotFoundError:
            # The whole partition was deleted meanwhile.
            return


@dataclass(slots=True, frozen=True)
class FolderRemovalJob:
    """A deleted partition's folder. May run on any thread, after a delay."""

    disk: Disk
    path: str
    delay_ms: int = 0

    def begin(self) -> bool:
        """On the loop, just before `run`: nobody else ever has a folder of this name."""
        return True

    def end(self) -> None:
        """On the loop, after `run`."""

    def run(self) -> None:
        try:
            self.disk.remove_folder(self.path)
        except FileNotFoundError:
            return
