"""The cost of a sync by how the file was prepared: alternately, slice by slice, each slice in a separate file.

A wait includes the append and the sync, because with O_DSYNC they are one call. The CPU time is that of this process,
without kernel threads. `sync_file_range` is left out: it writes no metadata and does not flush the drive's cache, so
its data does not survive a power cut.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.line import LeftOut
from bench.load_raw import percentiles_ms
from bench.measure import MEGA, Plan
from bench.noise import Measured, medians_of

APPEND_BYTES = (200, 4 << 10, 64 << 10)
SYNCS_MIN = 20
SYNCS_MAX = 1000
ROOM_BYTES_MAX = 32 << 20
"""The most bytes of one slice, for which a prepared file has room."""

IN_MEMORY = frozenset({"tmpfs", "ramfs"})


class Way(StrEnum):
    GROWING = "appended, fdatasync"
    DSYNC = "appended, O_DSYNC"
    RESERVED = "reserved, fdatasync"
    OVERWRITTEN = "over zeros, fdatasync"


def measure_syncs(plan: Plan, folder: str | None = None) -> Iterator[tuple[int, Way, Measured]]:
    """Size of an append, method and figures; all methods of one size in sequence."""
    if not hasattr(os, "posix_fallocate") or not hasattr(os, "O_DSYNC"):
        raise LeftOut("this system cannot reserve blocks, or has no O_DSYNC")
    runs = [(size, way) for size in APPEND_BYTES for way in Way]
    slices: list[list[Measured]] = [[] for _ in runs]
    # Files are removed at the end: some systems discard freed blocks at once.
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=folder) as own:
        if (kind := file_system_of(own)) in IN_MEMORY:
            raise LeftOut(f"{own} is {kind}, which no sync makes safe; TMPDIR names another folder")
        places = list(range(len(runs)))
        # All are prepared first: drives are slow for a while after many writes.
        for turn in range(plan.slices):
            for place in places:
                _make_ready(_path(own, place, turn), *runs[place])
        for turn in range(plan.slices):
            for place in places if turn % 2 == 0 else reversed(places):
                slices[place].append(_slice(_path(own, place, turn), *runs[place], plan.slice_seconds / 3))
    for (size, way), found in zip(runs, slices, strict=True):
        yield size, way, medians_of(found)


def file_system_of(path: str) -> str:
    """The file system of a path: ext4, xfs, …"""
    real = Path(path).resolve()
    mounts = [(each.mountpoint, each.fstype) for each in psutil.disk_partitions(all=True)]
    # A later mount on the same folder hides the earlier.
    _, _, kind = max(
        (len(point), number, kind) for number, (point, kind) in enumerate(mounts) if real.is_relative_to(point)
    )
    return str(kind)


def _path(folder: str, place: int, turn: int) -> Path:
    return Path(folder, f"{place}-{turn}")


def _syncs_max(size: int) -> int:
    return min(SYNCS_MAX, ROOM_BYTES_MAX // size)


def _make_ready(path: Path, size: int, way: Way) -> None:
    """Prepare a file in which only the data to be written remains to be synced."""
    room = size * _syncs_max(size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if way is Way.RESERVED:
            os.posix_fallocate(descriptor, 0, room)
        elif way is Way.OVERWRITTEN:
            os.pwrite(descriptor, bytes(room), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _slice(path: Path, size: int, way: Way, seconds: float) -> Measured:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_DSYNC if way is Way.DSYNC else 0))
    try:
        waits: list[int] = []
        block, position, syncs_max = b"v" * size, 0, _syncs_max(size)
        spent, began = time.process_time(), time.perf_counter()
        while len(waits) < syncs_max and (time.perf_counter() - began < seconds or len(waits) < SYNCS_MIN):
            at = time.perf_counter_ns()
            os.pwrite(descriptor, block, position)
            if way is not Way.DSYNC:
                os.fdatasync(descriptor)
            waits.append(time.perf_counter_ns() - at)
            position += size
        took, spent = time.perf_counter() - began, time.process_time() - spent
    finally:
        os.close(descriptor)
    return {
        "seconds": took,
        "syncs_per_s": len(waits) / took,
        "us_per_request": spent / len(waits) * MEGA,
        **percentiles_ms(waits),
    }
