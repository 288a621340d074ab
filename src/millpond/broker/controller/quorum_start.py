"""Creates this node's quorum replica from the metadata log and election state in its folder and the known nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.broker.data_folder.election_state import STATE_FILE, DamagedState, read_election
from millpond.broker.data_folder.identity import CannotStart
from millpond.broker.peers.peers import NodeAddresses, Peers
from millpond.broker.quorum.directories import VoterDirectories
from millpond.broker.quorum.host import QuorumHost, StartWorkers
from millpond.broker.quorum.log import MetadataLog
from millpond.broker.quorum.snapshots import SnapshotFiles
from millpond.broker.quorum.wire import voter_keys
from millpond.broker.requests.call import NODE_CLIENT_ID
from millpond.config.node import (
    CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS,
    CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
    NODE_ID,
    cluster_voters,
    contacts_of,
)
from millpond.log.recovery import LogDamaged
from millpond.metadata.image import NO_DIRECTORY
from millpond.quorum.messages import ReplicaKey
from millpond.quorum.patience import Timing
from millpond.quorum.ports import Election

if TYPE_CHECKING:
    from millpond.base.later import Later
    from millpond.base.ports import World
    from millpond.base.settings import Settings
    from millpond.broker.data_folder.own_folder import OwnFolder
    from millpond.broker.quorum.lease import LeaseClock
    from millpond.log.partition_log import PartitionLog
    from millpond.metadata.image import Image


def make_host(
    *,
    world: World,
    settings: Settings,
    folder: OwnFolder,
    log: PartitionLog,
    addresses: NodeAddresses,
    workers: StartWorkers,
    lease_clock: LeaseClock,
    write_checkpoint: Callable[[], Later[None]],
    on_step: Callable[[], None],
    after_crash: bool,
    image: Image,
    applied_offset: Callable[[], int],
) -> QuorumHost:
    """Create the replica without starting it. CannotStart if the folder cannot be used. Blocks on disk I/O."""
    node_id = settings[NODE_ID]
    client_id = f"{NODE_CLIENT_ID}{node_id}"
    contacts = contacts_of(folder.contacts)
    addresses.tell(contacts)
    node_ids = list(cluster_voters(settings)) or ([] if contacts else [node_id])
    snapshots = SnapshotFiles(world.disk, log.folder)
    metadata_log = MetadataLog(log, snapshots, world.clock, workers, write_checkpoint, tuple(node_ids))
    try:
        metadata_log.open_snapshots()
    except LogDamaged as fault:
        raise CannotStart(f"the metadata log cannot be read: {fault}") from fault
    addresses.voters = lambda: metadata_log.voters or ()
    election = _election(world, folder, metadata_log, node_id, after_crash=after_crash)
    voters = voter_keys(node_ids)
    if election is not None and election.voted is not None:
        # The vote was for that node, whatever the voter list was then.
        voted = next((voter for voter in voters if voter.node_id == election.voted.node_id), election.voted)
        election = replace(election, voted=voted)
    if election is None:
        # An empty folder may belong to a new cluster or to a wiped voter. A folder with metadata but without the
        # election state file has lost its votes.
        is_empty = metadata_log.end_offset == 0
        known = node_ids if metadata_log.voters is None else [each.node_id for each in metadata_log.voters]
        election = Election(is_new=not folder.is_sole if is_empty else known != [node_id])
    # A node that is not a voter is an observer.
    observer = ReplicaKey(node_id, voters[0].directory_id if voters else NO_DIRECTORY)
    return QuorumHost(
        world=world,
        log=metadata_log,
        workers=workers,
        lease_clock=lease_clock,
        state_path=f"{log.folder}/{STATE_FILE}",
        election=election,
        me=next((voter for voter in voters if voter.node_id == node_id), observer),
        founders=voters,
        contacts=[each.node_id for each in contacts],
        timing=Timing(
            election_ms=settings[CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS],
            fetch_ms=settings[CONTROLLER_QUORUM_FETCH_TIMEOUT_MS],
            # Several fetches must fit into the timeout before a follower gives up on the leader.
            fetch_wait_ms=min(500, settings[CONTROLLER_QUORUM_FETCH_TIMEOUT_MS] // 3),
        ),
        # Separate connections: fetches are pending at the leader and must not delay votes.
        # A leader takes a second fetch on a connection as proof that its response to the first has arrived.
        peers=(Peers(world, client_id, addresses), Peers(world, client_id, addresses, is_exclusive=True)),
        cluster_name=lambda: folder.known_name,
        on_step=on_step,
        addresses=addresses,
        directories=VoterDirectories(
            metadata_log, image, applied_offset, lambda: _is_unregistered_copy(folder, image, node_id)
        ),
        directory_id=lambda: folder.directory_id,
    )


def _is_unregistered_copy(folder: OwnFolder, image: Image, node_id: int) -> bool:
    broker = image.brokers.get(node_id)
    return broker is not None and broker.directory_id in folder.copied_from


def _election(
    world: World, folder: OwnFolder, log: MetadataLog, node_id: int, *, after_crash: bool
) -> Election | None:
    """The election state of this node; None in an empty folder. For a copied folder, only what can be trusted."""
    metadata_folder = log.log.folder
    try:
        folder.mark(
            metadata_folder,
            is_alone=lambda: _is_all_there_is(world, folder, log, node_id),
            was_clean=not after_crash,
        )
        return read_election(world.disk, f"{metadata_folder}/{STATE_FILE}")
    except DamagedState as fault:
        raise CannotStart(
            f"{fault}. It is unknown how this node has voted: restore the file, or delete the folder"
        ) from fault


def _is_all_there_is(world: World, folder: OwnFolder, log: MetadataLog, node_id: int) -> bool:
    """Whether this node is the whole cluster. Blocks on disk I/O."""
    if log.voters is None:
        return folder.is_sole
    if any(voter.node_id != node_id for voter in log.voters):
        return False
    # Imported late: this path is rare, and a node starts faster without it.
    from millpond.broker.rescue.survivor import CannotRescue, read_metadata

    try:
        return not read_metadata(world.disk, log.log.folder).image.brokers.keys() - {node_id}
    except CannotRescue:
        return False
