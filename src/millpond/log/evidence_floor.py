"""How far compaction has dropped evidence: tombstones, and the markers that end transactions.

A replica that was away since before the floor may hold records whose tombstone or marker no longer exists here. If it
resumed at its own log end, deleted keys would return and transactions would stay open forever, so it must copy the
log from the start. The floor is one above the highest offset whose evidence this log, or the log it was copied from,
has dropped. It never falls.

On disk the floor is the name of an empty file. Creating the file raises the floor, and a lower one that is left over
does no harm. A log without such a file was written before floors existed.
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.base.ports import Disk
from millpond.log.names import FLOOR, offset_name, read_offset_name
from millpond.wire.batch import BatchHeader


def write_floor(disk: Disk, folder: str, offset: int) -> None:
    """Record the floor. It survives a power cut once the folder has been synced."""
    disk.open(f"{folder}/{offset_name(offset, FLOOR)}", create=True).close()


def keep_floor(disk: Disk, folder: str, offset: int) -> None:
    """Record the floor for good, and remove lower ones. Waits for the disk."""
    write_floor(disk, folder, offset)
    disk.sync_folder(folder)
    for lower in floors(disk.list(folder)):
        if lower < offset:
            disk.remove(f"{folder}/{offset_name(lower, FLOOR)}")


def floors(names: Iterable[str]) -> list[int]:
    """All floors among a folder's file names, lowest first."""
    entries = map(read_offset_name, names)
    return sorted(entry[0] for entry in entries if entry is not None and entry[1] == FLOOR)


def has_hole(header: BatchHeader, expected_offset: int) -> bool:
    """Whether compaction has removed a record of this batch, or one between `expected_offset` and it."""
    return header.base_offset > expected_offset or header.record_count <= header.last_offset_delta
