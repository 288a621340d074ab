"""Copied data folders: an operator has restored an old one, or moved it to another disk.

A node cannot tell these two cases apart. It does not know its votes since the copy was made, nor which records it
had. Until it has caught up, it votes like a node without any election state; and it counts as a broker that has lost
records, unless the copied folder had been shut down cleanly: then its epochs are reliable.

The original may still be running. So the copy gets its own directory ID before it sends its first request, and counts
as the voter only once the metadata has that ID (decision 32).
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
    """The identity with the folder's current mark, and whether the folder is a copy. Blocks on disk I/O.

    A node that `is_alone` has voted for no other node, so there the copy simply is the node. The reset state is
    written before the new mark, so that a start that crashes in between starts over. A restored folder is a copy on
    every disk until its voter has caught up.
    """
    mark = disk.mark(metadata_folder)
    state_path = f"{metadata_folder}/{STATE_FILE}"
    known = read_election(disk, state_path) or Election()
    if mark == identity.mark or mark is None:
        return identity, known.is_restored
    is_copy = known.is_restored or (identity.mark is not None and not is_alone())
    if is_copy:
        # Drop the vote, too: the original may have voted for another node since.
        write_election(disk, state_path, Election(known.epoch, is_new=True, is_restored=known.is_restored))
        if not was_clean:
            write_last_incarnation(disk, folder, LastIncarnation(LOST, boot_id))
        identity = identity.as_copy(new_directory_id())
    marked = replace(identity, mark=mark)
    write_identity(disk, folder, marked)
    return marked, is_copy
