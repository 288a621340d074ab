"""TxnOffsetCommit (28), versions 0-6: offsets that count once the producer's transaction is committed.

2 leader epoch · 3 flexible, group member and generation · 4 abortable errors · 5 transactions v2: the group joins the
transaction by itself · 6 topic ids; GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH are no longer reported as
ILLEGAL_GENERATION.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import both, whole
from millpond.broker.coordination.coordination import Producer, Writing
from millpond.broker.coordinator_calls.group_calls import ask_group, refuse_group
from millpond.broker.coordinator_calls.group_rights import on_topics
from millpond.broker.coordinator_calls.transaction_calls import permission_to_write
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.log.producers import Verification
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext

TXN_OFFSET_COMMIT = 28
IMPLICIT_FROM = 5
TOPIC_IDS_FROM = 6


def handle(
    node: NodeContext,
    metadata: MetadataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.TxnOffsetCommitRequest,
) -> Outcome:
    producer = Producer(request.producer_id, request.producer_epoch)

    def write(permit: Verification | None) -> Later[Any]:
        if not shard_host.is_current:
            raise Refused(ErrorCode.NOT_COORDINATOR, "the group's coordinator has moved since this was permitted")
        return ask_group(coordination, call, request.group_id, request, Writing(producer, permit))

    try:
        shard_host = coordination.groups.shard_host_of(request.group_id)
    except Refused as refused:
        return refuse_group(call, request, refused)
    permit = permission_to_write(
        node,
        metadata,
        coordination,
        request.transactional_id,
        producer,
        shard_host.partition,
        implicit=call.version >= IMPLICIT_FROM,
    )
    key = TXN_OFFSET_COMMIT, call.connection, request.transactional_id, request.group_id
    written = coordination.append_order.append(key, permit, write)
    return written.recover(Refused, partial(refuse_group, call, request))


def _refuse_whole(call: Call, request: m.TxnOffsetCommitRequest, code: ErrorCode) -> m.Message:
    return refuse_group(call, request, Refused(code))


RIGHTS = both(
    whole(Operation.WRITE, AclResource.TRANSACTIONAL_ID, lambda request: request.transactional_id, _refuse_whole),
    whole(Operation.READ, AclResource.GROUP, lambda request: request.group_id, _refuse_whole),
    on_topics(
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
        ids_from=TOPIC_IDS_FROM,
    ),
)

API = Api(
    key=28,
    name="TxnOffsetCommit",
    versions=(0, 6),
    handle=handle,
    lists="topics",
    # None of the offsets is visible before the transaction ends.
    pieces=(way("topics.partitions", "topics.partitions"),),
    rights=RIGHTS,
)
