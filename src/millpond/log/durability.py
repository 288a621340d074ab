"""What a log still has to sync, how far it is safe, and the jobs that sync it.

A `SyncTicket` is self-contained, so a worker never touches the log.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial

from millpond.base.ids import Offset
from millpond.base.ports import Disk, File
from millpond.base.values import dataclass
from millpond.log.failed_sync import NO_DESCRIPTOR, mark_failed_sync, mark_failed_sync_without_files, mark_loss
from millpond.log.names import LOG
from millpond.log.segment import Segment

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

TOGETHER_FROM = 12
"""From this many logs on, sync the whole file system: that includes other writes, but costs one call."""


@dataclass(slots=True)
class Away:
    """The work of one log that is with workers.

    Workers find files by name. So no other log may be created in a folder of the same name until they are done.
    """

    syncs: int = 0
    others: int = 0
    closed: bool = False
    """The log is gone: work that has not started must not start."""
    beginnings: int = 0
    """How often the log was restarted: files retired before may share their names with current ones."""
    retired: list[str] | None = None
    """Files of removed segments that are yet to be deleted, in deletion order."""
    asked: int = 0
    """The number, among all files ever retired, up to which a job has been asked to delete them."""
    removed: int = 0
    """How many of all files ever retired are no longer in `retired`."""

    def __bool__(self) -> bool:
        return self.syncs > 0 or self.others > 0

    def retire(self, paths: Sequence[str]) -> int:
        """Queue these for deletion; the number of the last one, counted from the first ever."""
        if paths:
            self.retired = self.retired or []
            self.retired += paths
        return self.last_retired()

    def owes_removal(self) -> bool:
        """Whether some files have no job to delete them: the previous run left them, or a job was dropped."""
        return self.retired is not None and self.asked < self.last_retired()

    def last_retired(self) -> int:
        """The number of the last retired file."""
        return self.removed + len(self.retired or ())

    def to_remove(self, number: int) -> tuple[str, ...]:
        """The files up to this number that still exist."""
        return tuple((self.retired or [])[: max(number - self.removed, 0)])

    def are_removed(self, number: int) -> None:
        if number > self.removed:
            self.retired = (self.retired or [])[number - self.removed :] or None
            self.removed = number

    def forget_retired(self) -> None:
        """A restart of the log has deleted them."""
        self.removed += len(self.retired or ())
        self.retired = None


@dataclass(slots=True)
class SyncTicket:
    """Everything below `offset` is synced once `run` has returned. Made and settled on the loop."""

    offset: Offset
    disk: Disk
    folder: str
    generation: int
    away: Away | None
    covered: list[tuple[Segment, int]] = field(default_factory=list)
    """Segments with the sizes up to which they will be synced."""
    sealed: dict[Segment, int] = field(default_factory=dict)
    """Sealed segments that will be synced with their indexes, by owed number."""
    files: list[File] = field(default_factory=list)
    closed: list[Segment] = field(default_factory=list)
    """Segments whose files are not open; a worker opens them one at a time."""
    paths: list[str] = field(default_factory=list)
    """Other files, which may not exist."""
    folders: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    notes: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    replacements: list[tuple[str, bytes]] = field(default_factory=list)
    is_synced: bool = False
    """Whether all data is safe, and at most replacing small files has failed."""

    def run(self) -> None:
        """Sync everything; OSError means that nothing may be acknowledged. Safe on any thread."""
        try:
            self._sync()
        except OSError as error:
            self.mark_loss(error)
            raise
        self.is_synced = True
        for path, data in self.replacements:
            self.disk.replace(path, data)

    def mark_loss(self, error: OSError) -> None:
        """Leave a mark for the next opening at once, on this thread: the process may be killed before the loop learns
        of it, and the next sync would report the lost bytes as safe without writing them."""
        mark_loss(self.disk, self.folder, error)

    def _sync(self) -> None:
        for file in self.files:
            file.sync()
        for segment in self.closed:
            try:
                self._sync_closed(segment.path(LOG))
            except FileNotFoundError:
                if not segment.is_gone:
                    raise
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                self._sync_closed(path)
        # After a power cut a file exists only if its directory entry was synced too.
        for folder in sorted(self.folders):
            self.disk.sync_folder(folder)

    def _sync_closed(self, path: str) -> None:
        file = self.disk.open(path)
        try:
            file.sync()
        finally:
            file.close()

    @property
    def is_owed(self) -> bool:
        return bool(self.files or self.closed or self.paths or self.folders or self.replacements)

    def add(self, segment: Segment, *, with_indexes: bool) -> None:
        """Cover everything the segment holds now."""
        self.covered.append((segment, segment.size))
        file = segment.open_file
        if file is None:
            self.closed.append(segment)
        else:
            file.retain()
            self.files.append(file)
        if with_indexes:
            self.paths += segment.index_paths()

    def release(self) -> None:
        """Release the files, back on the loop. Idempotent."""
        for file in self.files:
            file.release()
        self.files = []
        if self.away is not None:
            self.away.syncs -= 1
            self.away = None


class Durability:
    """What one log still has to sync, besides the end of its active segment."""

    def __init__(self, disk: Disk, folder: str, synced_offset: int) -> None:
        self.synced_offset = Offset(synced_offset)
        self.failed: OSError | None = None
        self.away = Away()
        self.generation = 0
        """How often the log was truncated: an older ticket does not cover what was written since."""
        self._disk = disk
        self._folder = folder
        # These are None instead of empty, as they are in every idle partition.
        self._folders: set[str] | None = {folder}
        self._sealed: dict[Segment, int] | None = None
        """Each with an owed number: a ticket does not settle what is owed again while it is running."""
        self._owings = 0
        self._names: set[str] | None = None
        self._notes: dict[str, Callable[[], bytes]] | None = None
        self._has_lost = False
        """Whether a sync may have failed. If none has, running out of space or descriptors loses nothing: the next
        opening treats the log as after a crash. A mark would force a rewrite, which needs space."""
        self._is_marked = False
        """Whether the mark for the next opening was written."""

    def __bool__(self) -> bool:
        return bool(self._sealed or self._folders or self._names or self._notes)

    # Owing

    def owe_folder(self, path: str | None = None) -> None:
        """Directory entries of `path` (default: the log's folder) have changed."""
        if self._folders is None:
            self._folders = set()
        self._folders.add(path or self._folder)

    def owe_segment(self, segment: Segment) -> None:
        """A sealed segment was written to since the last sync."""
        if self._sealed is None:
            self._sealed = {}
        self._owings += 1
        self._sealed[segment] = self._owings

    def owe_file(self, name: str) -> None:
        """A small file in the log's folder was written, but not synced."""
        self._names = {*(self._names or ()), name}

    def owe_note(self, name: str, encode: Callable[[], bytes]) -> None:
        """A small file in the log's folder must be replaced."""
        self._notes = {**(self._notes or {}), name: encode}

    def owe_nothing(self) -> None:
        """The folder is as a clean shutdown left it."""
        self._folders = self._sealed = self._names = self._notes = None

    def forget(self, segment: Segment) -> None:
        if self._sealed:
            self._sealed.pop(segment, None)

    def cut_back(self, offset: int) -> None:
        """Nothing from `offset` on is safe any longer."""
        self.generation += 1
        self.synced_offset = Offset(min(self.synced_offset, offset))

    # Paying

    def ticket(self, end_offset: Offset, active: Segment) -> SyncTicket:
        """Everything that must be synced to make all appends so far durable."""
        self.away.syncs += 1
        ticket = SyncTicket(
            end_offset, self._disk, self._folder, self.generation, self.away, folders=self._folders or set()
        )
        for segment, owing in (self._sealed or {}).items():
            ticket.add(segment, with_indexes=segment is not active)
            ticket.sealed[segment] = owing
        if end_offset > self.synced_offset and active.size and active not in ticket.sealed:
            ticket.add(active, with_indexes=False)
        if self._names:
            ticket.names = self._names
            ticket.paths += [f"{self._folder}/{name}" for name in sorted(self._names)]
        if self._notes:
            ticket.notes = self._notes
            ticket.replacements = [(f"{self._folder}/{name}", encode()) for name, encode in self._notes.items()]
        self._folders = self._names = self._notes = None
        return ticket

    def settle(self, ticket: SyncTicket) -> None:
        """Take over the result after the ticket's `run` has returned."""
        ticket.release()
        if ticket.generation != self.generation or self.away.closed:
            return
        for segment, size in ticket.covered:
            if segment.size == size:
                segment.unpin()
            # A segment that was active when the ticket was made and is sealed now: its indexes are not synced.
            if self._sealed and self._sealed.get(segment) == ticket.sealed.get(segment):
                self.forget(segment)
        self.synced_offset = max(self.synced_offset, ticket.offset)

    def fail(self, error: OSError, ticket: SyncTicket | None = None, *, has_lost: bool = False) -> None:
        """Close the log for good. What a failed sync lost stays lost, so a later success would prove nothing.

        If only a file could not be opened (no descriptors) or a note not written (no space), nothing is lost and the
        work is still owed. `has_lost` reports a failed sync that had no ticket.
        """
        if ticket is not None:
            ticket.release()
            if error.errno in NO_DESCRIPTOR or (ticket.is_synced and error.errno in _NO_ROOM):
                self._folders = ticket.folders | (self._folders or set())
                self._names = ticket.names | (self._names or set())
                self._notes = ticket.notes | (self._notes or {})
                return
        if self.failed is None:
            self.failed = error
        if ticket is not None or has_lost or error.errno not in (*NO_DESCRIPTOR, *_NO_ROOM):
            self._has_lost = True
            self.mark_failure()

    def mark_failure(self) -> None:
        """Mark for the next opening that the disk may lack what the page cache has. Retried until it succeeds.

        It needs no sync: a power cut clears the page cache, too.
        """
        if not self._has_lost or self._is_marked or self.away.closed:
            return
        with contextlib.suppress(OSError):
            try:
                mark_failed_sync(self._disk, self._folder)
            except OSError:
                mark_failed_sync_without_files(self._disk, self._folder)
            self._is_marked = True


def run_tickets(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> list[OSError | None]:
    """Run all tickets; the error of each. Safe on any thread. `path` is on the file system that holds the logs.

    A thousand logs would need thousands of syncs; syncing the file system takes one or two.
    """
    if sum(ticket.is_owed for ticket in tickets) >= TOGETHER_FROM:
        try:
            errors = _run_together(disk, path, tickets)
        except OSError as error:
            # Which log lost bytes is unknown: all of them count as lost.
            for ticket in tickets:
                ticket.mark_loss(error)
            return [error] * len(tickets)
        if errors is not None:
            return errors
    return [_error_of(ticket.run) for ticket in tickets]


def _run_together(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> list[OSError | None] | None:
    """The error of each ticket; None where the system has no such call. A fault in one folder (it may have been
    deleted) concerns that log alone; OSError concerns all."""
    asides: list[list[tuple[str, str]]] = [[] for _ in tickets]

    def write(ticket: SyncTicket, written: list[tuple[str, str]]) -> None:
        for name, data in ticket.replacements:
            written.append((disk.write_aside(name, data), name))

    def put(written: list[tuple[str, str]]) -> None:
        for aside, name in written:
            disk.put_in_place(aside, name)

    errors = [_error_of(partial(write, *each)) for each in zip(tickets, asides, strict=True)]
    if not disk.sync_everything(path):
        return None
    errors = [error or _error_of(partial(put, written)) for error, written in zip(errors, asides, strict=True)]
    if any(asides):
        disk.sync_everything(path)
    for ticket in tickets:
        ticket.is_synced = True
    return errors


def _error_of(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None
