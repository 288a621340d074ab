"""Producer snapshots in Kafka's format: the state of all producers just before one offset of the log.

    0 version (1)   2 CRC-32C of the rest   6 count   then 46 bytes per producer

A snapshot is written without a sync: its CRC detects a torn one, and the log can recreate it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable

from millpond.base.ports import Disk
from millpond.log.names import SNAPSHOT, offset_name, read_offset_name
from millpond.log.producers import NO_SEQUENCE, ProducerEntry, ProducerStates, Span
from millpond.wire.batch import SEQUENCE_COUNT
from millpond.wire.checksum import crc32c

VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class DamagedSnapshot(Exception):
    """A snapshot that cannot be parsed; an older one and the log hold the same state."""


def encode_snapshot(states: ProducerStates) -> bytes:
    rows = []
    for producer_id, entry in sorted(states.entries.items()):
        last = entry.spans[-1] if entry.spans else None
        rows.append(
            _ENTRY.pack(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_offset,
                last.last_offset - last.first_offset if last else 0,
                # The time of the last write, not of the record: expiry must not depend on a producer's clock.
                entry.active_ms,
                entry.coordinator_epoch,
                -1 if entry.transaction_start is None else entry.transaction_start,
            )
        )
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> ProducerStates:
    if len(data) < _HEAD.size:
        raise DamagedSnapshot(f"{len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION or crc32c(data[_CRC_FROM:]) != crc or len(data) != _HEAD.size + count * _ENTRY.size:
        raise DamagedSnapshot(f"version {version}, {count} entries in {len(data)} bytes")
    entries: dict[int, ProducerEntry] = {}
    for row in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, active_ms, coordinator_epoch, transaction_start = row
        entry = entries[producer_id] = ProducerEntry(epoch)
        entry.active_ms = active_ms
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_start = transaction_start if transaction_start >= 0 else None
        if last_sequence != NO_SEQUENCE:
            first = (last_sequence - delta) % SEQUENCE_COUNT
            entry.spans.append(Span(first, last_sequence, last_offset - delta, last_offset, active_ms))
    states = ProducerStates()
    states.restore(entries)
    return states


class Snapshots:
    __slots__ = ("_disk", "_folder", "offsets")

    def __init__(self, disk: Disk, folder: str, names: Iterable[str]) -> None:
        self._disk = disk
        self._folder = folder
        files = [read_offset_name(name) for name in names]
        self.offsets: list[int] = sorted(entry[0] for entry in files if entry and entry[1] == SNAPSHOT)

    def write(self, offset: int, states: ProducerStates) -> None:
        """Store the state before `offset`."""
        self.write_encoded(offset, encode_snapshot(states))

    def write_encoded(self, offset: int, data: bytes) -> None:
        path = self._path(offset)
        file = self._disk.open(path, create=True)
        try:
            if file.size():
                file.truncate(0)
            file.append((data,))
        except OSError:
            # It is not in the list, and would only waste space.
            with contextlib.suppress(OSError):
                self._disk.remove(path)
            raise
        finally:
            file.close()
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()

    def newest(self, upto: int) -> tuple[int, ProducerStates] | None:
        """The newest valid snapshot at or before offset `upto`. Removes damaged ones."""
        for offset in reversed([each for each in self.offsets if each <= upto]):
            try:
                return offset, decode_snapshot(self._disk.read(self._path(offset)))
            except (DamagedSnapshot, FileNotFoundError):
                self.drop(offset)
        return None

    def drop(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(self._path(offset))

    def drop_after(self, offset: int) -> None:
        """Remove snapshots after `offset`, where the log was truncated."""
        for each in [each for each in self.offsets if each > offset]:
            self.drop(each)

    def drop_before(self, offset: int) -> None:
        """Remove all but the newest of those before `offset`."""
        for each in [each for each in self.offsets if each < offset][:-1]:
            self.drop(each)

    def drop_below(self, offset: int) -> None:
        """Remove all before `offset`. Compaction or retention has removed the markers that followed them, so
        transactions they list as open would never end."""
        for each in [each for each in self.offsets if each < offset]:
            self.drop(each)

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{offset_name(offset, SNAPSHOT)}"
