"""A data folder that is a copy: somebody has put back an old one, or moved it to another disk.

Nobody can tell the two apart from inside. What the node has promised since the copy was made it does not know, nor
which records it had: it votes as one that may have forgotten everything, until it has caught up, and counts as one
that has lost records, unless the copy was made of a folder that was closed in order: then its epochs tell.

The original may still run. The copy therefore gets a directory id of its own before it sends its first request: it
counts as the voter only once the metadata name that id (decision 32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from millpond.base.ports import Disk
from millpond.broker.data_folder.election_state import STATE_FILE, read_election, write_election
from millpond.broker.data_folder.identity import Identity, write_identity
from millpond.broker.data_folder.incarnation import LOST, LastIncarnation, write_last_incarnation
from millpond.quorum.ports import Election


def mark_folder(
    disk: Disk,
    folder: str,
    metadata_folder: str,
    identity: Identity,
    boot_id: str,
    *,
    is_alone: Callable[[], bool],
    was_clean: bool,
    new_directory_id: Callable[[], UUID],
) -> tuple[Identity, bool]:
    """The identity with the mark of the folder as it is now, and whether it is a copy. Waits for the disk.

    Who `is_alone` has made its promises to nobody: there the copy is the node. What a copy must not claim is written
    before the new mark: a start that dies in the middle begins again. A restored folder is a copy on every disk,
    until its voter has caught up.
    """
    mark = disk.mark(metadata_folder)
    state_path = f"{metadata_folder}/{STATE_FILE}"
    known = read_election(disk, state_path) or Election()
    if mark == identity.mark or mark is None:
        return identity, known.is_restored
    is_copy = known.is_restored or (identity.mark is not None and not is_alone())
    if is_copy:
        # Not whom it voted for either: it may have voted for others since.
        write_election(disk, state_path, Election(known.epoch, is_new=True, is_restored=known.is_restored))
        if not was_clean:
            write_last_incarnation(disk, folder, LastIncarnation(LOST, boot_id))
        identity = identity.as_copy(new_directory_id())
    marked = replace(identity, mark=mark)
    write_identity(disk, folder, marked)
    return marked, is_copy
