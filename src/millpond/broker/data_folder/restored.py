"""Data folders that are being restored from a backup: no node may start in one until that is complete."""

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
    """Take away the vote of this folder's node, one of several, until it has caught up with a leader the others
    elect.

    The folder gets this directory ID: the one that was backed up may still be in use. Blocks on disk I/O.
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
