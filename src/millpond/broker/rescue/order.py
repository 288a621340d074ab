"""The order of a rescue: decided once, then carried out in the folder of every survivor.

A folder keeps the order as a file while it is carried out, and its node does not start until that is done. After an
interruption the order is carried out again from the beginning, with the same result. The old metadata is kept.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.base.ports import Disk
from millpond.base.values import dataclass
from millpond.broker.data_folder.election_state import STATE_FILE, write_election
from millpond.broker.data_folder.identity import read_identity, write_identity
from millpond.broker.data_folder.rescue_marker import ORDER_FILE
from millpond.broker.quorum.snapshots import SnapshotFiles, encode_snapshot
from millpond.broker.quorum.voters import voter_of
from millpond.broker.replication.high_watermarks import FILE as HIGH_WATERMARKS_FILE
from millpond.broker.rescue.plan import Plan
from millpond.broker.rescue.survivor import METADATA_FOLDER, CannotRescue, Survivor
from millpond.log.checkpoints import DamagedCheckpoint, encode_metadata, encode_offsets, read_offsets
from millpond.log.names import METADATA_FILE, RECOVERY_FILE, START_FILE
from millpond.metadata.image import NO_DIRECTORY
from millpond.metadata.partition import METADATA_PARTITION, METADATA_TOPIC_ID
from millpond.quorum.messages import SnapshotId
from millpond.quorum.ports import Election

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Order:
    cluster_id: str
    rescues: int
    """The number of rescues of this cluster, including this one."""
    source: tuple[int, int, int]
    """The node whose metadata the new quorum continues with, and the last epoch and end offset of its log."""
    survivors: Mapping[int, UUID]
    """By node id: the directory ids."""
    lost: tuple[int, ...]
    voters: tuple[int, ...]
    epoch: int
    end_offset: int
    snapshot: bytes
    marks: Mapping[TopicPartition, int]
    """The new high watermarks of partitions, by topic id."""

    def encode(self) -> bytes:
        fields = {
            "version": VERSION,
            "clusterId": self.cluster_id,
            "rescues": self.rescues,
            "source": list(self.source),
            "survivors": {str(node_id): str(directory_id) for node_id, directory_id in self.survivors.items()},
            "lost": list(self.lost),
            "voters": list(self.voters),
            "epoch": self.epoch,
            "endOffset": self.end_offset,
            "marks": [[topic, index, offset] for (topic, index), offset in self.marks.items()],
            "crc": zlib.crc32(self.snapshot),
            "snapshot": b64encode(zlib.compress(self.snapshot)).decode(),
        }
        return json.dumps(fields, indent=1).encode()


def decode_order(data: bytes) -> Order:
    """Raises CannotRescue if the data is not a complete order."""
    try:
        fields = json.loads(data)
        if fields["version"] != VERSION:
            raise CannotRescue(f"the order has version {fields['version']}, which this program does not know")
        snapshot = zlib.decompress(b64decode(fields["snapshot"]))
        if zlib.crc32(snapshot) != fields["crc"]:
            raise CannotRescue("the order is damaged: copy it again")
        node_id, last_epoch, end_offset = map(int, fields["source"])
        return Order(
            cluster_id=str(fields["clusterId"]),
            rescues=int(fields["rescues"]),
            source=(node_id, last_epoch, end_offset),
            survivors={int(each): UUID(directory) for each, directory in fields["survivors"].items()},
            lost=tuple(map(int, fields["lost"])),
            voters=tuple(map(int, fields["voters"])),
            epoch=int(fields["epoch"]),
            end_offset=int(fields["endOffset"]),
            snapshot=snapshot,
            marks={TopicPartition(str(topic), int(index)): int(mark) for topic, index, mark in fields["marks"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError, Base64Error, zlib.error) as fault:
        raise CannotRescue(f"this is not the order of a rescue: {fault}") from fault


def order_of(plan: Plan, now_ms: int, *, names_voters: bool = True) -> Order:
    """The new log has the voters, whatever static list the nodes have: other nodes can become voters later.

    `names_voters` is false if no node is lost and the old log had no voters: then the new log has none either.
    """
    source = plan.source
    assert source.identity.cluster_id is not None
    voters = [voter for each in plan.voters if (voter := voter_of(plan.image, each)) is not None]
    assert voters, "survivors have registered"
    return Order(
        cluster_id=source.identity.cluster_id,
        rescues=plan.rescues,
        source=(source.node_id, *source.rank),
        survivors={
            each: _source_directory(plan) if each == source.node_id else plan.image.brokers[each].directory_id
            for each in plan.survivors
        },
        lost=plan.lost,
        voters=plan.voters,
        epoch=plan.epoch,
        end_offset=plan.end_offset,
        snapshot=encode_snapshot(plan.records(), now_ms, voters if names_voters else None),
        marks={TopicPartition(str(topic_id), index): offset for (topic_id, index), offset in plan.marks.items()},
    )


def _source_directory(plan: Plan) -> UUID:
    """A copy that never registered gets back the directory id in the metadata."""
    identity = plan.source.identity
    known = plan.image.brokers.get(identity.node_id)
    return (
        known.directory_id
        if known is not None and known.directory_id in identity.copied_from
        else identity.directory_id
    )


def check_order(order: Order, survivor: Survivor) -> None:
    """Raises CannotRescue, with what to do, if the order is not for this folder."""
    identity = survivor.identity
    if identity.cluster_id != order.cluster_id:
        raise CannotRescue(
            f"{survivor.folder} is of cluster {identity.cluster_id}, and the order is for {order.cluster_id}"
        )
    if survivor.node_id not in order.survivors:
        raise CannotRescue(
            f"the order does not count node {survivor.node_id} among the survivors: start it with an empty folder, "
            f"or write the order again with --survivor {survivor.node_id}"
        )
    if identity.rescues >= order.rescues:
        raise CannotRescue(f"{survivor.folder} has been through this rescue already: start the node")
    if identity.rescues < order.rescues - 1:
        raise CannotRescue(
            f"{survivor.folder} was left behind by an earlier rescue: start the node with an empty one"
        )
    if order.survivors[survivor.node_id] not in (identity.directory_id, *identity.copied_from, NO_DIRECTORY):
        raise CannotRescue(
            f"{survivor.folder} is not the folder that node {survivor.node_id} was known by: start the node with an "
            "empty one"
        )
    if survivor.rank > order.source[1:]:
        raise CannotRescue(
            f"{survivor.folder} knows more of the metadata than the folder that the order was made from (epoch "
            f"{survivor.last_epoch} to offset {survivor.end_offset}, there epoch {order.source[1]} to offset "
            f"{order.source[2]}): make the order from this folder"
        )


def kept_folder(order: Order) -> str:
    """The folder that keeps the old metadata. Its name cannot be that of a partition."""
    return f"metadata-before-rescue.{order.rescues}"


def begin(disk: Disk, survivor: Survivor, order: Order) -> None:
    """Write the order to the folder, which from then on can only join the new quorum; call `carry_out` next."""
    check_order(order, survivor)
    disk.replace(f"{survivor.folder}/{ORDER_FILE}", order.encode())


def carry_out(disk: Disk, folder: str, order: Order) -> None:
    """Carry out the order, whatever an interrupted attempt has left behind. Blocks on the disk."""
    metadata, kept = f"{folder}/{METADATA_FOLDER}", f"{folder}/{kept_folder(order)}"
    identity = read_identity(disk, folder)
    assert identity is not None, folder
    if not disk.exists(kept):
        disk.rename(metadata, kept)
    disk.make_folder(metadata)
    disk.sync_folder(folder)
    disk.replace(f"{metadata}/{METADATA_FILE}", encode_metadata(METADATA_TOPIC_ID))
    write_election(disk, f"{metadata}/{STATE_FILE}", Election(order.epoch))
    disk.replace(f"{folder}/{HIGH_WATERMARKS_FILE}", encode_offsets(_marks(disk, folder) | dict(order.marks)))
    for name in (RECOVERY_FILE, START_FILE):
        # These offsets belong to the old log: next to them the new one would look truncated.
        _forget_metadata(disk, f"{folder}/{name}")
    # An empty log continues after its newest snapshot.
    SnapshotFiles(disk, metadata).write(SnapshotId(order.end_offset, order.epoch), order.snapshot)
    directory_id = order.survivors[identity.node_id]
    if directory_id == NO_DIRECTORY:
        directory_id = identity.directory_id
    # The new metadata has this directory id, though a copy has another by now: the folder that it was copied from
    # belongs to the cluster before the rescue.
    rescued = replace(identity, directory_id=directory_id, copied_from=())
    write_identity(disk, folder, replace(rescued, rescues=order.rescues, mark=disk.mark(metadata)))
    disk.rename(f"{folder}/{ORDER_FILE}", f"{folder}/rescue.{order.rescues}.done")
    disk.sync_folder(folder)


def _forget_metadata(disk: Disk, path: str) -> None:
    # The next start ignores a damaged checkpoint anyway.
    with contextlib.suppress(DamagedCheckpoint):
        offsets = read_offsets(disk, path)
        if offsets.pop(METADATA_PARTITION, None) is not None:
            disk.replace(path, encode_offsets(offsets))


def _marks(disk: Disk, folder: str) -> dict[TopicPartition, int]:
    try:
        return read_offsets(disk, f"{folder}/{HIGH_WATERMARKS_FILE}")
    except DamagedCheckpoint:
        return {}
