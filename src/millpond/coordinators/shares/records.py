"""The state of share partitions as records of `__share_group_state`, in Kafka's format.

A ShareSnapshot has the whole state of a share partition, a ShareUpdate what changed since. All updates of a partition
have the same key, so the topic must not be compacted; what is before the latest snapshots is deleted instead.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from millpond.base.errors import MalformedMessage
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.shard import CoordinatorRecord
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state import ShareState
from millpond.coordinators.shares.state_batches import RecordState, StateBatch, from_wire, to_wire
from millpond.wire import messages as m

SNAPSHOT_KEY, UPDATE_KEY = 0, 1
VALUE_VERSION = 0
_VERSION = struct.Struct(">h")
_STATES = frozenset(int(state) for state in RecordState)


class Update(NamedTuple):
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: list[StateBatch]


def snapshot_record(partition: SharePartition, state: ShareState) -> CoordinatorRecord:
    value = m.ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        state_batches=[m.ShareSnapshotValue.StateBatch(**to_wire(each)) for each in state.batches()],
    )
    return CoordinatorRecord(_snapshot_key(partition), _VERSION.pack(VALUE_VERSION) + value.encode(VALUE_VERSION))


def update_record(
    partition: SharePartition,
    snapshot_epoch: int,
    leader_epoch: int,
    start_offset: int,
    batches: Sequence[StateBatch],
) -> CoordinatorRecord:
    key = m.ShareUpdateKey(**partition._asdict())
    value = m.ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        state_batches=[m.ShareUpdateValue.StateBatch(**to_wire(each)) for each in batches],
    )
    return CoordinatorRecord(
        _VERSION.pack(UPDATE_KEY) + key.encode(UPDATE_KEY), _VERSION.pack(VALUE_VERSION) + value.encode(VALUE_VERSION)
    )


def tombstone(partition: SharePartition) -> CoordinatorRecord:
    """The state is deleted, with all updates before."""
    return CoordinatorRecord(_snapshot_key(partition), None)


def read_key(key: bytes) -> tuple[int, SharePartition] | None:
    """The kind of the record and its share partition; None for a key of a newer kind, which is skipped."""
    if len(key) < _VERSION.size:
        raise MalformedMessage(f"a key of {len(key)} bytes in the state of share groups")
    (kind,) = _VERSION.unpack_from(key)
    if kind not in (SNAPSHOT_KEY, UPDATE_KEY):
        return None
    schema = m.ShareSnapshotKey if kind == SNAPSHOT_KEY else m.ShareUpdateKey
    body = schema.decode(key, kind, _VERSION.size)[0]
    return kind, SharePartition(body.group_id, body.topic_id, body.partition)


def read_snapshot(value: bytes) -> ShareState:
    body = m.ShareSnapshotValue.decode(value, _version(value), _VERSION.size)[0]
    return ShareState(
        body.state_epoch,
        body.leader_epoch,
        body.start_offset,
        [_batch(each) for each in body.state_batches],
        snapshot_epoch=body.snapshot_epoch,
    )


def read_update(value: bytes) -> Update:
    body = m.ShareUpdateValue.decode(value, _version(value), _VERSION.size)[0]
    return Update(
        body.snapshot_epoch, body.leader_epoch, body.start_offset, [_batch(each) for each in body.state_batches]
    )


def _snapshot_key(partition: SharePartition) -> bytes:
    return _VERSION.pack(SNAPSHOT_KEY) + m.ShareSnapshotKey(**partition._asdict()).encode(SNAPSHOT_KEY)


def _version(value: bytes) -> int:
    if len(value) < _VERSION.size:
        raise MalformedMessage(f"a value of {len(value)} bytes in the state of share groups")
    version: int = _VERSION.unpack_from(value)[0]
    if version != VALUE_VERSION:
        raise MalformedMessage(f"version {version} of a value in the state of share groups")
    return version


def _batch(batch: m.ShareSnapshotValue.StateBatch | m.ShareUpdateValue.StateBatch) -> StateBatch:
    if batch.delivery_state not in _STATES or not 0 <= batch.first_offset <= batch.last_offset:
        raise MalformedMessage(f"a state batch that cannot be: {batch}")
    return from_wire(batch)
