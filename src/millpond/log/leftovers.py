"""What a crash left half done in a partition's folder is finished or undone here, before anything else is read.

A compacted segment travels `.cleaned` -> `.swap` -> live. Until its log file is called `.swap` it is worthless and is
removed; from then on it is the truth for the offsets that it covers, and the segments that it replaces go.
"""

from __future__ import annotations

from millpond.base.ports import Disk
from millpond.log.names import (
    CLEANED,
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TEMPORARY,
    offset_name,
    read_offset_name,
)
from millpond.log.scan import SCAN_BYTES, headers


def has_leftovers(names: list[str]) -> bool:
    return any(name.endswith((DELETED, CLEANED, SWAP, TEMPORARY)) for name in names)


def swap_names(names: list[str]) -> list[str]:
    """What a compaction has written and not put in place, in the order in which it must go.

    Logs come first: without its log a recovery undoes a swap instead of finishing it. And the last of them first: a
    new segment may lack the end of a transaction whose records only the new ones before it have dropped.
    """
    return sorted((name for name in reversed(names) if name.endswith((CLEANED, SWAP))), key=_is_index)


def _is_index(name: str) -> bool:
    return LOG not in name


def remove_swaps(disk: Disk, folder: str) -> None:
    """What a compaction that was given up has left: a recovery would put it in place of what comes now."""
    left = swap_names(disk.list(folder))
    for name in left:
        _remove_if_there(disk, f"{folder}/{name}")
        if not _is_index(name):
            disk.sync_folder(folder)
    if left:
        disk.sync_folder(folder)


def settle(disk: Disk, folder: str, names: list[str]) -> set[int]:
    """Bring the folder to a state that a reader can trust; base offsets of segments whose indexes must be rebuilt."""
    rebuild: set[int] = set()
    swapped = (read_offset_name(name.removesuffix(SWAP)) for name in names if name.endswith(SWAP))
    for base in sorted({entry[0] for entry in swapped if entry}):
        for suffix in INDEX_SUFFIXES:
            # Which log an index belongs to cannot be told any more.
            _remove_if_there(disk, f"{folder}/{offset_name(base, suffix)}{SWAP}")
            _remove_if_there(disk, f"{folder}/{offset_name(base, suffix)}")
        log = offset_name(base, LOG)
        if log + SWAP in names and log not in names and log + DELETED not in names:
            # It was given up, and what it was to replace is gone since, with the log's beginning.
            disk.remove(f"{folder}/{log}{SWAP}")
            continue
        if log + SWAP in names:
            _finish_swap(disk, folder, base, names)
        rebuild.add(base)
    for name in names:
        if name.endswith((DELETED, CLEANED, TEMPORARY)):
            disk.remove(f"{folder}/{name}")
    disk.sync_folder(folder)
    return rebuild


def remove_indexes(disk: Disk, folder: str, names: list[str]) -> None:
    """Of all segments: they are made again."""
    for name in names:
        parts = read_offset_name(name)
        if parts is not None and parts[1] in INDEX_SUFFIXES:
            disk.remove(f"{folder}/{name}")


def _finish_swap(disk: Disk, folder: str, base: int, names: list[str]) -> None:
    swap_path = f"{folder}/{offset_name(base, LOG)}{SWAP}"
    file = disk.open(swap_path)
    try:
        end = base
        for _, header in headers(file, 0, file.size(), SCAN_BYTES):
            end = header.next_offset
    finally:
        file.close()
    replaced = sorted({parts[0] for name in names if (parts := read_offset_name(name)) and base < parts[0] < end})
    for other in replaced:
        for suffix in SEGMENT_SUFFIXES:
            _remove_if_there(disk, f"{folder}/{offset_name(other, suffix)}")
    # What the new one replaces must be gone for certain: once it has its name nobody looks for that.
    disk.sync_folder(folder)
    disk.rename(swap_path, f"{folder}/{offset_name(base, LOG)}")


def _remove_if_there(disk: Disk, path: str) -> None:
    if disk.exists(path):
        disk.remove(path)


def sync_if_there(disk: Disk, path: str) -> None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()
