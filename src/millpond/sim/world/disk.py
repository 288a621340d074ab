"""An in-memory disk that loses unsynced data in a power cut, and fails on request.

It behaves deterministically, except for what the seed decides at `crash`. Operations that change the disk are counted
and traced, so that a test can cut the power at each of them in turn.
"""

from __future__ import annotations

import errno
import posixpath
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from millpond.base.ports import Buffer
from millpond.sim.world.file_tree import Blob, Folder, Tree, fault

REPLACE_SUFFIX = ".tmp"
SPARE_SUFFIX = ".spare"
FILES_MAX = 96
"""Limit of open files: low, so that files are closed and reopened all the time."""
TRACE_LINES_MAX = 100_000
BOUNDLESS = 1 << 40


class PowerCut(BaseException):
    """The machine stops here. A BaseException, so that no handler in the broker can catch it and continue."""

    def __init__(self, disk: SimDisk, where: str) -> None:
        super().__init__(where)
        self.disk = disk


@dataclass(slots=True)
class _Fault:
    """Calls on paths that contain `part` fail, `times` times or (None) forever."""

    part: str
    code: int
    times: int | None

    def strikes(self, path: str) -> bool:
        if self.part not in path or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class SimFile:
    """One open file; it tracks its own end, as the real one does."""

    __slots__ = ("_blob", "_closing", "_disk", "_end", "_holds", "_incarnation", "_open", "path")

    def __init__(self, disk: SimDisk, path: str, blob: Blob) -> None:
        self.path = path
        self._disk = disk
        self._blob = blob
        self._end = len(blob.live)
        self._incarnation = disk.incarnation
        self._holds = 0
        self._closing = False
        self._open = True

    def size(self) -> int:
        return self._end

    def append(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        self._check()
        self._disk.operation("append", self.path, len(data))
        room = self._disk.room_for(max(self._end + len(data) - len(self._blob.live), 0))
        kept = len(data) if room is None else max(len(data) - room, 0)
        if kept:
            self._blob.write(self._end, data[:kept])
        if kept < len(data):
            self._end = len(self._blob.live)
            raise fault(errno.ENOSPC, self.path)
        self._end += kept

    def read_at(self, position: int, length: int) -> bytes:
        self._check()
        self._disk.strike(self._disk.read_faults, self.path)
        return bytes(self._blob.live[position : position + length])

    def is_cached(self, position: int, length: int) -> bool:
        return self._disk.seems_cached()

    def read_cached(self, position: int, length: int) -> Buffer | None:
        if not self._disk.seems_cached():
            return None
        data = self.read_at(position, length)
        return data if len(data) == length else None

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.operation("truncate", self.path, size)
        self._blob.truncate(size)
        self._end = size

    def sync(self) -> None:
        self._check()
        self._disk.operation("sync", self.path, len(self._blob.live))
        try:
            self._disk.strike(self._disk.sync_faults, self.path)
            if self._blob.is_loss_untold:
                raise fault(errno.EIO, self.path)
        except OSError:
            self._blob.forget_unsynced()
            raise
        self._blob.sync()

    def descriptor(self) -> int | None:
        return None

    def retain(self) -> None:
        self._holds += 1

    def release(self) -> None:
        assert self._holds > 0, f"{self.path} is released more often than retained"
        self._holds -= 1
        if self._closing and not self._holds:
            self._close_now()

    def is_held(self) -> bool:
        return self._holds > 0

    def close(self) -> None:
        self._closing = True
        if not self._holds:
            self._close_now()

    def _close_now(self) -> None:
        if self._open:
            self._open = False
            self._disk.closed_one(self._incarnation)

    def _check(self) -> None:
        if not self._open or self._incarnation != self._disk.incarnation:
            raise fault(errno.EBADF, self.path)


class SimFileLock:
    """Held until released or until a power cut."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._incarnation = disk.incarnation

    def release(self) -> None:
        if self._incarnation == self._disk.incarnation:
            self._disk.locks.pop(self._path, None)
            self._incarnation = -1


class SimDisk:
    """Folders and files in memory, with faults on request.

    `capacity_bytes`, `open_files_max` and `cold_share` (how often `is_cached` says no) may be set at any time.
    """

    def __init__(self, seed: int | str = 0, capacity_bytes: int = BOUNDLESS) -> None:
        self.capacity_bytes = capacity_bytes
        self._total_bytes = capacity_bytes
        self.open_files_max: int | None = None
        self.files_limit = FILES_MAX
        self.cold_share = 0.0
        self.operations = 0
        self.trace: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self.incarnation = 0
        self.open_files = 0
        self.locks: dict[str, SimFileLock] = {}
        self.sync_faults: list[_Fault] = []
        self.read_faults: list[_Fault] = []
        self.open_faults: list[_Fault] = []
        self._seed = seed
        self._random = Random(seed)
        self._tree = Tree()
        self._cut_at: int | None = None
        self._dark = False
        self._everything_failed = False

    # The port

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._check_power()
        self.strike(self.open_faults, path)
        if self.open_files_max is not None and self.open_files >= self.open_files_max:
            raise fault(errno.EMFILE, path)
        if create and not self.exists(path):
            folder, name = self._tree.parent(path)
            self.operation("create", path)
            self._tree.change((folder, name, Blob()))
        file = SimFile(self, path, self._tree.blob(path))
        self.open_files += 1
        return file

    def read(self, path: str) -> bytes:
        self._check_power()
        blob = self._tree.blob(path)
        self.strike(self.open_faults, path)
        self.strike(self.read_faults, path)
        return bytes(blob.live)

    def replace(self, path: str, data: bytes) -> None:
        temporary = path + REPLACE_SUFFIX
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append((data,))
            file.sync()
        except OSError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_folder(posixpath.dirname(path))

    def exists(self, path: str) -> bool:
        try:
            self._tree.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        entry = self._tree.find(path)
        return len(entry.live) if isinstance(entry, Blob) else 0

    def list(self, folder: str) -> list[str]:
        self._check_power()
        self.strike(self.open_faults, folder + "/")
        return sorted(self._tree.folder(folder).live)

    def make_folder(self, path: str) -> None:
        parent = posixpath.dirname(posixpath.normpath(path))
        if self.exists(path):
            if isinstance(self._tree.find(path), Blob):
                raise fault(errno.EEXIST, path)
            return
        self.make_folder(parent)
        folder, name = self._tree.parent(path)
        self.operation("make_folder", path)
        self._tree.change((folder, name, self._tree.new_folder()))

    def rename(self, old: str, new: str) -> None:
        entry = self._tree.find(old)
        source, target = self._tree.parent(old), self._tree.parent(new)
        self._refuse_rename(entry, target[0].live.get(target[1]), new)
        self.operation("rename", f"{old} {new}")
        if source != target:
            self._tree.change((*source, None), (*target, entry))

    @staticmethod
    def _refuse_rename(entry: Blob | Folder, there: Blob | Folder | None, new: str) -> None:
        if isinstance(there, Folder):
            if isinstance(entry, Blob):
                raise fault(errno.EISDIR, new)
            if there.live and there is not entry:
                raise fault(errno.ENOTEMPTY, new)
        elif there is not None and isinstance(entry, Folder):
            raise fault(errno.ENOTDIR, new)

    def remove(self, path: str) -> None:
        self._tree.blob(path)
        folder, name = self._tree.parent(path)
        self.operation("remove", path)
        self._tree.change((folder, name, None))

    def remove_folder(self, path: str) -> None:
        inside = self._tree.folder(path)
        # One by one, like a real disk: a power cut can hit in between.
        for name in sorted(inside.live):
            inner = posixpath.join(path, name)
            if isinstance(inside.live[name], Folder):
                self.remove_folder(inner)
            else:
                self.remove(inner)
        folder, name = self._tree.parent(path)
        self.operation("remove_folder", path)
        self._tree.change((folder, name, None))

    def sync_folder(self, path: str) -> None:
        folder = self._tree.folder(path)
        self.operation("sync_folder", path)
        self.strike(self.sync_faults, path)
        self._tree.sync(folder)

    def write_aside(self, path: str, data: bytes) -> str:
        aside = path + SPARE_SUFFIX
        file = self.open(aside, create=True)
        try:
            file.truncate(0)
            file.append((data,))
        finally:
            file.close()
        return aside

    def put_in_place(self, aside: str, path: str) -> None:
        if not self.exists(path):
            self.rename(aside, path)
            return
        spare, there = self._tree.blob(aside), self._tree.blob(path)
        self.operation("exchange", f"{aside} {path}")
        self._tree.change((*self._tree.parent(aside), there), (*self._tree.parent(path), spare))

    def sync_everything(self, path: str) -> bool:
        self._tree.find(path)
        if self._everything_failed:
            return False
        self.operation("sync_everything", path)
        blobs = list(self._tree.blobs())
        try:
            self.strike(self.sync_faults, path)
        except OSError:
            self._everything_failed = True
            for _, blob in blobs:
                blob.lose_untold()
            raise
        for _, blob in blobs:
            blob.sync()
        self._tree.sync_all()
        return True

    def files_max(self) -> int:
        return self.files_limit

    def free_bytes(self, path: str) -> int:
        self._tree.find(path)
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def total_bytes(self, path: str) -> int:
        self._tree.find(path)
        # Bytes taken by `fill` do not reduce the total.
        return max(self.capacity_bytes, self._total_bytes)

    def mark(self, folder: str) -> str | None:
        return f"{self._seed}:{self._tree.folder(folder).number}"

    def lock(self, path: str) -> SimFileLock:
        key = posixpath.normpath("/" + path)
        if key in self.locks:
            raise fault(errno.EAGAIN, path)
        self.open(path, create=True).close()
        lock = self.locks[key] = SimFileLock(self, key)
        return lock

    # For tests

    def crash(self) -> None:
        """Cut the power and reboot: unsynced bytes and names survive in part, open files and locks do not."""
        self.drop_process()
        self._dark = False
        self._cut_at = None
        self._tree.lose_power(self._random)
        self.trace.append(f"{self.operations} crash")

    def drop_process(self) -> None:
        """Kill the process but not the machine: open files and locks are gone, all bytes and names survive."""
        self.incarnation += 1
        self.open_files = 0
        self._everything_failed = False
        self.locks.clear()

    def crash_at_operation(self, number: int) -> None:
        """Raise `PowerCut` instead of operation number `number` (as `operations` counts), and at every later one
        until `crash`.
        """
        self._cut_at = number

    def fail_syncs(self, path_part: str = "", *, times: int | None = 1, code: int = errno.EIO) -> None:
        """Fail syncs of files and folders. A later sync never writes the data of a failed one."""
        self.sync_faults.append(_Fault(path_part, code, times))

    def fail_reads(self, path_part: str = "", *, times: int | None = 1, code: int = errno.EIO) -> None:
        self.read_faults.append(_Fault(path_part, code, times))

    def fail_opens(self, path_part: str, *, times: int | None = None, code: int = errno.EACCES) -> None:
        """Fail opens of files whose path contains `path_part`, and lists of folders whose path plus "/" contains it.

        Open files are not affected.
        """
        self.open_faults.append(_Fault(path_part, code, times))

    def heal(self) -> None:
        """Remove all injected faults, and free the space."""
        self.sync_faults.clear()
        self.read_faults.clear()
        self.open_faults.clear()
        self.open_files_max = None
        self.cold_share = 0.0
        self.make_room()

    def fill(self, left_bytes: int = 0) -> None:
        """Leave only this much free space, as other files would, until `make_room`."""
        self._total_bytes = max(self._total_bytes, self.capacity_bytes)
        self.capacity_bytes = self.used_bytes() + left_bytes

    def make_room(self) -> None:
        self.capacity_bytes = BOUNDLESS

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit, on disk and in the page cache."""
        self._tree.blob(path).flip_bit(position, bit)

    def rot(self, path_part: str = "") -> str | None:
        """Flip a random bit of a random file whose path contains `path_part`; returns the path, or None if there is
        none.
        """
        paths = [(path, len(blob.live)) for path, blob in self._tree.blobs() if path_part in path and blob.live]
        if not paths:
            return None
        path, size = self._random.choice(paths)
        self.flip_bit(path, self._random.randrange(size), self._random.randrange(8))
        return path

    def wipe(self) -> None:
        """Replace the disk by an empty one; no file may be open."""
        assert not self.open_files, "files are open"
        self._tree = Tree()
        self.trace.append(f"{self.operations} wiped")

    def roll_back(self, contents: Mapping[str, bytes]) -> None:
        """Restore contents that `contents` returned earlier, as from an old backup; no file may be open.

        The folders are recreated with the same names.
        """
        assert not self.open_files, "files are open"
        self._tree = Tree(self._tree.folders)
        for path, data in contents.items():
            self.make_folder(posixpath.dirname(path))
            folder, name = self._tree.parent(path)
            self._tree.change((folder, name, Blob(bytearray(data), bytearray(data))))
        self._tree.sync_all()
        self.trace.append(f"{self.operations} rolled back")

    def used_bytes(self) -> int:
        return sum(len(blob.live) for _, blob in self._tree.blobs())

    def contents(self) -> dict[str, bytes]:
        """Every file with its bytes, as the running machine sees them."""
        return {path: bytes(blob.live) for path, blob in self._tree.blobs()}

    # For the files

    def operation(self, kind: str, path: str, amount: int | None = None) -> None:
        """Count and trace one change to the disk; a planned power cut happens here."""
        self._check_power()
        self.operations += 1
        if self._cut_at is not None and self.operations >= self._cut_at:
            self._dark = True
            self.trace.append(f"{self.operations} power cut at {kind} {path}")
            raise PowerCut(self, f"operation {self.operations}: {kind} {path}")
        self.trace.append(f"{self.operations} {kind} {path}" + ("" if amount is None else f" {amount}"))

    def room_for(self, growth: int) -> int | None:
        """None if this many bytes fit, else how many bytes are missing."""
        # Summing up all files is slow, so only do it if the capacity is limited.
        if self.capacity_bytes >= BOUNDLESS:
            return None
        missing = growth - (self.capacity_bytes - self.used_bytes())
        return missing if missing > 0 else None

    def strike(self, faults: Sequence[_Fault], path: str) -> None:
        for order in faults:
            if order.strikes(path):
                raise fault(order.code, path)

    def seems_cached(self) -> bool:
        return self.cold_share == 0.0 or self._random.random() >= self.cold_share

    def closed_one(self, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self.open_files -= 1

    def _check_power(self) -> None:
        if self._dark:
            raise PowerCut(self, "the power is off")
