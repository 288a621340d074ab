"""What a log owes the disk, how far the disk is sure, and the jobs that bring it there.

A `SyncTicket` is packed so that a worker needs nothing of the log.
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
"""From this many logs on the whole file system is synced: it may hold other people's writes, but costs one call."""


@dataclass(slots=True)
class Away:
    """The work of one log that is with a worker now.

    It finds files by their names. So until it is back no other log may be made in a folder of the same name.
    """

    syncs: int = 0
    others: int = 0
    closed: bool = False
    """The log is no more: work that has not begun must not begin."""
    beginnings: int = 0
    """How often the log has begun anew: what was to be removed before may have the name of what is there now."""
    retired: list[str] | None = None
    """Files of its beginning that are yet to be removed, in their order."""
    asked: int = 0
    """Up to which of all that were ever retired somebody was told to remove them."""
    removed: int = 0
    """How many of all that were ever retired are not among them any more."""

    def __bool__(self) -> bool:
        return self.syncs > 0 or self.others > 0

    def retire(self, paths: Sequence[str]) -> int:
        """Let these go after all that are to go already; the number of the last one, counted from the first ever."""
        if paths:
            self.retired = self.retired or []
            self.retired += paths
        return self.last_retired()

    def owes_removal(self) -> bool:
        """Whether some of them nobody is about to remove: the last life has left them, or a job was dropped."""
        return self.retired is not None and self.asked < self.last_retired()

    def last_retired(self) -> int:
        """The number of the last one that was retired."""
        return self.removed + len(self.retired or ())

    def to_remove(self, number: int) -> tuple[str, ...]:
        """Those up to this number that are not gone yet."""
        return tuple((self.retired or [])[: max(number - self.removed, 0)])

    def are_removed(self, number: int) -> None:
        """Those up to this number are gone."""
        if number > self.removed:
            self.retired = (self.retired or [])[number - self.removed :] or None
            self.removed = number

    def forget_retired(self) -> None:
        """Whoever has begun the log anew has removed them."""
        self.removed += len(self.retired or ())
        self.retired = None


@dataclass(slots=True)
class SyncTicket:
    """Everything below `offset` is synced once `run` has returned. Made and handed back on the loop."""

    offset: Offset
    disk: Disk
    folder: str
    generation: int
    away: Away | None
    covered: list[tuple[Segment, int]] = field(default_factory=list)
    """Segments with the sizes up to which they will be synced."""
    sealed: dict[Segment, int] = field(default_factory=dict)
    """Those of them that will be synced with their indexes, as they were owed."""
    files: list[File] = field(default_factory=list)
    closed: list[Segment] = field(default_factory=list)
    """Those whose files are not open; a worker opens them one at a time."""
    paths: list[str] = field(default_factory=list)
    """Other files, which may not be there."""
    folders: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    notes: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    replacements: list[tuple[str, bytes]] = field(default_factory=list)
    is_synced: bool = False
    """Whether all that was written is safe, and at most the replacements are not made."""

    def run(self) -> None:
        """Sync it all; OSError means that nothing may be acknowledged. May run on any thread."""
        try:
            self._sync()
        except OSError as error:
            self.mark_loss(error)
            raise
        self.is_synced = True
        for path, data in self.replacements:
            self.disk.replace(path, data)

    def mark_loss(self, error: OSError) -> None:
        """Tell the next opening at once, on the thread that heard of it: the process may be killed before the loop
        hears, and what it has written would then count as safe after the next sync, which syncs nothing of it."""
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
        # A file is only there after a power cut if its name is, too.
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
        """Whether there is anything to do at all."""
        return bool(self.files or self.closed or self.paths or self.folders or self.replacements)

    def add(self, segment: Segment, *, with_indexes: bool) -> None:
        """Cover all that the segment has now."""
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
        """Back on the loop: let the files go. Once is enough, more does no harm."""
        for file in self.files:
            file.release()
        self.files = []
        if self.away is not None:
            self.away.syncs -= 1
            self.away = None


class Durability:
    """What one log owes the disk, besides the end of its active segment."""

    def __init__(self, disk: Disk, folder: str, synced_offset: int) -> None:
        self.synced_offset = Offset(synced_offset)
        self.failed: OSError | None = None
        self.away = Away()
        self.generation = 0
        """How often the log has been cut back: a ticket from before says nothing about what was written since."""
        self._disk = disk
        self._folder = folder
        # Each of these is None while it would be empty, as it is in all the partitions that are idle.
        self._folders: set[str] | None = {folder}
        self._sealed: dict[Segment, int] | None = None
        """Each with the number of its owing: what is owed anew while a ticket is away, that ticket does not pay."""
        self._owings = 0
        self._names: set[str] | None = None
        self._notes: dict[str, Callable[[], bytes]] | None = None
        self._has_lost = False
        """Whether a sync may have failed. Where none has, a want of room or of descriptors loses nothing: the next
        opening looks at the log as after a crash. A mark would have it written anew, which needs room."""
        self._is_marked = False
        """Whether the next opening will know of it."""

    def __bool__(self) -> bool:
        """Whether anything is owed."""
        return bool(self._sealed or self._folders or self._names or self._notes)

    # Owing

    def owe_folder(self, path: str | None = None) -> None:
        """Names in the folder (the log's own unless given) have changed."""
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
        """A small file of the log's folder is written, and not yet synced."""
        self._names = {*(self._names or ()), name}

    def owe_note(self, name: str, encode: Callable[[], bytes]) -> None:
        """A small file of the log's folder has to be replaced."""
        self._notes = {**(self._notes or {}), name: encode}

    def owe_nothing(self) -> None:
        """The folder was found as a clean end had left it."""
        self._folders = self._sealed = self._names = self._notes = None

    def forget(self, segment: Segment) -> None:
        """The segment is gone."""
        if self._sealed:
            self._sealed.pop(segment, None)

    def cut_back(self, offset: int) -> None:
        """What lies from `offset` on is not safe any more."""
        self.generation += 1
        self.synced_offset = Offset(min(self.synced_offset, offset))

    # Paying

    def ticket(self, end_offset: Offset, active: Segment) -> SyncTicket:
        """All that must be synced for everything appended so far."""
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
        """The ticket's `run` has returned."""
        ticket.release()
        if ticket.generation != self.generation or self.away.closed:
            return
        for segment, size in ticket.covered:
            if segment.size == size:
                segment.unpin()
            # One that was active when the ticket was made, and is sealed since: nobody has synced its indexes.
            if self._sealed and self._sealed.get(segment) == ticket.sealed.get(segment):
                self.forget(segment)
        self.synced_offset = max(self.synced_offset, ticket.offset)

    def fail(self, error: OSError, ticket: SyncTicket | None = None, *, has_lost: bool = False) -> None:
        """Close the log for good. What a failed sync lost stays lost, so a later success would prove nothing.

        But if only a file could not be opened, for want of descriptors, or a note not be written, for want of room,
        nothing is lost: it is owed as before. It `has_lost` something, too, if a sync without a ticket has failed.
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
        """Tell the next opening that the disk may lack what the page cache still has. Tried again until it is told.

        It needs no sync: a power cut takes the page cache, too.
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
    """Run all tickets; how each fared. May run on any thread. `path` lies on the file system that holds the logs.

    A thousand logs would need thousands of syncs; the system can do it in one or two.
    """
    if sum(ticket.is_owed for ticket in tickets) >= TOGETHER_FROM:
        try:
            errors = _run_together(disk, path, tickets)
        except OSError as error:
            # Whose bytes were lost nobody knows: all of them count as lost.
            for ticket in tickets:
                ticket.mark_loss(error)
            return [error] * len(tickets)
        if errors is not None:
            return errors
    return [_error_of(ticket.run) for ticket in tickets]


def _run_together(disk: Disk, path: str, tickets: Sequence[SyncTicket]) -> list[OSError | None] | None:
    """How each fared; None where the system has no such call. What goes wrong in one folder (it may have been deleted
    meanwhile) is that log's own matter; OSError is everybody's."""
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
