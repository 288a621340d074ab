"""The index of aborted transactions, one file per segment, in Kafka's format. Consumers use it to skip aborted
records.

    0 version (0)   2 producer id   10 first offset   18 last offset   26 last stable offset       34 bytes an entry

An entry belongs to the segment that holds the transaction's marker, which is its last offset. A lost entry would
expose aborted records, and nothing would reveal the loss. So the file of a sealed segment is synced before the
segment counts as safe, and all others are rebuilt from the log after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from millpond.base.named_tuple import NamedTuple
from millpond.log.open_files import CachedFile, OpenFiles

_ENTRY = struct.Struct(">hqqqq")
_FIELDS = struct.Struct(">2xqqqq")
"""An entry without its version."""
_VERSION = 0
_BLOCK_ENTRIES = 64
FLUSH_ENTRIES = 64


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""
    stable_offset: int
    """The last stable offset after the marker: no later entry affects records below it."""


_entry_of: Callable[[tuple[int, ...]], Aborted] = partial(tuple.__new__, Aborted)
"""Four times as fast as the constructor: there may be ten thousand."""


class AbortedIndex:
    """Entries sorted by last offset. In memory while its segment grows; searched in the file once the segment is
    sealed."""

    __slots__ = ("_count", "_disk", "_entries", "_file", "_flushed", "_is_written", "is_shortened")

    def __init__(self, files: OpenFiles, path: str) -> None:
        self._disk = files.disk
        self._entries: list[Aborted] | None = None
        self._flushed = 0
        self._is_written = False
        """Whether the file holds the flushed entries and nothing else."""
        self._file = CachedFile(files, path)
        self.is_shortened = False
        """Whether entries were removed from the file: without a sync a power cut may bring them back."""
        self._count: int | None = None
        """The number of entries in a sealed index's file, once it has been read."""

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def is_growing(self) -> bool:
        return self._entries is not None

    def entries(self) -> list[Aborted]:
        """All entries; a sealed index reads its whole file."""
        return self._read() if self._entries is None else self._entries

    def from_offset(self, offset: int) -> Iterator[Aborted]:
        """The entries whose markers are at or after `offset`, read lazily."""
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
            # Another process shortened it since it was counted. Without the entries, aborted records would be served.
            raise OSError(errno.EIO, f"{self.path} is shorter than it was")
        return list(map(_entry_of, _FIELDS.iter_unpack(data)))

    # Growing

    def start(self, *, is_file_there: bool = True) -> None:
        """Start empty, in memory. The first flush discards what the file holds."""
        self.close()
        self._entries = []
        self._flushed = 0
        self._is_written = not is_file_there

    def load(self) -> None:
        """Load the file into memory to continue from there."""
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
            # The marker is already in the log, so a full disk is no reason to refuse it.
            with contextlib.suppress(OSError):
                self.flush()

    def cut(self, offset: int) -> None:
        """Drop markers at or after `offset`."""
        entries = self._entries
        assert entries is not None, f"{self.path} is sealed"
        while entries and entries[-1].last_offset >= offset:
            entries.pop()
        if self._flushed > len(entries):
            self._flushed = len(entries)
            self._is_written = False

    def flush(self) -> None:
        """Write new entries to the file, without a sync. No file is created for an empty index."""
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
        """Create the file even without entries, to replace one that had some."""
        self._disk.open(self.path, create=True).close()

    def seal(self) -> None:
        """Flush, and free the memory."""
        self.flush()
        self._entries = None

    # The file

    def _read(self) -> list[Aborted]:
        """The entries up to the first invalid one."""
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
        """Whether the file holds whole entries only, all of them inside the segment."""
        try:
            size = self._disk.size(self.path)
        except FileNotFoundError:
            return True
        entries = self._read()
        if len(entries) * _ENTRY.size != size:
            return False
        return not entries or (entries[0].last_offset >= base_offset and entries[-1].last_offset < next_offset)

    def close(self) -> None:
        """Close the file; a sealed index reopens it when needed."""
        self._file.close()
        self._count = None

    def move(self, files: OpenFiles, path: str) -> None:
        self._file.move(files, path)


def between(
    indexes: Iterable[AbortedIndex], from_offset: int, upper_offset: int, count_max: int
) -> tuple[list[Aborted], int]:
    """The aborted transactions with records from `from_offset` up to `upper_offset`, and the upper offset.

    `indexes` are those of the segment that holds `from_offset` and all later ones: a marker may be far behind its
    records. With more than `count_max` transactions the upper offset is lowered, as far as that leaves some out:
    those that were open at `from_offset` always count.
    """
    aborted: list[Aborted] = []
    for index in indexes:
        for entry in index.from_offset(from_offset):
            if entry.first_offset < upper_offset:
                aborted.append(entry)
                if len(aborted) > count_max:
                    upper_offset = _lowered(aborted, from_offset, upper_offset)
                    aborted = [each for each in aborted if each.first_offset < upper_offset]
                    # Those that are left must not be sorted again for each one that follows.
                    count_max = max(count_max, 2 * len(aborted))
            if entry.stable_offset >= upper_offset:
                return aborted, upper_offset
    return aborted, upper_offset


def _lowered(aborted: list[Aborted], from_offset: int, upper_offset: int) -> int:
    """An offset that leaves out half of the transactions that begin after `from_offset`."""
    starts = sorted(entry.first_offset for entry in aborted if entry.first_offset > from_offset)
    return starts[len(starts) // 2] if starts else upper_offset
