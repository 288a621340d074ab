"""A data folder that is being restored from a backup: until that has ended no node may start in it."""

from __future__ import annotations

from typing import Final

from millpond.base.ports import Disk
from millpond.broker.quorum.state import STATE_FILE, DamagedState, read_election, write_election
from millpond.broker.quorum.wire import METADATA_PARTITION
from millpond.quorum.ports import Election

RESTORE_FILE: Final = "restore.running"


def mark_restored(disk: Disk, folder: str) -> None:
    """The node of this folder, one of several, has no vote until it has caught up with a leader the others elected.

    Waits for the disk.
    """
    path = f"{folder}/{METADATA_PARTITION.folder}/{STATE_FILE}"
    try:
        known = read_election(disk, path) or Election()
    except DamagedState:
        known = Election()
    write_election(disk, path, Election(known.epoch, is_new=True, is_restored=True))
