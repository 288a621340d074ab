"""Rewriting bytes that are in the page cache but, after a failed sync, may not be on the disk.

The kernel counts such pages as clean: they can be read, no later sync writes them, and a power cut loses them. So
before they count again they are copied to new files, which are synced as usual.
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
    """Mark the folder for its next opening, if it still exists. Safe on any thread; OSError if the mark cannot be
    written."""
    disk.open(f"{folder}/{FAILED_SYNC_FILE}", create=True).close()


def mark_loss(disk: Disk, folder: str, error: OSError) -> None:
    """Try to mark the folder on the thread whose sync failed. Running out of descriptors loses nothing."""
    if error.errno not in NO_DESCRIPTOR:
        with contextlib.suppress(OSError):
            mark_failed_sync(disk, folder)


def mark_failed_sync_without_files(disk: Disk, folder: str) -> None:
    """The same when no file can be opened: make a folder instead."""
    disk.make_folder(f"{folder}/{FAILED_SYNC_FILE}")


def rewrite(disk: Disk, folder: str, names: Sequence[str], recovery_point: int) -> None:
    """Rewrite every segment from the recovery point on, and the topic id. Indexes are removed and rebuilt from the
    log. Waits for the disk.

    OSError leaves the mark in the folder: the next opening tries again.
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
        # It may be the file whose sync failed: a log without a topic id would count as a stray.
        _copy(disk, f"{folder}/{METADATA_FILE}")
    # The mark may go only once the copies are durable.
    disk.sync_folder(folder)
    remove_mark(disk, folder)
    disk.sync_folder(folder)


def remove_mark(disk: Disk, folder: str) -> None:
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
