"""Iterating over the batches of a log file: by headers alone, or with every byte checked."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Protocol, TypeVar

from millpond.base.errors import Refused, RemoteError
from millpond.base.ports import Disk, File
from millpond.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, check_batch, read_header

SCAN_BYTES = 1 << 20
PROBE_BYTES = 1 << 13
"""Usually enough for the batches between two index entries."""


Batches = TypeVar("Batches", bytes, memoryview)


class Readable(Protocol):
    """The part of a file that a scan needs."""

    def read_at(self, position: int, length: int) -> bytes: ...


class HeldBytes:
    """A small file that is in memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]


class Damaged(OSError):
    """No whole batch at `position` of the file: the disk returned something other than what was written."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"position {position}: {reason}")
        self.position = position
        self.reason = reason


def headers(file: Readable, position: int, end: int, chunk: int = PROBE_BYTES) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch from `position`, by its header alone."""
    data = b""
    data_start = position
    step = chunk
    while position < end:
        if position + HEADER_BYTES > data_start + len(data):
            data = file.read_at(position, min(step, end - position))
            data_start = position
            if len(data) < HEADER_BYTES:
                raise Damaged(position, f"{len(data)} bytes are not enough for a header")
        header = read_header(data, position - data_start)
        if header.magic != MAGIC or header.size < HEADER_BYTES or header.last_offset_delta < 0:
            raise Damaged(position, f"not a batch: magic {header.magic}, size {header.size}")
        if position + header.size > end:
            raise Damaged(position, f"a batch of {header.size} bytes with {end - position} left")
        yield position, header
        position += header.size
        # For a batch larger than one read, everything but its header would be read for nothing.
        step = chunk if header.size < chunk else min(chunk, PROBE_BYTES)


def checked(file: Readable, position: int, end: int, chunk: int = SCAN_BYTES) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch from `position`, with its CRC and counts checked."""
    for data_start, data, header_position, header in _batches_with_data(file, position, end, chunk):
        at = header_position - data_start
        try:
            check_batch(data, at, at + header.size, compacted=True)
        except (RemoteError, Refused) as fault:
            raise Damaged(header_position, str(fault)) from None
        yield header_position, header


def sound_end(disk: Disk, path: str, limit: int | None = None) -> tuple[int, Damaged | None]:
    """The end of the valid batches in a file, and the damage there.

    With a `limit` only whole batches within that many bytes count, and damage is not reported.
    """
    file = disk.open(path)
    end = 0
    try:
        for position, header in checked(file, 0, file.size()):
            if limit is not None and position + header.size > limit:
                break
            end = position + header.size
    except Damaged as damage:
        return end, damage
    finally:
        file.close()
    return end, None


def batches(file: File, position: int, end: int, chunk: int = SCAN_BYTES) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch from `position` with its bytes; CRCs are not checked."""
    for data_start, data, header_position, header in _batches_with_data(file, position, end, chunk):
        at = header_position - data_start
        yield header, memoryview(data)[at : at + header.size]


def _batches_with_data(
    file: Readable, position: int, end: int, chunk: int
) -> Iterator[tuple[int, bytes, int, BatchHeader]]:
    """(start of the data, data, position, header) of each batch; the data holds the whole batch."""
    data = b""
    data_start = position
    while position < end:
        at = position - data_start
        if at + HEADER_BYTES > len(data):
            data, data_start, at = file.read_at(position, min(chunk, end - position)), position, 0
            if len(data) < HEADER_BYTES:
                raise Damaged(position, f"{len(data)} bytes are not enough for a header")
        header = read_header(data, at)
        if header.magic != MAGIC or header.size < HEADER_BYTES:
            raise Damaged(position, f"not a batch: magic {header.magic}, size {header.size}")
        if header.size > end - position:
            raise Damaged(position, f"a batch of {header.size} bytes with {end - position} left")
        if at + header.size > len(data):
            data, data_start = file.read_at(position, min(max(chunk, header.size), end - position)), position
            if len(data) < header.size:
                raise Damaged(position, f"the file ends after {len(data)} of the batch's {header.size} bytes")
        yield data_start, data, position, header
        position += header.size


def copy_tail(disk: Disk, file: File, position: int, end: int, path: str) -> None:
    """Copy the bytes from `position` to `end` into a new file, and sync it."""
    if disk.free_bytes(path.rpartition("/")[0]) < end - position:
        # Trying would use up the last space in the meantime.
        raise OSError(errno.ENOSPC, f"no space for {end - position} bytes", path)
    copy = disk.open(path, create=True)
    try:
        copy.truncate(0)
        while position < end and (piece := file.read_at(position, min(SCAN_BYTES, end - position))):
            copy.append((piece,))
            position += len(piece)
        copy.sync()
    except OSError:
        # A partial copy would only waste space.
        with contextlib.suppress(OSError):
            disk.remove(path)
        raise
    finally:
        copy.close()


def whole_batches(data: Batches) -> Batches:
    """The data without the incomplete batch at its end."""
    whole = 0
    while whole + HEADER_BYTES <= len(data):
        size = read_header(data, whole).size
        if size < HEADER_BYTES or whole + size > len(data):
            break
        whole += size
    return data[:whole]
