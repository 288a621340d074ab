"""A sparse index: sorted keys with a value each, in a file that can always be rebuilt.

The index of the active segment is in memory and flushed in blocks; that of a sealed segment is searched in its file,
so that idle segments cost no memory.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from array import array
from bisect import bisect_left, bisect_right

from millpond.log.open_files import CachedFile, OpenFiles

FLUSH_ENTRIES = 128
_BLOCK_ENTRIES = 512
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class SparseIndex:
    """Keys rise strictly, values never fall. `offset_index` and `time_index` make the two kinds."""

    __slots__ = ("_disk", "_entry", "_file", "_flushed", "_is_counted", "_is_written", "_keys", "_values", "count")

    def __init__(self, files: OpenFiles, path: str, entry: struct.Struct) -> None:
        self.count = 0
        self._disk = files.disk
        self._entry = entry
        self._keys: array[int] | None = None
        self._values: array[int] = array("q")
        self._flushed = 0
        self._is_written = False
        """Whether the file holds the flushed entries and nothing else."""
        self._file = CachedFile(files, path)
        self._is_counted = False
        """Whether `count` is the number of entries in a sealed index's file."""

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def size_bytes(self) -> int:
        return self.count * self._entry.size

    @property
    def is_in_memory(self) -> bool:
        return self._keys is not None

    # Growing

    def start(self) -> None:
        """Start empty, in memory. The first flush discards what the file holds."""
        self.close()
        self._keys, self._values = array("q"), array("q")
        self.count = self._flushed = 0
        self._is_written = False

    def load(self) -> None:
        """Load the file into memory, up to the first entry that breaks the order."""
        self.start()
        try:
            data = self._disk.read(self.path)
        except FileNotFoundError:
            return
        usable = len(data) - len(data) % self._entry.size
        last_key = last_value = -1
        assert self._keys is not None
        for key, value in self._entry.iter_unpack(data[:usable]):
            if key <= last_key or value < last_value:
                break
            self._keys.append(key)
            self._values.append(value)
            last_key, last_value = key, value
        self.count = self._flushed = len(self._keys)
        self._is_written = self.count * self._entry.size == len(data)

    def add(self, key: int, value: int) -> None:
        assert self._keys is not None, f"{self.path} is sealed"
        self._keys.append(key)
        self._values.append(value)
        self.count += 1
        if not (self.count - self._flushed) % FLUSH_ENTRIES:
            # The batch is already in the log, so a full disk is no reason to refuse it.
            with contextlib.suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Write new entries to the file, without a sync: recovery rebuilds what a crash loses."""
        if self._keys is None or (self._is_written and self._flushed == self.count):
            return
        pack = self._entry.pack
        pairs = zip(self._keys[self._flushed :], self._values[self._flushed :], strict=True)
        block = b"".join([pack(key, value) for key, value in pairs])
        file = self._disk.open(self.path, create=True)
        try:
            if file.size() != self._flushed * self._entry.size:
                file.truncate(self._flushed * self._entry.size)
            if block:
                file.append((block,))
            self._flushed = self.count
            self._is_written = True
        finally:
            file.close()

    def cut(self, key: int, value: int) -> None:
        """Drop every entry whose key or value is at least this; only while in memory."""
        assert self._keys is not None, f"{self.path} is sealed"
        while self.count and (self._keys[-1] >= key or self._values[-1] >= value):
            self._keys.pop()
            self._values.pop()
            self.count -= 1
        if self._flushed > self.count:
            self._flushed = self.count
            self._is_written = False

    def seal(self) -> None:
        """Flush, and free the memory."""
        self.flush()
        self._keys, self._values = None, array("q")

    # Looking up

    def last(self) -> tuple[int, int] | None:
        if self._keys is not None:
            return (self._keys[-1], self._values[-1]) if self.count else None
        if not self._attach():
            return None
        return self._read(self.count - 1, 1)[0]

    def from_end(self, count: int) -> tuple[int, int] | None:
        """The entry that is `count` from the end; None if there are fewer."""
        if self._keys is None and not self._attach():
            return None
        number = self.count - count
        if number < 0:
            return None
        return (self._keys[number], self._values[number]) if self._keys is not None else self._read(number, 1)[0]

    def floor(self, key: int) -> tuple[int, int] | None:
        """The entry with the largest key that is not above `key`."""
        if self._keys is not None:
            number = bisect_right(self._keys, key) - 1
            return (self._keys[number], self._values[number]) if number >= 0 else None
        if not self._attach():
            return None
        _, entries = self._block(0, key)
        number = bisect_right([entry[0] for entry in entries], key) - 1
        return entries[number] if number >= 0 else None

    def ceiling_by_value(self, value: int) -> tuple[int, int] | None:
        """The first entry with at least this value."""
        if self._keys is not None:
            number = bisect_left(self._values, value)
            return (self._keys[number], self._values[number]) if number < self.count else None
        if not self._attach():
            return None
        first, entries = self._block(1, value - 1)
        number = first + bisect_left([entry[1] for entry in entries], value)
        return self._read(number, 1)[0] if number < self.count else None

    def _block(self, field: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        """A block of the file's entries, with the number of its first, that contains the last entry whose field is at
        most `most`."""
        low, high = 0, self.count
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self._read(middle, 1)[0][field] <= most:
                low = middle
            else:
                high = middle
        return low, self._read(low, high - low)

    def _attach(self) -> bool:
        """Open the file of a sealed index; False if it is empty."""
        if not self._is_counted:
            try:
                self.count = self._file.open().size() // self._entry.size
            except FileNotFoundError:
                return False
            self._is_counted = True
        return self.count > 0

    def _read(self, first: int, count: int) -> list[tuple[int, int]]:
        data = self._file.open().read_at(first * self._entry.size, count * self._entry.size)
        if len(data) != count * self._entry.size:
            # Another process shortened it since it was counted, or the loop is rebuilding it.
            self.close()
            raise OSError(errno.EIO, f"{self.path} is shorter than it was")
        return list(self._entry.iter_unpack(data))

    def is_plausible(self, key_max: int, value_max: int, *, may_be_empty: bool) -> bool:
        """A cheap check of a sealed index: whole entries, the last one inside the segment."""
        try:
            size = self._disk.size(self.path)
        except FileNotFoundError:
            return may_be_empty
        if size % self._entry.size:
            return False
        last = self.last()
        if last is None:
            return may_be_empty
        return 0 <= last[0] <= key_max and 0 <= last[1] <= value_max

    def is_rising(self) -> bool:
        """Check every entry of a sealed index: a block lost in a power cut breaks the order."""
        last_key = last_value = -1
        entries = self._read(0, self.count) if self._attach() else []
        for key, value in entries:
            if key <= last_key or value < last_value:
                return False
            last_key, last_value = key, value
        return True

    def close(self) -> None:
        """Close the file; a sealed index reopens it when needed."""
        self._file.close()
        self._is_counted = False

    def move(self, files: OpenFiles, path: str) -> None:
        self._file.move(files, path)


def offset_index(files: OpenFiles, path: str) -> SparseIndex:
    """Maps the last offset of a batch, relative to the segment's base, to the position where that batch starts."""
    return SparseIndex(files, path, _OFFSET_ENTRY)


def time_index(files: OpenFiles, path: str) -> SparseIndex:
    """Maps the largest timestamp to the last offset of the batch that has it, relative to the segment's base."""
    return SparseIndex(files, path, _TIME_ENTRY)
