"""The short path of Produce: one small batch for one partition, from the frame to the reply without messages.

Most produce requests take it. It refuses nothing: anything out of the ordinary (a quota, a compacted topic, a full
segment, a duplicate, a reason to refuse) is left untouched for the general path.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID
from millpond.base.ports import ReplyPart
from millpond.base.rights import Operation
from millpond.broker.produce.request import (
    ACKS_LEADER,
    PRODUCE,
    TOPIC_IDS_FROM,
    add_leader_hints,
    report_uncommitted,
)
from millpond.broker.requests.replies import encode_reply
from millpond.wire import messages as m
from millpond.wire.header import RequestHeader
from millpond.wire.kernel import short_produce

if TYPE_CHECKING:
    from millpond.base.errors import Refused
    from millpond.broker.context import DataContext, MetadataContext, NodeContext, SecurityContext
    from millpond.broker.replication.acknowledgements import PendingAck
    from millpond.broker.requests.connection import Connection


def answer_short(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """Append and acknowledge a small batch; False leaves everything as it was, for the general path."""
    request = short_produce(frame)
    if request is None:
        return False
    partition = data.partitions.by_raw(request.key, is_id=request.version >= TOPIC_IDS_FROM)
    if partition is None:
        return False
    access = security.access
    if access.is_on and not access.may_often(connection, Operation.WRITE, partition.name.topic):
        return False
    offset = partition.append_short(request)
    if offset is None:
        return False
    reply = request.reply(offset, -1, partition.log.start_offset)
    if request.acks == ACKS_LEADER or partition.acknowledges_at_once:
        connection.reply_frame(reply)
        node.requests.on_produced(PRODUCE, connection.arrived_us, partition.acknowledged)
    else:
        # A frame has up to 2 MiB, and may wait for its commit with many others.
        request.release()
        refuse = partial(_refusal, node, metadata, data)
        data.acknowledgements.reply(connection, request, partition, offset + request.record_count, reply, refuse)
    return True


def _refusal(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    pending: PendingAck,
    refused: Refused,
) -> list[ReplyPart]:
    """The reply to a request whose records are written and may not be committed."""
    request, partition = pending.request, pending.partition
    client_id = None if request.client_id is None else request.client_id.decode()
    report_uncommitted(node, client_id, partition, pending.end_offset, refused.code)
    topic = request.key[:-4]
    is_id = request.version >= TOPIC_IDS_FROM
    failure = m.ProduceResponse.PartitionProduceResponse(
        index=partition.name.partition, error_code=refused.code, base_offset=-1, error_message=str(refused)
    )
    response = m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                name="" if is_id else topic.decode(),
                topic_id=UUID(bytes=topic) if is_id else NO_TOPIC_ID,
                partition_responses=[failure],
            )
        ]
    )
    add_leader_hints(node, metadata, data, pending.connection, request.version, response)
    node.requests.on_answer(PRODUCE, pending.arrived_us, response)
    return encode_reply(RequestHeader(PRODUCE, request.version, request.correlation_id, client_id, 0), response)
