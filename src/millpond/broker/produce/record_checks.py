"""Weighing Produce requests, and checking records before their batches are appended.

The loop checks and appends batches. This is fast unless a request has many batches, large ones, or records that must
be inspected: those of a compacted topic for their keys, those with a bad timestamp to report them. A heavy request is
appended in pieces, with other connections served in between, and a worker decompresses its records.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.later import Later
from millpond.base.rights import AclResource, Operation
from millpond.broker.produce.request import PartitionKey, find_partition
from millpond.log.checks import RecordFaults, TooLargeToUnpack, needs_record_check, record_faults
from millpond.log.limits import LogLimits
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, read_header
from millpond.wire.compression import SNAPPY

if TYPE_CHECKING:
    from millpond.base.ports import Buffer
    from millpond.broker.context import DataContext, NodeContext
    from millpond.broker.requests.call import Call

PIECE_WEIGHT: Final = 64
"""The weight appended per turn, two or three milliseconds of work: 64 small batches, 1 MiB, or a batch with a
thousand bad records."""

LIGHT_WEIGHT: Final = 3 * PIECE_WEIGHT
"""A request up to this weight is appended at once."""

UNPACKED_BYTES_MAX: Final = 1 << 20
"""The loop inspects a compressed batch only up to this decompressed size."""

UNPACKED_BATCHES_MAX: Final = 4
"""How many batches of a request the loop decompresses."""

_WEIGHT_BYTES: Final = 16 << 10
_WEIGHT_RECORDS: Final = 16
_BAD_RECORDS_MAX: Final = 1_000
_COMPRESSED_WEIGHT: Final = 8


def weight_of(entry: m.ProduceRequest.PartitionProduceData) -> int:
    """An upper estimate of the cost to append the batch of one partition."""
    records = entry.records
    if records is None or len(records) < HEADER_BYTES:
        return 1
    header = read_header(records)
    bad_records = min(max(header.record_count, 0), _BAD_RECORDS_MAX)
    weight = 1 + len(records) // _WEIGHT_BYTES + bad_records // _WEIGHT_RECORDS
    return weight + _COMPRESSED_WEIGHT if header.codec else weight


def is_heavy(node: NodeContext, data: DataContext, call: Call, request: m.ProduceRequest) -> bool:
    """Whether the request would block the loop for too long.

    This inspects some compressed records; `call.record_faults` keeps what is wrong with them for the append.
    """
    weight = unpacked = 0
    for topic in request.topic_data:
        for entry in topic.partition_data:
            records = entry.records
            weight += 1 + len(records or b"") // _WEIGHT_BYTES
            limits = _limits_for_check(node, data, call, topic, entry)
            if limits is None:
                continue
            assert records is not None
            weight += weight_of(entry)
            codec = read_header(records).codec
            if not codec:
                continue
            # Snappy data may have very many blocks, each with a cost.
            unpacked += UNPACKED_BATCHES_MAX if codec == SNAPPY else 1
            if unpacked > UNPACKED_BATCHES_MAX or weight > LIGHT_WEIGHT:
                return True
            try:
                faults = record_faults(records, limits, node.clock.wall_ms(), UNPACKED_BYTES_MAX)
            except TooLargeToUnpack:
                return True
            _keep(call, {(topic.topic_id, topic.name, entry.index): faults})
    return weight > LIGHT_WEIGHT


def check_records(node: NodeContext, data: DataContext, call: Call, piece: m.ProduceRequest) -> Later[Any] | None:
    """Let a worker inspect the compressed records of a piece; None if no batch needs it."""
    jobs: dict[PartitionKey, partial[RecordFaults]] = {}
    for topic in piece.topic_data:
        for entry in topic.partition_data:
            key = topic.topic_id, topic.name, entry.index
            limits = _limits_for_check(node, data, call, topic, entry)
            if limits is None or key in (call.record_faults or ()):
                continue
            assert entry.records is not None
            if not read_header(entry.records).codec:
                continue
            jobs[key] = partial(record_faults, entry.records, limits, node.clock.wall_ms())
    if not jobs:
        return None

    def run() -> dict[PartitionKey, RecordFaults]:
        return {key: job() for key, job in jobs.items()}

    return data.unpacking.run(call.client_host, run).map(partial(_keep, call))


def _keep(call: Call, faults: dict[PartitionKey, RecordFaults]) -> None:
    call.record_faults = {**(call.record_faults or {}), **faults}


def _limits_for_check(
    node: NodeContext,
    data: DataContext,
    call: Call,
    topic: m.ProduceRequest.TopicProduceData,
    entry: m.ProduceRequest.PartitionProduceData,
) -> LogLimits | None:
    """The limits of the log, if a batch can be appended only after its records were inspected."""
    records: Buffer | None = entry.records
    if records is None or len(records) < HEADER_BYTES:
        return None
    partition = find_partition(data, call.version, topic, entry.index)
    if partition is None or not partition.is_leader:
        return None
    limits = partition.log.limits
    if not needs_record_check(read_header(records), limits, node.clock.wall_ms()):
        return None
    return limits if call.may(Operation.WRITE, AclResource.TOPIC, partition.name.topic) else None
