"""The history of rebalances, written to an internal topic wherever its leader is.

It shows people later why a rebalance happened. It may arrive late or, if its partition has no leader for long, not at
all; nothing waits for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, failed
from millpond.broker.peers.requester import RequestLost
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext, NodeContext
    from millpond.coordinators.groups.shard import GroupShard

HISTORY_TOPIC = "__group_history"
HISTORY_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(30 * 24 * 60 * 60 * 1000),
    "retention.bytes": str(64 << 20),
    "segment.bytes": str(8 << 20),
    "flush.ack": "never",
    "min.insync.replicas": "1",
}
"""A month, within a size that no disk notices."""

TRIES_MAX = 8
AGAIN_MS = 500
"""Together longer than a leader election takes."""

PRODUCE_VERSION = 9
PRODUCE_MS = 5_000


def keep_history(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    shard: GroupShard,
) -> None:
    """Write every finished rebalance to the history."""
    ahead_ms = shard.shared.wall_ahead_ms
    finished = []
    for group_id, over in shard.take_finished():
        coordination.rebalances.add(group_id, 1 + over.left_out, over.paused_ms or 0)
        finished.append((group_id, over.as_json(ahead_ms)))
    if not finished:
        return
    batch = _batch(node.clock.wall_ms(), finished)
    if HISTORY_TOPIC in metadata.image.topics:
        _write(node, metadata, data, coordination, batch, TRIES_MAX)
    else:
        coordination.create_topic(HISTORY_TOPIC, 1, HISTORY_CONFIG).then(
            lambda _: _write(node, metadata, data, coordination, batch, TRIES_MAX)
        )


def _batch(now_ms: int, finished: list[tuple[str, dict[str, Any]]]) -> bytes:
    records = [
        Record(index, now_ms, group_id.encode(), json.dumps({"group": group_id, **over}).encode())
        for index, (group_id, over) in enumerate(finished)
    ]
    return encode_batch(records)


def _write(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    batch: bytes,
    tries: int,
) -> None:
    def again(failure: Exception) -> None:
        if not isinstance(failure, Refused | RequestLost):
            raise failure
        may_pass = isinstance(failure, RequestLost) or failure.code in _MAY_PASS
        if may_pass and tries > 1 and not node.is_stopping:
            node.clock.call_later(AGAIN_MS, lambda: _write(node, metadata, data, coordination, batch, tries - 1))
        else:
            node.journal("the history of a rebalance is lost", reason=failure)

    _append(node, metadata, data, coordination, batch).then(lambda _: None, again)


_MAY_PASS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


def _append(
    node: NodeContext, metadata: MetadataContext, data: DataContext, coordination: CoordinationContext, batch: bytes
) -> Later[None]:
    known = metadata.image.partition(HISTORY_TOPIC, 0)
    if known is None or not metadata.image.is_active(known.leader):
        return failed(Refused(ErrorCode.LEADER_NOT_AVAILABLE, "its topic has no leader"))
    if known.leader != node.node_id:
        return _send(coordination, known.leader, batch)
    partition = data.partitions.get(HISTORY_TOPIC, 0)
    if partition is None:
        return failed(Refused(ErrorCode.KAFKA_STORAGE_ERROR, "its topic is offline"))
    try:
        partition.append_own(batch)
    except Refused as refused:
        return failed(refused)
    return done(None)


def _send(coordination: CoordinationContext, leader: int, batch: bytes) -> Later[None]:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = m.ProduceRequest.TopicProduceData(name=HISTORY_TOPIC, partition_data=[data])
    request = m.ProduceRequest(acks=1, timeout_ms=PRODUCE_MS, topic_data=[topic])

    def check(response: m.ProduceResponse) -> None:
        code = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if code:
            raise Refused(code)

    return coordination.marker_peers.ask(leader, request, PRODUCE_VERSION, PRODUCE_MS).map(check)
