"""A data folder that is being restored from a backup: until that has ended no node may start in it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from millpond.base.ports import Disk
from millpond.broker.data_folder.election_state import STATE_FILE, DamagedState, read_election, write_election
from millpond.broker.data_folder.identity import read_identity, write_identity
from millpond.metadata.partition import METADATA_PARTITION
from millpond.quorum.ports import Election

RESTORE_FILE: Final = "restore.running"


def mark_restored(disk: Disk, folder: str, directory_id: UUID) -> None:
    """The node of this folder, one of several, has no vote until it has caught up with a leader the others elected.

    The folder gets this directory id: the one that was backed up may still be in use. Waits for the disk.
    """
    identity = read_identity(disk, folder)
    if identity is not None:
        write_identity(disk, folder, identity.as_copy(directory_id))
    path = f"{folder}/{METADATA_PARTITION.folder}/{STATE_FILE}"
    try:
        known = read_election(disk, path) or Election()
    except DamagedState:
        known = Election()
    write_election(disk, path, Election(known.epoch, is_new=True, is_restored=True))
