"""Reads the data folder of a stopped node: its identity, metadata and replicas.

Nothing is changed, and data with a wrong checksum is ignored. The whole metadata log counts, including records that
may not have been committed: an election, too, prefers the node with the longest log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Disk
from millpond.base.values import dataclass
from millpond.broker.data_folder.election_state import STATE_FILE, DamagedState, read_election
from millpond.broker.data_folder.identity import CannotStart, Identity, read_identity
from millpond.broker.data_folder.incarnation import read_last_incarnation
from millpond.broker.quorum.snapshots import SnapshotFiles, decode_snapshot
from millpond.broker.quorum.voters import named_voters
from millpond.broker.replication.high_watermarks import FILE as HIGH_WATERMARKS_FILE
from millpond.log.checkpoints import DamagedCheckpoint, decode_metadata, read_offsets
from millpond.log.names import LOG, METADATA_FILE, offset_name, read_offset_name
from millpond.log.scan import Damaged, batches, headers, sound_end
from millpond.metadata.codec import decode_records
from millpond.metadata.features import METADATA_VERSION, SUPPORTED
from millpond.metadata.image import Image
from millpond.metadata.partition import METADATA_PARTITION, METADATA_TOPIC_ID
from millpond.quorum.ports import Election
from millpond.quorum.voters import Voter
from millpond.wire import messages
from millpond.wire import records as wire_records
from millpond.wire.batch import CONTROL, BatchHeader

METADATA_FOLDER: Final = METADATA_PARTITION.folder
_LEADER_CHANGE_KEY: Final = b"\0\0\0\2"


class CannotRescue(Exception):
    """The message has the reason and what to do. Nothing was changed."""


class NoMetadata(CannotRescue):
    """The node of this folder has not received its cluster's metadata yet."""


class Held(NamedTuple):
    """How much of a partition a survivor has."""

    end_offset: int
    last_epoch: int
    """The leader epoch of its last batch; -1 for none."""
    last_ms: int
    """The time of its last batch; -1 for none."""
    high_watermark: int
    """The high watermark as of its last checkpoint; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """The data folder of one surviving node."""

    folder: str
    identity: Identity
    election: Election
    image: Image
    """The result of replaying its whole metadata log."""
    end_offset: int
    """The end offset of the metadata log."""
    last_epoch: int
    committed_offset: int
    """The metadata log is known to be committed up to here; more of it may be."""
    voters: tuple[int, ...]
    replicas: Mapping[tuple[UUID, int], Held]
    notes: tuple[str, ...] = ()
    """Messages for the operator."""
    names_voters: bool = False
    """Whether the log has the voters; otherwise they come from the static list in the nodes' settings."""

    @property
    def node_id(self) -> int:
        return self.identity.node_id

    @property
    def rank(self) -> tuple[int, int]:
        """The survivor with the highest rank has the most recent metadata."""
        return self.last_epoch, self.end_offset


def read_survivor(disk: Disk, folder: str) -> Survivor:
    """Raises CannotRescue if the folder does not belong to a cluster node, or its metadata is unreadable."""
    try:
        identity = read_identity(disk, folder)
    except (OSError, CannotStart) as fault:
        raise CannotRescue(f"{folder} cannot be read: {fault}") from fault
    if identity is None or identity.cluster_id is None:
        raise NoMetadata(f"{folder} is not the data folder of a node that was one of a cluster")
    metadata = read_metadata(disk, f"{folder}/{METADATA_FOLDER}")
    marks, notes = _high_watermarks(disk, folder)
    known = [
        metadata.snapshot_offset,
        marks.get(TopicPartition(str(METADATA_TOPIC_ID), 0), 0),
        # A broker epoch is the offset of its registration, and is sent to the broker once that is committed.
        read_last_incarnation(disk, folder).epoch + 1,
    ]
    return Survivor(
        folder=folder,
        identity=identity,
        election=_election(disk, folder),
        image=metadata.image,
        end_offset=metadata.end_offset,
        last_epoch=metadata.last_epoch,
        committed_offset=min(max(known), metadata.end_offset),
        voters=metadata.voters or tuple(sorted(metadata.image.brokers)),
        names_voters=metadata.are_named,
        replicas=dict(_replicas(disk, folder, identity.node_id, metadata.image, marks)),
        notes=(*metadata.notes, *notes),
    )


def _election(disk: Disk, folder: str) -> Election:
    try:
        election = read_election(disk, f"{folder}/{METADATA_FOLDER}/{STATE_FILE}")
    except DamagedState:
        # Its vote does not count in the new quorum.
        election = None
    return election or Election()


def _high_watermarks(disk: Disk, folder: str) -> tuple[dict[TopicPartition, int], list[str]]:
    try:
        return read_offsets(disk, f"{folder}/{HIGH_WATERMARKS_FILE}"), []
    except DamagedCheckpoint as damage:
        return {}, [f"{folder}/{HIGH_WATERMARKS_FILE}: {damage}; how much was committed is not known"]


# The metadata.


@dataclass(slots=True)
class Metadata:
    image: Image
    end_offset: int
    last_epoch: int
    snapshot_offset: int
    voters: tuple[int, ...]
    are_named: bool
    """Whether the log has voter records; otherwise the last leader's LeaderChange record lists its static voters."""
    notes: list[str]


def read_metadata(disk: Disk, folder: str) -> Metadata:
    """Replay the newest snapshot and the log after it, committed or not."""
    try:
        read = _newest_snapshot(disk, folder)
        for header, data in _all_batches(disk, folder, read):
            _take(read, header, data)
    except (OSError, MalformedMessage) as fault:
        raise CannotRescue(f"the metadata in {folder} cannot be read: {fault}") from fault
    if not read.end_offset:
        raise NoMetadata(f"{folder} holds no metadata: this node had heard nothing of its cluster, or was wiped")
    return read


def _newest_snapshot(disk: Disk, folder: str) -> Metadata:
    files = SnapshotFiles(disk, folder)
    notes = []
    for snapshot in reversed(files.ids):
        image = Image()
        try:
            data = files.read_whole(snapshot)
            for record in decode_snapshot(data):
                image.replay(record)
            named = named_voters(data)
        except MalformedMessage as fault:
            notes.append(f"{files.path(snapshot)}: {fault}; an older one is used")
            continue
        voters = _ids(named[-1][1]) if named else ()
        return Metadata(image, snapshot.end_offset, snapshot.epoch, snapshot.end_offset, voters, bool(named), notes)
    return Metadata(Image(), 0, 0, 0, (), False, notes)


def _ids(voters: tuple[Voter, ...]) -> tuple[int, ...]:
    return tuple(sorted(each.node_id for each in voters))


def _all_batches(disk: Disk, folder: str, read: Metadata) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches after the end of `read`, up to the first that is incomplete."""
    bases = [base for base, suffix in _numbered(disk, folder) if suffix == LOG]
    if bases and bases[0] > read.end_offset:
        raise MalformedMessage(f"what came before offset {bases[0]} is missing")
    for base in bases:
        path = f"{folder}/{offset_name(base, LOG)}"
        file = disk.open(path)
        try:
            end, damage = sound_end(disk, path)
            for header, data in batches(file, 0, end):
                if header.next_offset <= read.end_offset:
                    continue
                if header.base_offset != read.end_offset:
                    read.notes.append(f"{path}: what came before offset {header.base_offset} is missing")
                    return
                yield header, bytes(data)
            if damage is not None:
                read.notes.append(f"{path}: {damage}; what follows is not used")
                return
        finally:
            file.close()


def _take(read: Metadata, header: BatchHeader, data: bytes) -> None:
    entries = wire_records.decode_batch(data, 0)
    if header.attributes & CONTROL:
        for _, voters in named_voters(data):
            read.voters, read.are_named = _ids(voters), True
        for entry in entries:
            if entry.key == _LEADER_CHANGE_KEY and not read.are_named:
                change, _ = messages.LeaderChangeMessage.decode(memoryview(entry.value or b""), 0)
                read.voters = tuple(sorted(each.voter_id for each in change.voters))
    else:
        # One log entry may hold several metadata records.
        newest = SUPPORTED[METADATA_VERSION].newest
        read.image.replay_all([record for entry in entries for record in decode_records(entry.value or b"", newest)])
    read.end_offset = header.next_offset
    read.last_epoch = header.leader_epoch


# Partitions.


def _replicas(
    disk: Disk, folder: str, node_id: int, image: Image, marks: Mapping[TopicPartition, int]
) -> Iterator[tuple[tuple[UUID, int], Held]]:
    present = set(disk.list(folder))
    for topic, index, _ in image.partitions_of(node_id):
        name = TopicPartition(topic.name, index).folder
        if name not in present:
            continue
        path = f"{folder}/{name}"
        try:
            if decode_metadata(disk.read(f"{path}/{METADATA_FILE}")) != topic.id:
                continue
            mark = marks.get(TopicPartition(str(topic.id), index), 0)
            yield (topic.id, index), _held(disk, path, mark)
        except (OSError, DamagedCheckpoint):
            # An unreadable replica does not count. The node reports the reason when it starts.
            continue


def _held(disk: Disk, folder: str, mark: int) -> Held:
    """Read the batch headers of the last segment, or of the one before if that is empty. A torn tail is ignored."""
    bases = [base for base, suffix in _numbered(disk, folder) if suffix == LOG]
    for base in reversed(bases[-2:]):
        file = disk.open(f"{folder}/{offset_name(base, LOG)}")
        last: BatchHeader | None = None
        try:
            for _, header in headers(file, 0, file.size()):
                last = header
        except Damaged:
            pass
        finally:
            file.close()
        if last is not None:
            return Held(last.next_offset, last.leader_epoch, last.max_timestamp, mark)
    return Held(bases[-1] if bases else 0, -1, -1, mark)


def _numbered(disk: Disk, folder: str) -> list[tuple[int, str]]:
    return sorted(entry for name in disk.list(folder) if (entry := read_offset_name(name)) is not None)
