"""Which transactions were aborted, per segment, in Kafka's format: consumers need to know what to leave out.

    0 version (0)   2 producer id   10 first offset   18 last offset   26 last stable offset       34 bytes an entry

An entry stands in the segment that holds the transaction's marker, which is its last offset. A lost entry would show
what was aborted, and nothing could tell that it is missing: so the file of a sealed segment is synced before the
segment counts as safe, and that of every other one is made again from the log after a crash.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from millpond.base.ports import Disk, File

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
FLUSH_ENTRIES = 64


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Where the marker stands."""
    stable_offset: int
    """The last stable offset once the marker was there: no later entry matters to what lies below it."""


class AbortedIndex:
    """Last offsets rise. In memory while its segment grows, or once somebody has asked."""

    __slots__ = ("_disk", "_entries", "_file", "_flushed", "_is_written", "is_growing", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.is_growing = False
        self._disk = disk
        self._entries: list[Aborted] | None = None
        self._flushed = 0
        self._is_written = False
        """Whether the file holds the flushed entries and nothing else."""
        self._file: File | None = None

    def entries(self) -> list[Aborted]:
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    # While it grows

    def start(self, *, is_file_there: bool = True) -> None:
        """Begin empty and in memory; what the file holds is dropped with the first flush."""
        self.close()
        self._entries = []
        self._flushed = 0
        self._is_written = not is_file_there
        self.is_growing = True

    def load(self) -> None:
        """Take the file into memory, to go on from there."""
        if self.is_growing:
            return
        entries = self._read()
        self.start()
        self._entries = entries
        self._flushed = len(entries)

    def add(self, entry: Aborted) -> None:
        assert self.is_growing, f"{self.path} is sealed"
        entries = self.entries()
        entries.append(entry)
        if len(entries) - self._flushed >= FLUSH_ENTRIES:
            # A full disk is no reason to refuse the marker, which is in the log by now.
            with contextlib.suppress(OSError):
                self.flush()

    def cut(self, offset: int) -> None:
        """Forget markers at or after `offset`."""
        entries = self.entries()
        while entries and entries[-1].last_offset >= offset:
            entries.pop()
        if self._flushed > len(entries):
            self._flushed = len(entries)
            self._is_written = False

    def flush(self) -> None:
        """Bring the file up to the memory, unsynced. Without entries there is no file."""
        if not self.is_growing or (self._is_written and self._flushed == len(self.entries())):
            return
        entries = self.entries()
        if not entries and not self._disk.exists(self.path):
            self._is_written = True
            return
        block = b"".join([_ENTRY.pack(_VERSION, *entry) for entry in entries[self._flushed :]])
        file = self._disk.open(self.path, create=True)
        try:
            if file.size() != self._flushed * _ENTRY.size:
                file.truncate(self._flushed * _ENTRY.size)
            if block:
                file.append((block,))
            self._flushed = len(entries)
            self._is_written = True
        finally:
            file.close()

    def make_file(self) -> None:
        """Have a file even without entries, to take the place of one that had some."""
        self._disk.open(self.path, create=True).close()

    def seal(self) -> None:
        """Write the rest and give the memory back."""
        self.flush()
        self.is_growing = False
        self._entries = None

    # The file

    def _read(self) -> list[Aborted]:
        """The entries as far as they make sense."""
        try:
            data = self._disk.read(self.path)
        except FileNotFoundError:
            return []
        found: list[Aborted] = []
        for version, *fields in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
            entry = Aborted(*fields)
            if version != _VERSION or (found and entry.last_offset <= found[-1].last_offset):
                break
            found.append(entry)
        return found

    def is_plausible(self, base_offset: int, next_offset: int) -> bool:
        """Whole entries, all of them inside the segment."""
        try:
            size = self._disk.size(self.path)
        except FileNotFoundError:
            return True
        found = self._read()
        if len(found) * _ENTRY.size != size:
            return False
        return not found or (found[0].last_offset >= base_offset and found[-1].last_offset < next_offset)

    def file_for_sync(self) -> File | None:
        """The open file, if there is one to sync."""
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._file = self._disk.open(self.path)
        return self._file

    def close(self) -> None:
        """Let file and memory go; a sealed index reads itself again when asked."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self.is_growing:
            self._entries = None


def between(indexes: Iterable[AbortedIndex], from_offset: int, upper_offset: int) -> list[Aborted]:
    """The aborted transactions that have records from `from_offset` up to `upper_offset`.

    `indexes` are those of the segment that holds `from_offset` and of all that follow it: a marker may stand far
    behind the records.
    """
    found: list[Aborted] = []
    for index in indexes:
        for entry in index.entries():
            if entry.last_offset >= from_offset and entry.first_offset < upper_offset:
                found.append(entry)
            if entry.stable_offset >= upper_offset:
                return found
    return found
