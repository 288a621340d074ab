"""The real disk: positional appends, pread, fdatasync, and directory entries that are synced with their folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock

from millpond.base.ports import Buffer
from millpond.node.private_files import FILE_MODE, FOLDER_MODE

REPLACE_SUFFIX = ".tmp"

_GET_GENERATION = 0x80087601
"""FS_IOC_GETVERSION: a number that a file system assigns to every file and folder it creates."""
"""The suffix of what `replace` writes first; such a file is left over from a power cut and may be removed."""

SPARE_SUFFIX = ".spare"
"""The suffix of what `write_aside` writes; the file may stay, and holds nothing that is needed."""

_AT_CWD = -100
_EXCHANGE = 2
"""A renameat2 flag: both names stay and swap their files."""

_IOV_MAX = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_READ_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None) if hasattr(os, "preadv") else None
_HAS_PWRITEV = hasattr(os, "pwritev")
_PROBE = bytearray(1)


@cache
def _find_syncfs() -> Callable[[int], int] | None:
    """Syncs a whole file system and returns an error number; None if unavailable.

    The call is not in the standard library, and reports errors only since Linux 5.8.
    """
    if not sys.platform.startswith("linux") or _kernel_version() < (5, 8):
        return None
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    return lambda descriptor: ctypes.get_errno() if call(descriptor) else 0


@cache
def _find_exchange() -> Callable[[str, str], int] | None:
    """Swaps the files of two names and returns an error number; None if unavailable."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return lambda one, other: (
        ctypes.get_errno()
        if call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), ctypes.c_uint(_EXCHANGE))
        else 0
    )


def _kernel_version() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    digits = re.match(r"\d+", rest)
    return int(major), int(digits.group()) if digits else 0


def _write_at(descriptor: int, parts: Sequence[Buffer], position: int) -> int:
    """One write of as much as the kernel accepts."""
    if len(parts) > _IOV_MAX:
        parts = parts[:_IOV_MAX]
    if len(parts) == 1:
        # Nearly every append has one buffer, and this call is cheaper than one with a list.
        written = os.pwrite(descriptor, parts[0], position)
    elif _HAS_PWRITEV:
        written = os.pwritev(descriptor, parts, position)
    else:
        written = os.pwrite(descriptor, b"".join(parts), position)
    if not written and any(parts):
        raise OSError(errno.EIO, "the disk accepted no bytes and reported no error")
    return written


def _after(parts: Sequence[Buffer], count: int) -> list[Buffer]:
    """What is left of `parts` after their first `count` bytes have been written."""
    for index, part in enumerate(parts):
        if count < len(part):
            return [memoryview(part)[count:], *parts[index + 1 :]]
        count -= len(part)
    return []


def _sync(descriptor: int) -> None:
    """Flush data, and the metadata needed to find it, through the drive's cache."""
    if _FULL_SYNC is not None:
        # On macOS fsync only reaches the drive's cache, which a power cut empties.
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)


class RealFile:
    """One open file with a single writer.

    The end is remembered here, so that an append is one system call. A worker thread that reads or syncs must hold it
    by `retain`, or the descriptor may belong to another file by then.
    """

    __slots__ = ("_closing", "_descriptor", "_end", "_holds", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size
        self._holds = 0
        self._closing = False

    def size(self) -> int:
        return self._end

    def append(self, parts: Sequence[Buffer]) -> None:
        end = self._end
        left = parts
        missing = sum(map(len, parts)) if len(parts) != 1 else len(parts[0])
        try:
            while missing:
                written = _write_at(self._descriptor, left, end)
                end += written
                missing -= written
                if missing:
                    left = _after(left, written)
        except OSError:
            # Part of it may be in the file. Report the size that a reopened file would have.
            if self._descriptor >= 0:
                self._end = os.fstat(self._descriptor).st_size
            raise
        self._end = end

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        # The kernel may return less than requested (a signal, its 2 GiB limit): only an empty read means the end.
        pieces = [data]
        missing = length - len(data)
        while missing:
            piece = os.pread(self._descriptor, missing, position + length - missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def is_cached(self, position: int, length: int) -> bool:
        if _READ_NOWAIT is None:
            return True
        try:
            os.preadv(self._descriptor, (_PROBE,), position, _READ_NOWAIT)
            os.preadv(self._descriptor, (_PROBE,), position + max(length - 1, 0), _READ_NOWAIT)
        except OSError as error:
            # Some file systems cannot tell; then reading at once is the better guess.
            return error.errno != errno.EAGAIN
        return True

    def read_cached(self, position: int, length: int) -> Buffer | None:
        data: Buffer
        if _READ_NOWAIT is None:
            data = self.read_at(position, length)
            return data if len(data) == length else None
        data = bytearray(length)
        try:
            count = os.preadv(self._descriptor, (data,), position, _READ_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            # Some file systems cannot tell; then reading at once is the better guess.
            data = self.read_at(position, length)
            count = len(data)
        return data if count == length else None

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._end = size

    def sync(self) -> None:
        descriptor = self._descriptor
        if descriptor < 0:
            # Python raises ValueError; to the caller it is a disk that cannot sync.
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        _sync(descriptor)

    def descriptor(self) -> int | None:
        return self._descriptor if self._descriptor >= 0 else None

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
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFileLock:
    """An exclusive lock on a file; the kernel releases it when the process dies, however it dies."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The machine's own file system."""

    def __init__(self) -> None:
        self._everything = Lock()
        self._everything_failed = False
        self._whole: dict[str, int] = {}

    def __del__(self) -> None:
        for descriptor in self._whole.values():
            os.close(descriptor)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, FILE_MODE))

    def read(self, path: str) -> bytes:
        # Not by `open`: its buffers take longer than the file, and startup reads one per partition.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size + 1)
            if len(data) != size:
                # It is not a regular file, it has grown, or the kernel returned less than requested.
                while more := os.read(descriptor, 1 << 20):
                    data += more
            return data
        finally:
            os.close(descriptor)

    def replace(self, path: str, data: bytes) -> None:
        temporary = path + REPLACE_SUFFIX
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append((data,))
            # Renaming before the sync could leave an empty file under the final name.
            file.sync()
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            file.close()
        os.rename(temporary, path)
        self.sync_folder(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def make_folder(self, path: str) -> None:
        os.makedirs(path, FOLDER_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        from shutil import rmtree  # rarely needed, and startup is faster without it

        rmtree(path)

    def sync_folder(self, path: str) -> None:
        descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # fsync, not fdatasync: here the metadata is the content.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_aside(self, path: str, data: bytes) -> str:
        aside = path + SPARE_SUFFIX
        descriptor = os.open(aside, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, FILE_MODE)
        try:
            written = 0
            while written < len(data):
                written += _write_at(descriptor, (data[written:],), written)
            # Not before: freeing the old blocks and allocating them again is the expensive part.
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)
        return aside

    def put_in_place(self, aside: str, path: str) -> None:
        exchange = _find_exchange()
        # Not every file system supports it, and at first there is nothing to swap.
        if exchange is None or exchange(aside, path):
            os.rename(aside, path)

    def sync_everything(self, path: str) -> bool:
        syncfs = _find_syncfs()
        if syncfs is None:
            return False
        # One at a time, and always on the same descriptor: the kernel reports an error once per descriptor, and a new
        # descriptor does not get errors that were already reported to another.
        with self._everything:
            if self._everything_failed:
                return False
            if path not in self._whole:
                self._whole[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            code = syncfs(self._whole[path])
            if code:
                self._everything_failed = True
                raise OSError(code, os.strerror(code), path)
        return True

    def files_max(self) -> int:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return limit if limit != resource.RLIM_INFINITY else 1 << 20

    def free_bytes(self, path: str) -> int:
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def total_bytes(self, path: str) -> int:
        room = os.statvfs(path)
        return room.f_blocks * room.f_frsize

    def mark(self, folder: str) -> str | None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            generation = bytearray(8)
            fcntl.ioctl(descriptor, _GET_GENERATION, generation)
            # Inode numbers are reused when a folder is removed, and some file systems invent them.
            return f"{os.fstat(descriptor).st_ino}-{int.from_bytes(generation, sys.byteorder)}"
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> RealFileLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        with contextlib.suppress(OSError):
            # The pid is for an operator who wants to end this process; the lock alone shows that it runs.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return RealFileLock(descriptor)
