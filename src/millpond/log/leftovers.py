"""Completing or undoing what a crash interrupted in a partition's folder, before anything else is read.

A compacted segment goes from `.cleaned` to `.swap` to live. Until its log file is named `.swap` it is worthless and
is removed; from then on it is authoritative for its offsets, and the segments it replaces are removed.
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
    """Files that a compaction wrote and did not swap in, in the order in which they must be removed.

    Logs come first: without its log, recovery undoes a swap instead of completing it. Of the logs the last goes
    first: a new segment may lack a marker whose records only the new segments before it have dropped.
    """
    return sorted((name for name in reversed(names) if name.endswith((CLEANED, SWAP))), key=_is_index)


def _is_index(name: str) -> bool:
    return LOG not in name


def remove_swaps(disk: Disk, folder: str) -> None:
    """Remove what an abandoned compaction left: recovery would swap it in over newer segments."""
    left = swap_names(disk.list(folder))
    for name in left:
        _remove_if_there(disk, f"{folder}/{name}")
        if not _is_index(name):
            disk.sync_folder(folder)
    if left:
        disk.sync_folder(folder)


def settle(disk: Disk, folder: str, names: list[str]) -> set[int]:
    """Bring the folder to a consistent state; base offsets of segments whose indexes must be rebuilt."""
    rebuild: set[int] = set()
    swapped = (read_offset_name(name.removesuffix(SWAP)) for name in names if name.endswith(SWAP))
    for base in sorted({entry[0] for entry in swapped if entry}):
        for suffix in INDEX_SUFFIXES:
            # An index without its log cannot be attributed.
            _remove_if_there(disk, f"{folder}/{offset_name(base, suffix)}{SWAP}")
            _remove_if_there(disk, f"{folder}/{offset_name(base, suffix)}")
        log = offset_name(base, LOG)
        if log + SWAP in names and log not in names and log + DELETED not in names:
            # It was abandoned, and what it was to replace has since been deleted from the front.
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
    """Remove the indexes of all segments, to be rebuilt."""
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
    # The removal must be durable: once the new segment has its name, nothing looks for the old ones.
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
