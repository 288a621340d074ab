"""How much a Produce request weighs, and looking at records before their batches are appended.

A batch is checked and appended on the loop, which is quick unless there are many of them, they are large, or their
records must be looked at: those of a compacted topic for their keys, those with a bad timestamp to name them. A heavy
request is appended in pieces, with other connections served in between, and a worker unpacks what is compressed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from millpond.base.later import Later
from millpond.base.rights import AclResource, Operation
from millpond.log.checks import RecordFaults, TooLargeToUnpack, needs_record_check, record_faults
from millpond.log.limits import LogLimits
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, read_header
from millpond.wire.compression import SNAPPY

if TYPE_CHECKING:
    from millpond.base.ports import Buffer
    from millpond.broker.context import DataContext, NodeContext
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call

TOPIC_IDS_FROM: Final = 13

PIECE_WEIGHT: Final = 64
"""What is appended in one turn: 64 small batches, 1 MiB, or one batch with a thousand bad records. It takes two or
three milliseconds."""

LIGHT_WEIGHT: Final = 3 * PIECE_WEIGHT
"""A request of this weight is appended at once."""

UNPACKED_BYTES_MAX: Final = 1 << 20
"""What a batch may have unpacked to be looked at on the loop."""

UNPACKED_BATCHES_MAX: Final = 4
"""So many batches of a request are unpacked on the loop."""

_WEIGHT_BYTES: Final = 16 << 10
_WEIGHT_RECORDS: Final = 16
_BAD_RECORDS_MAX: Final = 1_000
_COMPRESSED_WEIGHT: Final = 8

FaultKey = tuple[UUID, str, int]
"""Topic id, topic name and partition, as the request has them."""


def weight_of(entry: m.ProduceRequest.PartitionProduceData) -> int:
    """What it may cost to append the batch of one partition."""
    records = entry.records
    if records is None or len(records) < HEADER_BYTES:
        return 1
    header = read_header(records)
    bad_records = min(max(header.record_count, 0), _BAD_RECORDS_MAX)
    weight = 1 + len(records) // _WEIGHT_BYTES + bad_records // _WEIGHT_RECORDS
    return weight + _COMPRESSED_WEIGHT if header.codec else weight


def is_heavy(node: NodeContext, data: DataContext, call: Call, request: m.ProduceRequest) -> bool:
    """Whether the request would hold the loop for too long.

    Some compressed records are looked at here; what is wrong with them is kept for those who append the batches.
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
            # Snappy may come in very many blocks, and each takes its time.
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
    """Have a worker look at the compressed records of a piece; None if there are none to look at."""
    jobs: dict[FaultKey, partial[RecordFaults]] = {}
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

    def run() -> dict[FaultKey, RecordFaults]:
        return {key: job() for key, job in jobs.items()}

    return data.unpacking.run(call.client_host, run).map(partial(_keep, call))


def _keep(call: Call, faults: dict[FaultKey, RecordFaults]) -> None:
    call.record_faults = {**(call.record_faults or {}), **faults}


def _limits_for_check(
    node: NodeContext,
    data: DataContext,
    call: Call,
    topic: m.ProduceRequest.TopicProduceData,
    entry: m.ProduceRequest.PartitionProduceData,
) -> LogLimits | None:
    """The limits of the log, if a batch for it can only be taken after a look at its records."""
    records: Buffer | None = entry.records
    if records is None or len(records) < HEADER_BYTES:
        return None
    partition = _partition(data, call.version, topic, entry.index)
    if partition is None or not partition.is_leader:
        return None
    limits = partition.log.limits
    if not needs_record_check(read_header(records), limits, node.clock.wall_ms()):
        return None
    return limits if call.may(Operation.WRITE, AclResource.TOPIC, partition.name.topic) else None


def _partition(
    data: DataContext, version: int, topic: m.ProduceRequest.TopicProduceData, index: int
) -> Partition | None:
    if version >= TOPIC_IDS_FROM:
        return data.partitions.by_id(topic.topic_id, index)
    return data.partitions.get(topic.name, index)
