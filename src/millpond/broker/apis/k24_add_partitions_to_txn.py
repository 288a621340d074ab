"""AddPartitionsToTxn (24), versions 0-5: a producer names the partitions that its transaction will write to.

2 PRODUCER_FENCED · 3 flexible · 4 for brokers: several transactions at once, verification only · 5 abortable errors.
Clients cannot add internal topics: offsets join a transaction by AddOffsetsToTxn (25).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import OF_NODES, Need, Rights, Screened, demand_node, refuse_whole
from millpond.broker.coordinator_calls.group_calls import GROUPS_AT_ONCE
from millpond.broker.coordinator_calls.transaction_calls import ask_transaction
from millpond.broker.loop.steps import ask_in_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.image import INTERNAL_TOPICS
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext

    TopicList = list[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]

MANY_FROM = 4


def handle(
    node: NodeContext,
    metadata: MetadataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.AddPartitionsToTxnRequest,
) -> Outcome:
    if call.version < MANY_FROM:
        faulty = _refuse_some(metadata, request.v3_and_below_topics)
        if faulty is not None:
            return faulty
        transactional_id = request.v3_and_below_transactional_id
        refuse = partial(_fail, call.version, request)
        return ask_transaction(coordination, call, transactional_id, request, refuse, _error)
    questions = (
        partial(_ask_one, metadata, coordination, call, m.AddPartitionsToTxnRequest(transactions=[each]))
        for each in request.transactions
    )
    return ask_in_steps(node.clock, questions, GROUPS_AT_ONCE).map(_join)


def _ask_one(
    metadata: MetadataContext, coordination: CoordinationContext, call: Call, body: m.AddPartitionsToTxnRequest
) -> Later[Any]:
    (transaction,) = body.transactions
    refuse = partial(_fail, call.version, body)
    if not transaction.verify_only and _unknown(metadata, transaction.topics):
        # The broker that asks has the partition, so this node's image is behind. Added now, the partition would look
        # deleted when its marker is written, and the transaction would stay open there.
        return done(refuse(Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the partition is not known here yet")))
    # Brokers decide for themselves how long their clients wait.
    return ask_transaction(coordination, call, transaction.transactional_id, body, refuse, lambda _: ErrorCode.NONE)


def _error(response: m.AddPartitionsToTxnResponse) -> int:
    """All partitions of a client's request get the same code."""
    partitions = [each for topic in response.results_by_topic_v3_and_below for each in topic.results_by_partition]
    return partitions[0].partition_error_code if partitions else ErrorCode.NONE


def _unknown(metadata: MetadataContext, topics: TopicList) -> frozenset[tuple[str, int]]:
    return frozenset(
        (topic.name, index)
        for topic in topics
        for index in topic.partitions
        if metadata.image.partition(topic.name, index) is None
    )


def _refuse_some(
    metadata: MetadataContext, topics: TopicList, forbidden: frozenset[str] = frozenset()
) -> m.AddPartitionsToTxnResponse | None:
    """The response if some of a client's partitions cannot be added, in which case none is; else None."""
    forbidden |= INTERNAL_TOPICS.intersection(topic.name for topic in topics)
    unknown = _unknown(metadata, [topic for topic in topics if topic.name not in forbidden])
    if not forbidden and not unknown:
        return None
    results = _results(topics, ErrorCode.OPERATION_NOT_ATTEMPTED, unknown)
    for result in results:
        for partition in result.results_by_partition if result.name in forbidden else ():
            partition.partition_error_code = ON_TOPIC.refusal
    return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _results(
    topics: TopicList, code: ErrorCode, unknown: frozenset[tuple[str, int]] = frozenset()
) -> list[m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    return [
        m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if (topic.name, index) in unknown
                    else code,
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _fail(version: int, body: m.AddPartitionsToTxnRequest, refused: Refused) -> m.AddPartitionsToTxnResponse:
    if version < MANY_FROM:
        return m.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_results(body.v3_and_below_topics, refused.code)
        )
    return m.AddPartitionsToTxnResponse(
        results_by_transaction=[
            m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id, topic_results=_results(each.topics, refused.code)
            )
            for each in body.transactions
        ]
    )


def _join(parts: list[m.AddPartitionsToTxnResponse]) -> m.AddPartitionsToTxnResponse:
    return m.AddPartitionsToTxnResponse(
        results_by_transaction=[each for part in parts for each in part.results_by_transaction]
    )


def _screen(metadata: MetadataContext, call: Call, request: m.AddPartitionsToTxnRequest) -> Screened | None:
    """A client's request is carried out whole or not at all. From version 4 on, requests come from brokers."""
    if call.version >= MANY_FROM:
        if demand_node(call):
            return None
        return Screened(None, refuse_whole(call, request, OF_NODES.refusal))
    if not call.demand(*ON_ID, request.v3_and_below_transactional_id):
        return Screened(None, _fail(call.version, request, Refused(ON_ID.refusal)))
    topics = request.v3_and_below_topics
    refused = frozenset(topic.name for topic in topics if not call.demand(*ON_TOPIC, topic.name))
    return Screened(None, _refuse_some(metadata, topics, refused)) if refused else None


ON_ID = Need(Operation.WRITE, AclResource.TRANSACTIONAL_ID)
ON_TOPIC = Need(Operation.WRITE, AclResource.TOPIC)

API = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=(0, 5),
    handle=handle,
    lists="v3_and_below_topics",
    # All partitions of a transaction are added or none. Each takes two to five microseconds.
    whole_max=15_000,
    pieces=(way("transactions", "results_by_transaction", one_by_one=True),),
    rights=Rights((ON_ID, ON_TOPIC, OF_NODES), _screen),
)
