"""ListOffsets (2), versions 1-11: which offset stands at a time, or at the start or end of a partition.

1 one offset per partition · 2 isolation level · 4 leader epoch · 6 flexible · 7 the largest timestamp · 8 the
earliest local offset · 9 the latest tiered offset · 10 timeout · 11 the earliest offset not yet uploaded.
There is no tiered storage: the local start is the start, and nothing is tiered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.api import Api, Call, Outcome
from millpond.broker.partitions import Partition
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
READ_COMMITTED = 1
LEADER_EPOCH_FROM = 4


class Found(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


NOTHING = Found(-1, -1, -1)


def handle(broker: Broker, call: Call, request: m.ListOffsetsRequest) -> Outcome:
    committed_only = request.isolation_level == READ_COMMITTED
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_one(broker, call.version, topic.name, wanted, committed_only) for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_one(
    broker: Broker, version: int, topic: str, wanted: m.ListOffsetsRequest.ListOffsetsPartition, committed_only: bool
) -> m.ListOffsetsResponse.ListOffsetsPartitionResponse:
    index = wanted.partition_index
    partition = broker.partitions.get(topic, index)
    error = ErrorCode.NONE
    found = NOTHING
    if partition is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        try:
            partition.check_leader_epoch(wanted.current_leader_epoch)
            found = find(partition, wanted.timestamp, committed_only)
        except Refused as refusal:
            error = refusal.code
    return m.ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if version >= LEADER_EPOCH_FROM else -1,
    )


def find(partition: Partition, timestamp: int, committed_only: bool) -> Found:
    """The first record at or after `timestamp`, or one of the special places; -1 where there is none."""
    log = partition.log
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    match timestamp:
        case -1:
            return Found(-1, end, partition.leader_epoch)
        case -2 | -4:
            return Found(-1, log.start_offset, log.epochs.of(log.start_offset))
        case -3:
            newest = log.max_timestamp()
            return NOTHING if newest is None else Found(newest.timestamp, newest.offset, newest.leader_epoch)
        case -5 | -6:
            return NOTHING
        case _:
            at = log.find_by_timestamp(timestamp)
            if at is None or at.offset >= end:
                return NOTHING
            return Found(at.timestamp, at.offset, at.leader_epoch)


API = Api(key=2, name="ListOffsets", versions=(1, 11), handle=handle, lists="topics")
