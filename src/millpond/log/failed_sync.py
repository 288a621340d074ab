"""Bytes that the page cache has and the disk may not have, after a failed sync.

The kernel counts such pages as clean: they read well, no later sync writes them, and a power cut takes them. So
before any of them may count again they are copied to fresh files, which are synced as if they had just been written.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from itertools import zip_longest

from millpond.base.ports import Disk
from millpond.log.names import (
    FAILED_SYNC_FILE,
    INDEX_SUFFIXES,
    LOG,
    METADATA_FILE,
    TEMPORARY,
    offset_name,
    read_offset_name,
)
from millpond.log.scan import copy_tail

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def mark_failed_sync(disk: Disk, folder: str) -> None:
    """Tell the next opening of this folder, if it is still there. On any thread; OSError if it cannot be told now."""
    disk.open(f"{folder}/{FAILED_SYNC_FILE}", create=True).close()


def mark_loss(disk: Disk, folder: str, error: OSError) -> None:
    """Tell it as well as that can be, on the thread on which a sync has failed. A want of descriptors is no loss."""
    if error.errno not in NO_DESCRIPTOR:
        with contextlib.suppress(OSError):
            mark_failed_sync(disk, folder)


def mark_failed_sync_without_files(disk: Disk, folder: str) -> None:
    """The same when no more files can be opened: a folder does as well. The folder has to be there."""
    disk.make_folder(f"{folder}/{FAILED_SYNC_FILE}")


def rewrite(disk: Disk, folder: str, names: Sequence[str], recovery_point: int) -> None:
    """Write every segment from the recovery point on anew, and whose log it is. Indexes go, as the log tells them.
    Waits for the disk.

    OSError leaves the mark in the folder: the next opening does it again.
    """
    files = (read_offset_name(name) for name in names)
    bases = sorted(entry[0] for entry in files if entry and entry[1] == LOG)
    for base, following in zip_longest(bases, bases[1:]):
        if following is None or following >= recovery_point:
            _copy(disk, f"{folder}/{offset_name(base, LOG)}")
            for suffix in INDEX_SUFFIXES:
                if offset_name(base, suffix) in names:
                    disk.remove(f"{folder}/{offset_name(base, suffix)}")
    if METADATA_FILE in names:
        # It may be the one that failed: a log that does not say whose it is counts as a stranger's.
        _copy(disk, f"{folder}/{METADATA_FILE}")
    # Only when the copies are there for certain may the mark go.
    disk.sync_folder(folder)
    remove_mark(disk, folder)
    disk.sync_folder(folder)


def remove_mark(disk: Disk, folder: str) -> None:
    """What it was made for is on the disk."""
    path = f"{folder}/{FAILED_SYNC_FILE}"
    try:
        disk.remove(path)
    except (IsADirectoryError, PermissionError):
        disk.remove_folder(path)


def _copy(disk: Disk, path: str) -> None:
    old = disk.open(path)
    try:
        copy_tail(disk, old, 0, old.size(), path + TEMPORARY)
    finally:
        old.close()
    disk.rename(path + TEMPORARY, path)
