"""The open files of logs: opened when needed, the least recently used closed when there are too many.

Descriptors are limited, and connections need them, too. A file with unsynced writes stays open, as a new descriptor
might not report a failed write. So client writes are refused while too many files wait for a sync; the broker's own
writes have a reserve.
"""

from __future__ import annotations

import errno
from collections import OrderedDict

from millpond.base.ports import Disk, File
from millpond.log.room import DiskRoom

COUNT_MIN = 16
COUNT_MAX = 1 << 16
FILES_ENOUGH = 4096
"""With this many open files a node with a few thousand partitions rarely reopens one."""
SEARCHED_MIN = 8
SEARCHED_MAX = 4096
"""How many files are looked at for one to close, which takes up to a microsecond each. Clients choose how many files
are being sent from: after a search in vain the next one is short, and continues where this one ended."""


def share_for_files(descriptors: int) -> int:
    """Half of a low limit, so that the node can write at all; less than half of a high one."""
    return min(descriptors // 2, max(descriptors // 3, FILES_ENOUGH))


class TooManyOpen(OSError):
    """All files that may be open are being sent from or wait for a sync. Temporary."""

    def __init__(self, count: int) -> None:
        super().__init__(errno.EMFILE, f"all {count} available file descriptors are in use (see `ulimit -n`)")


class OpenFiles:
    """How many files may be open, and which were used last."""

    __slots__ = ("_searched_max", "_unpinned", "count_max", "disk", "pinned_count", "room")

    def __init__(self, disk: Disk, count_max: int = COUNT_MAX) -> None:
        self.disk = disk
        self.count_max = count_max
        self.pinned_count = 0
        self.room = DiskRoom()
        self._unpinned: OrderedDict[CachedFile, None] = OrderedDict()
        self._searched_max = SEARCHED_MAX

    @classmethod
    def of_process(cls, disk: Disk) -> OpenFiles:
        """The logs' share of the process's descriptors: the rest is for connections."""
        return cls(disk, min(max(share_for_files(disk.files_max()), COUNT_MIN), COUNT_MAX))

    def __len__(self) -> int:
        return len(self._unpinned) + self.pinned_count

    @property
    def is_pressed(self) -> bool:
        """Whether so many files wait for a sync that it should happen soon."""
        return 2 * self.pinned_count > self.count_max

    def admit(self, cached: CachedFile, *, create: bool, urgent: bool = False) -> File:
        """Open the file, closing another one if necessary."""
        if len(self) >= self.count_max:
            self._close_oldest(urgent=urgent)
        file = self.disk.open(cached.path, create=create)
        self._unpinned[cached] = None
        return file

    def _close_oldest(self, *, urgent: bool) -> None:
        unpinned = self._unpinned
        searched_max = len(unpinned) if urgent else min(self._searched_max, len(unpinned))
        for _ in range(searched_max):
            oldest = next(iter(unpinned))
            if oldest.is_held:
                # Closing it would free nothing until it has been sent.
                unpinned.move_to_end(oldest)
                continue
            oldest.close()
            if len(self) < self.count_max:
                self._searched_max = min(2 * self._searched_max, SEARCHED_MAX)
                return
        self._searched_max = SEARCHED_MIN
        raise TooManyOpen(self.count_max)

    def touch(self, cached: CachedFile) -> None:
        self._unpinned.move_to_end(cached)

    def discard(self, cached: CachedFile) -> None:
        if cached.is_pinned:
            self.pinned_count -= 1
        else:
            self._unpinned.pop(cached, None)

    def pin(self, cached: CachedFile, *, urgent: bool) -> None:
        if not urgent and 4 * self.pinned_count >= 3 * self.count_max:
            raise TooManyOpen(self.count_max)
        del self._unpinned[cached]
        self.pinned_count += 1

    def unpin(self, cached: CachedFile) -> None:
        self.pinned_count -= 1
        self._unpinned[cached] = None


class CachedFile:
    """One file by its path, open or not."""

    __slots__ = ("_file", "_files", "is_pinned", "path")

    def __init__(self, files: OpenFiles, path: str) -> None:
        self.path = path
        self.is_pinned = False
        self._files = files
        self._file: File | None = None

    def open(self, *, create: bool = False, urgent: bool = False) -> File:
        """The open file, to be used at once."""
        if self._file is None:
            self._file = self._files.admit(self, create=create, urgent=urgent)
        elif not self.is_pinned:
            self._files.touch(self)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def is_held(self) -> bool:
        return self._file is not None and self._file.is_held()

    def open_to_write(self, *, urgent: bool) -> File:
        """The open file, which stays open until `unpin`."""
        if self.is_pinned:
            assert self._file is not None, "a pinned file must be open"
            return self._file
        file = self.open(urgent=urgent)
        self._files.pin(self, urgent=urgent)
        self.is_pinned = True
        return file

    def unpin(self) -> None:
        if self.is_pinned:
            self.is_pinned = False
            self._files.unpin(self)

    def close(self) -> None:
        """Release it; a reader that retained it can still read."""
        if self._file is not None:
            self._files.discard(self)
            self.is_pinned = False
            self._file.close()
            self._file = None

    def move(self, files: OpenFiles, path: str) -> None:
        """Use this path from now on; the file must be closed."""
        assert self._file is None, f"{self.path} is open"
        self._files, self.path = files, path
