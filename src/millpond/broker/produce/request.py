"""What the short and the general path share: constants of the Produce API, partition lookup, and leader hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.broker.responses.current_leader import MOVED, current_leader, endpoints
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call
    from millpond.broker.requests.connection import Connection

PRODUCE: Final = 0
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
ZSTD_FROM: Final = 7
CURRENT_LEADER_FROM: Final = 10
TOPIC_IDS_FROM: Final = 13

PartitionKey = tuple[UUID, str, int]
"""Topic id, topic name and partition index, as the request names them."""


def find_partition(
    data: DataContext, version: int, topic: m.ProduceRequest.TopicProduceData, index: int
) -> Partition | None:
    if version >= TOPIC_IDS_FROM:
        return data.partitions.by_id(topic.topic_id, index)
    return data.partitions.get(topic.name, index)


def repeated_partitions(call: Call, request: m.ProduceRequest) -> Container[PartitionKey]:
    """Partitions that the request names more than once: clients could not tell their responses apart."""
    if call.named_twice is not None:
        return call.named_twice
    keys = [
        (topic.topic_id, topic.name, entry.index) for topic in request.topic_data for entry in topic.partition_data
    ]
    if len(keys) == len(set(keys)):
        return ()
    return {key for key, times in Counter(keys).items() if times > 1}


def add_leader_hints(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    version: int,
    response: m.ProduceResponse,
) -> None:
    """Name the current leader of every partition that another node leads (KIP-951)."""
    leaders: set[int] = set()
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code not in MOVED:
                continue
            by_id = version >= TOPIC_IDS_FROM
            leader = current_leader(node, metadata, data, topic.topic_id if by_id else topic.name, partition.index)
            if leader is None:
                continue
            if leader.node_id != node.node_id:
                now_ms = node.clock.monotonic_ms()
                connection.misdirected.note(leader.topic_id, partition.index, leader.leader_epoch, now_ms)
            if version >= CURRENT_LEADER_FROM:
                leaders.add(leader.node_id)
                partition.current_leader = m.ProduceResponse.LeaderIdAndEpoch(
                    leader_id=leader.node_id, leader_epoch=leader.leader_epoch
                )
    response.node_endpoints = [
        m.ProduceResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in endpoints(node, connection, leaders)
    ]


def report_uncommitted(
    node: NodeContext, client_id: str | None, partition: Partition, end_offset: int, code: int
) -> None:
    if node.loggers.are_detailed:
        node.journal(
            "batch not committed",
            partition=partition.name,
            client=client_id,
            error=ErrorCode(code).name,
            end_offset=end_offset,
            committed_offset=partition.committed_offset,
        )
