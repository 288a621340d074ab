"""Produce (0), versions 3-13: append record batches to partitions.

3 transactional id · 5 log start offset · 7 zstd · 8 record errors · 9 flexible · 10 current leader · 12 transactions
v2 · 13 topic ids. Versions 0-2 carry message formats older than record batches; they are advertised, because
librdkafka drops compression without them, and answered with UNSUPPORTED_FOR_MESSAGE_FORMAT.

acks=0 is not answered, acks=1 once the bytes are in the page cache, acks=all once they are committed (see
`flush.ack`). Small requests take the short path, all others the general one (`broker/produce`).
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, MalformedMessage, RemoteError
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import (
    NOT_AUTHORISED,
    Need,
    Rights,
    Screened,
    split_topics,
    topic_refusal,
)
from millpond.broker.produce.general_path import ProduceRun, append_in_transaction
from millpond.broker.produce.record_checks import PIECE_WEIGHT, check_records, is_heavy, weight_of
from millpond.broker.produce.request import ACKS_ALL, ACKS_LEADER, ACKS_NONE, repeated_partitions
from millpond.broker.produce.short_path import answer_short
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Encoded, Outcome, Response
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.config.node import MAX_REQUEST_ITEMS
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )

ON_ID = Need(Operation.WRITE, AclResource.TRANSACTIONAL_ID)
ON_TOPIC = Need(Operation.WRITE, AclResource.TOPIC)


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.ProduceRequest,
) -> Outcome:
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or -1 (all)")
    if request.transactional_id is not None:
        if request.acks == ACKS_NONE:
            # The producer would not see a refusal, and would commit the transaction without this batch.
            return _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "a transaction must be acknowledged")
        return append_in_transaction(
            node, security, metadata, data, coordination, call, request, request.transactional_id
        )
    run = ProduceRun(node, security, metadata, data, call, request, {})
    if request.acks == ACKS_NONE:
        # A closed connection is the only error that a producer without acknowledgements can see.
        if run.refusals:
            raise RemoteError(f"a batch sent with acks=0 was refused: {run.refusals[0]}")
        return None
    return run.outcome()


def _is_heavy(node: NodeContext, data: DataContext, call: Call, request: m.ProduceRequest) -> bool:
    if not is_heavy(node, data, call, request):
        return False
    call.named_twice = repeated_partitions(call, request)
    return True


def _refuse_all(request: m.ProduceRequest, code: ErrorCode, message: str) -> Outcome:
    if request.acks == ACKS_NONE:
        raise RemoteError(f"produce with acks=0: {message}")
    return m.ProduceResponse(responses=[_refuse_topic(topic, code, message) for topic in request.topic_data])


def _refuse_topic(
    topic: m.ProduceRequest.TopicProduceData, code: ErrorCode, message: str
) -> m.ProduceResponse.TopicProduceResponse:
    return m.ProduceResponse.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            m.ProduceResponse.PartitionProduceResponse(
                index=entry.index, error_code=code, base_offset=-1, error_message=message
            )
            for entry in topic.partition_data
        ],
    )


# Versions 0-2: read just enough to answer every partition by name.

_INT16, _INT32 = Struct(">h"), Struct(">i")
_OLD_HEAD = Struct(">hi")
_OLD_REPLY = Struct(">ihq")


def refuse_old_format(node: NodeContext, version: int, body: memoryview) -> Response:
    try:
        out = _old_topics(body, version, node.settings[MAX_REQUEST_ITEMS])
    except struct.error as fault:
        raise MalformedMessage(f"Produce version {version}: {fault}") from None
    return Encoded(out + (_INT32.pack(0) if version >= 1 else b""))


def _old_topics(body: memoryview, version: int, items_max: int) -> bytes:
    acks, _timeout = _OLD_HEAD.unpack_from(body, 0)
    if acks == ACKS_NONE:
        # The client would take a response for that of its next request.
        raise RemoteError("produce with acks=0: message formats before record batches (Kafka 0.11) are not supported")
    (topics,) = _INT32.unpack_from(body, 6)
    position = 10
    left = items_max - topics
    out = [_INT32.pack(topics)]
    for _ in range(topics):
        (length,) = _INT16.unpack_from(body, position)
        if length < 0:
            # It would move the position back, and the peer chooses the number of topics.
            raise MalformedMessage("Produce: a name of negative length")
        name_end = position + 2 + length
        (partitions,) = _INT32.unpack_from(body, name_end)
        left -= partitions
        if left < 0:
            raise MalformedMessage(f"Produce: more than {items_max} items in lists")
        out += [bytes(body[position:name_end]), _INT32.pack(partitions)]
        position = name_end + 4
        for _ in range(partitions):
            (index,) = _INT32.unpack_from(body, position)
            (size,) = _INT32.unpack_from(body, position + 4)
            if size < 0:
                raise MalformedMessage("Produce: negative record size")
            position += 8 + size
            out.append(_OLD_REPLY.pack(index, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1))
            if version >= 2:
                out.append(Struct(">q").pack(-1))
    return b"".join(out)


def _screen(metadata: MetadataContext, call: Call, request: m.ProduceRequest) -> Screened | None:
    if request.transactional_id is not None and not call.demand(*ON_ID, request.transactional_id):
        return Screened(None, _refuse_all(request, ON_ID.refusal, NOT_AUTHORISED))

    def refuse(topic: m.ProduceRequest.TopicProduceData, code: ErrorCode) -> m.ProduceResponse.TopicProduceResponse:
        text = NOT_AUTHORISED if code is ON_TOPIC.refusal else code.name
        if request.acks == ACKS_NONE:
            # Write nothing of it: the client could not know which part was written.
            raise RemoteError(f"a batch sent with acks=0 was refused: {text}")
        return _refuse_topic(topic, code, text)

    def code_of(topic: m.ProduceRequest.TopicProduceData) -> ErrorCode:
        return topic_refusal(metadata, call, ON_TOPIC, topic.name, topic.topic_id)

    return split_topics(request, "topic_data", code_of, refuse, "responses")


API = Api(
    key=0,
    name="Produce",
    versions=(3, 13),
    advertised=(0, 13),
    handle=handle,
    lists="topic_data",
    has_records=True,
    short=answer_short,
    refuse=refuse_old_format,
    pieces=(
        way(
            "topic_data.partition_data",
            "responses.partition_responses",
            beside="node_endpoints",
            items=PIECE_WEIGHT,
            weigh=weight_of,
        ),
    ),
    is_heavy=_is_heavy,
    prepare=check_records,
    rights=Rights((ON_ID, ON_TOPIC), _screen),
)
