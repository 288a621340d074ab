"""Which transactions were aborted, per segment, in Kafka's format: consumers need to know what to leave out.

    0 version (0)   2 producer id   10 first offset   18 last offset   26 last stable offset       34 bytes an entry

An entry stands in the segment that holds the transaction's marker, which is its last offset. A lost entry would show
what was aborted, and nothing could tell that it is missing: so the file of a sealed segment is synced before the
segment counts as safe, and that of every other one is made again from the log after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from millpond.base.named_tuple import NamedTuple
from millpond.log.open_files import CachedFile, OpenFiles

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_BLOCK_ENTRIES = 64
FLUSH_ENTRIES = 64


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Where the marker stands."""
    stable_offset: int
    """The last stable offset once the marker was there: no later entry matters to what lies below it."""


class AbortedIndex:
    """Last offsets rise. In memory while its segment grows; that of a sealed one is searched in the file."""

    __slots__ = ("_count", "_disk", "_entries", "_file", "_flushed", "_is_written", "is_shortened")

    def __init__(self, files: OpenFiles, path: str) -> None:
        self._disk = files.disk
        self._entries: list[Aborted] | None = None
        self._flushed = 0
        self._is_written = False
        """Whether the file holds the flushed entries and nothing else."""
        self._file = CachedFile(files, path)
        self.is_shortened = False
        """Whether entries were taken out of the file: without a sync they may come back."""
        self._count: int | None = None
        """How many entries the file of a sealed index has, once somebody has asked."""

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def is_growing(self) -> bool:
        return self._entries is not None

    def entries(self) -> list[Aborted]:
        """All of them; for a sealed index the whole file is read."""
        return self._read() if self._entries is None else self._entries

    def from_offset(self, offset: int) -> Iterator[Aborted]:
        """The entries whose markers stand at or after `offset`, read as they are asked for."""
        if self._entries is not None:
            first = bisect_left(self._entries, offset, key=lambda entry: entry.last_offset)
            yield from self._entries[first:]
            return
        low, high = 0, self._attach()
        while low < high:
            middle = (low + high) // 2
            if self._read_block(middle, 1)[0].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        last_offset = offset - 1
        end = self._attach()
        for first in range(low, end, _BLOCK_ENTRIES):
            for entry in self._read_block(first, min(_BLOCK_ENTRIES, end - first)):
                if entry.last_offset <= last_offset:
                    return
                last_offset = entry.last_offset
                yield entry

    def _attach(self) -> int:
        if self._count is None:
            try:
                self._count = self._file.open().size() // _ENTRY.size
            except FileNotFoundError:
                self._count = 0
        return self._count

    def _read_block(self, first: int, count: int) -> list[Aborted]:
        data = self._file.open().read_at(first * _ENTRY.size, count * _ENTRY.size)
        if len(data) != count * _ENTRY.size:
            # Shortened by somebody else since it was counted: without it, aborted records would count.
            raise OSError(errno.EIO, f"{self.path} is shorter than it was")
        return [Aborted(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]

    # While it grows

    def start(self, *, is_file_there: bool = True) -> None:
        """Begin empty and in memory; what the file holds is dropped with the first flush."""
        self.close()
        self._entries = []
        self._flushed = 0
        self._is_written = not is_file_there

    def load(self) -> None:
        """Take the file into memory, to go on from there."""
        if self.is_growing:
            return
        entries = self._read()
        self.start()
        self._entries = entries
        self._flushed = len(entries)

    def add(self, entry: Aborted) -> None:
        assert self._entries is not None, f"{self.path} is sealed"
        entries = self._entries
        entries.append(entry)
        if len(entries) - self._flushed >= FLUSH_ENTRIES:
            # A full disk is no reason to refuse the marker, which is in the log by now.
            with contextlib.suppress(OSError):
                self.flush()

    def cut(self, offset: int) -> None:
        """Forget markers at or after `offset`."""
        entries = self._entries
        assert entries is not None, f"{self.path} is sealed"
        while entries and entries[-1].last_offset >= offset:
            entries.pop()
        if self._flushed > len(entries):
            self._flushed = len(entries)
            self._is_written = False

    def flush(self) -> None:
        """Bring the file up to the memory, unsynced. Without entries there is no file."""
        entries = self._entries
        if entries is None or (self._is_written and self._flushed == len(entries)):
            return
        if not entries and not self._disk.exists(self.path):
            self._is_written = True
            return
        block = b"".join([_ENTRY.pack(_VERSION, *entry) for entry in entries[self._flushed :]])
        file = self._disk.open(self.path, create=True)
        try:
            if file.size() != self._flushed * _ENTRY.size:
                file.truncate(self._flushed * _ENTRY.size)
                self.is_shortened = True
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
        self._entries = None

    # The file

    def _read(self) -> list[Aborted]:
        """The entries as far as they make sense."""
        try:
            data = self._disk.read(self.path)
        except FileNotFoundError:
            return []
        entries: list[Aborted] = []
        for version, *fields in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
            entry = Aborted(*fields)
            if version != _VERSION or (entries and entry.last_offset <= entries[-1].last_offset):
                break
            entries.append(entry)
        return entries

    def is_plausible(self, base_offset: int, next_offset: int) -> bool:
        """Whole entries, all of them inside the segment."""
        try:
            size = self._disk.size(self.path)
        except FileNotFoundError:
            return True
        entries = self._read()
        if len(entries) * _ENTRY.size != size:
            return False
        return not entries or (entries[0].last_offset >= base_offset and entries[-1].last_offset < next_offset)

    def close(self) -> None:
        """Let the file go; a sealed index opens it again when asked."""
        self._file.close()
        self._count = None

    def move(self, files: OpenFiles, path: str) -> None:
        """The file has been renamed."""
        self._file.move(files, path)


def between(indexes: Iterable[AbortedIndex], from_offset: int, upper_offset: int) -> list[Aborted]:
    """The aborted transactions that have records from `from_offset` up to `upper_offset`.

    `indexes` are those of the segment that holds `from_offset` and of all that follow it: a marker may stand far
    behind the records.
    """
    aborted: list[Aborted] = []
    for index in indexes:
        for entry in index.from_offset(from_offset):
            if entry.first_offset < upper_offset:
                aborted.append(entry)
            if entry.stable_offset >= upper_offset:
                return aborted
    return aborted
