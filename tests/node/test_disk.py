"""What only a real disk can do wrong. (What every disk promises: tests/ports.)"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.own_process import in_own_process

from millpond.node import disk as disk_module
from millpond.node.disk import RealDisk, RealFile


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file may grow beyond 100 bytes: the nearest thing to a full disk that needs no special rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_append_goes_on_after_a_partial_write(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwrite(fd, b"".join(parts)[:7], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: pwrite(fd, part[:7], at))
    file = disk.open(f"{tmp_path}/a", create=True)
    parts = [b"0123456789", bytearray(b"ab"), b"", memoryview(b"c" * 30), b"end"]
    file.append(parts)
    file.append([b"more than seven"])
    assert disk.read(f"{tmp_path}/a") == b"".join(parts) + b"more than seven"


def test_an_append_without_pwritev(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_HAS_PWRITEV", False)
    monkeypatch.setattr(disk_module, "_IOV_MAX", 2)
    file = disk.open(f"{tmp_path}/a", create=True)
    file.append([b"a", b"b", b"c", b"d", b"e"])
    assert disk.read(f"{tmp_path}/a") == b"abcde"


def test_a_disk_that_takes_nothing_does_not_spin(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    for parts in ([b"x"], [b"x", b"y"]):
        with pytest.raises(OSError):
            file.append(parts)
    assert file.size() == 0


def test_a_read_goes_on_after_a_short_one(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.append([b"0123456789"])
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 3), at))
    assert file.read_at(1, 7) == b"1234567"
    assert file.read_at(1, 70) == b"123456789"


def test_a_failed_append_tells_what_stands_in_the_file(disk: RealDisk, tmp_path: Path, small_files: int) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.append([b"x" * 60])
    with pytest.raises(OSError) as raised:
        file.append([b"y" * 60])
    assert raised.value.errno == errno.EFBIG
    assert file.size() == disk.size(f"{tmp_path}/a") == small_files
    file.truncate(60)
    file.append([b"z" * 40])
    assert disk.read(f"{tmp_path}/a") == b"x" * 60 + b"z" * 40


@pytest.mark.usefixtures("small_files")
def test_a_failed_replace_leaves_the_old_content_and_no_litter(disk: RealDisk, tmp_path: Path) -> None:
    disk.replace(f"{tmp_path}/a", b"old")
    with pytest.raises(OSError):
        disk.replace(f"{tmp_path}/a", b"n" * 1000)
    assert disk.read(f"{tmp_path}/a") == b"old"
    assert disk.list(str(tmp_path)) == ["a"]


def test_replace_syncs_before_it_renames(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[str] = []
    for name in ("fdatasync", "rename", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (replies.append(name), real(*args))[1])
    disk.replace(f"{tmp_path}/a", b"data")
    assert replies == ["fdatasync", "rename", "fsync"]


def cold_file(disk: RealDisk, path: str) -> RealFile:
    """A file none of whose pages are in memory. A probe makes the kernel read ahead, so each serves for one only."""
    file = disk.open(path, create=True)
    file.append([os.urandom(8 << 20)])
    file.sync()
    assert file.is_cached(0, 8 << 20)
    descriptor = file.descriptor()
    assert descriptor is not None
    # On a busy machine some pages are in hand for a moment, and stay.
    for _ in range(100):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not resident_pages(descriptor, 8 << 20):
            return file
        time.sleep(0.01)
    pytest.skip("this system keeps the pages of a file")


def resident_pages(descriptor: int, size: int) -> int:
    """How many pages of the file are in memory; asking reads nothing ahead."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    try:
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(page & 1 for page in pages)


def test_dropped_pages_do_not_count_as_cached(disk: RealDisk, tmp_path: Path) -> None:
    descriptor = cold_file(disk, f"{tmp_path}/probe").descriptor()
    assert descriptor is not None
    try:
        os.preadv(descriptor, [bytearray(1)], 4 << 20, os.RWF_NOWAIT)
        pytest.skip("this file system keeps its pages")
    except BlockingIOError:
        pass
    assert not cold_file(disk, f"{tmp_path}/middle").is_cached(4 << 20, 4096)
    whole = cold_file(disk, f"{tmp_path}/whole")
    assert not whole.is_cached(0, 8 << 20)
    whole.read_at(0, 4096)
    assert whole.is_cached(0, 4096)


@in_own_process
def test_descriptors_are_given_back(disk: RealDisk, tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(20):
        file = disk.open(f"{tmp_path}/{number}", create=True)
        file.retain()
        file.close()
        file.release()
        assert file.descriptor() is None
        disk.lock(f"{tmp_path}/lock").release()
        disk.replace(f"{tmp_path}/replaced", b"x")
        held = disk.lock(f"{tmp_path}/lock")
        with pytest.raises(BlockingIOError):
            disk.lock(f"{tmp_path}/lock")
        held.release()
    assert len(os.listdir("/dev/fd")) <= before


def test_a_lock_dies_with_its_process(disk: RealDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    code = f"import sys; from millpond.node.disk import RealDisk; l = RealDisk().lock({path!r}); print(flush=True); "
    code += "sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(BlockingIOError):
            disk.lock(path)
        holder.kill()
    disk.lock(path).release()


def test_a_sync_of_everything_that_failed_once_is_not_trusted_again(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a write error once; the next sync would succeed."""
    codes = [0, errno.EIO, 0]
    descriptors: list[int] = []

    def syncfs(descriptor: int) -> int:
        descriptors.append(descriptor)
        return codes.pop(0)

    monkeypatch.setattr(disk_module, "_find_syncfs", lambda: syncfs)
    assert disk.sync_everything(str(tmp_path))
    with pytest.raises(OSError) as raised:
        disk.sync_everything(str(tmp_path))
    assert raised.value.errno == errno.EIO
    assert not disk.sync_everything(str(tmp_path))
    assert len(descriptors) == 2
    assert len(set(descriptors)) == 1, "a new descriptor would not be told of what happened before it"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_what_is_written_aside_takes_its_place_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr("millpond.node.disk._find_exchange", lambda: None)
    disk = RealDisk()
    path = str(tmp_path / "note")
    for data in (b"first", b"a longer one", b"short", b""):
        before = disk.read(path) if disk.exists(path) else None
        aside = disk.write_aside(path, data)
        assert (disk.read(path) if disk.exists(path) else None) == before
        assert disk.read(aside) == data
        disk.put_in_place(aside, path)
        assert disk.read(path) == data
    assert set(disk.list(str(tmp_path))) <= {"note", "note.spare"}
