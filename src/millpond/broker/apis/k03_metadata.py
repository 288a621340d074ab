"""Metadata (3), versions 0-13: brokers, topics and partition leaders; may create topics.

0 all topics when none are named · 1 null means all, controller · 2 cluster id · 4 the client may forbid creation ·
5 offline replicas · 7 leader epochs · 8 authorised operations · 9 flexible · 10 topic ids · 11 no cluster operations
· 12 topics by id · 13 a top-level error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID, topic_name_fault
from millpond.base.later import Later, done
from millpond.base.named_tuple import NamedTuple
from millpond.base.rights import AclResource, Operation
from millpond.broker.administration.topic_creation import request_for, try_create
from millpond.broker.authorization.authorized_operations import NOT_ASKED_FOR, operations_on, operations_on_cluster
from millpond.broker.authorization.partition_mutations import within_quota
from millpond.broker.authorization.required_rights import Need, by_handler, demand_topic, may_by_cluster
from millpond.broker.loop.steps import Steps, finished, in_slices
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome, Response, encoded
from millpond.broker.responses.partition_states import PartitionStates
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.config.node import AUTO_CREATE_TOPICS_ENABLE
from millpond.metadata.image import Partition, Topic
from millpond.metadata.records import NO_LEADER
from millpond.metadata.topics import NewTopic
from millpond.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.broker.context import DataContext, MetadataContext, NodeContext, SecurityContext

    Topics = list[m.MetadataResponse.MetadataResponseTopic]
    Found = Topic | m.MetadataResponse.MetadataResponseTopic
    """A topic, or the error in its place."""

BY_ID_FROM = 12

SEEN = Need(Operation.DESCRIBE, AclResource.TOPIC)
ON_TOPIC = Need(Operation.CREATE, AclResource.TOPIC)
ON_CLUSTER = Need(Operation.CREATE, AclResource.CLUSTER)
"""Auto-creation of a topic needs one of these two."""

PARTITIONS_AT_ONCE_MAX = 500
"""Up to this many partitions are described on the loop; a worker describes more."""

PIECE_TOPICS: Final = 50
"""A request that names more than `SLICE_TOPICS` is cut into pieces of this many: looking up the authorised operations
takes a tenth of a millisecond for each topic."""

SLICE_TOPICS: Final = 100
"""Topics looked up in one turn of the loop. The slowest is one that the client may not see, because the refusal is
logged."""

CREATION_WAIT_MS: Final = 3_000
"""How long a client waits for auto-creation. The same response lists the other nodes, and this node may be cut off
from the controller."""


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.MetadataRequest,
) -> Outcome:
    missing = within_quota(node, metadata, call, _to_create(node, metadata, call, request))
    if missing:
        return _describe_once_created(node, security, metadata, data, call, request, missing)
    if not _wants_all(call, request):
        return _describe_named(node, metadata, data, call, request)
    steps = _describe_all(node, metadata, data, call, request)
    if len(metadata.image.topics) <= SLICE_TOPICS:
        return finished(steps)
    return call.connection.run_in_turns(steps)


def _describe_all(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.MetadataRequest
) -> Steps[Response]:
    """All topics that the client may see. Rights change on the loop, so they are checked there, some in each turn."""
    topics: list[Topic] = []
    operations: dict[str, int] = {}
    for some in in_slices(list(metadata.image.topics.values()), SLICE_TOPICS):
        if topics:
            yield None
        seen = some if call.is_unlimited else [each for each in some if call.may(*SEEN, each.name)]
        if request.include_topic_authorized_operations:
            operations.update((each.name, operations_on(call, AclResource.TOPIC, each.name)) for each in seen)
        topics += seen
    allowed = _Allowed(operations, _on_cluster(call, request))
    outcome = _describe(node, metadata, data, call, topics, allowed, list)
    if isinstance(outcome, Later):
        response: Response = yield outcome
        return response
    return outcome


def _describe_once_created(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.MetadataRequest,
    missing: list[str],
) -> Later[Response]:
    wanted = [NewTopic(name) for name in missing]
    # Auto-creation is audited, also as a side effect of another request.
    audit = security.audit
    audited = (
        audit.begin_change(call, API.key, API.name, request_for(wanted))
        if audit.is_on and not call.is_from_node
        else None
    )
    created = try_create(metadata, wanted)
    # Not cancelled when the client disconnects: the topics are created anyway, and the audit log must record it.
    answer: Later[Response] = Later()
    is_begun = False

    def on_created(response: m.CreateTopicsResponse | None) -> None:
        if audited is not None and response is not None:
            audited(response)
        describe()

    def describe() -> None:
        nonlocal is_begun
        if not is_begun and not answer.ended:
            is_begun = True
            outcome = _describe_named(node, metadata, data, call, request)
            if isinstance(outcome, Later):
                outcome.then(answer.finish, answer.fail)
            else:
                answer.finish(outcome)

    created.then(on_created, answer.fail)
    answer.expire_after(node.clock, CREATION_WAIT_MS, describe)
    return answer


def _describe_named(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.MetadataRequest
) -> Response | Later[Response]:
    # A large topic named many times would fill the memory; Kafka, too, describes each topic once.
    wanted = {(each.name, each.topic_id): each for each in request.topics or ()}
    found = [_find(metadata, call, each) for each in wanted.values()]
    asked = [each.name or "" for each in found] if request.include_topic_authorized_operations else []
    on_topics = {name: operations_on(call, AclResource.TOPIC, name) for name in asked}
    allowed = _Allowed(on_topics, _on_cluster(call, request))
    return _describe(
        node, metadata, data, call, found, allowed, lambda topics: _set_right(node, call, request, topics)
    )


class _Allowed(NamedTuple):
    """The client's authorized operations on these topics and the cluster, if it asked for them."""

    on_topics: dict[str, int]
    on_cluster: int


def _on_cluster(call: Call, request: m.MetadataRequest) -> int:
    return operations_on_cluster(call, is_asked=request.include_cluster_authorized_operations)


def _wants_all(call: Call, request: m.MetadataRequest) -> bool:
    return request.topics is None or (call.version == 0 and not request.topics)


def _creates(node: NodeContext, call: Call, request: m.MetadataRequest) -> bool:
    if _wants_all(call, request) or not node.settings[AUTO_CREATE_TOPICS_ENABLE]:
        return False
    return call.version < 4 or request.allow_auto_topic_creation


def _to_create(node: NodeContext, metadata: MetadataContext, call: Call, request: m.MetadataRequest) -> list[str]:
    if not _creates(node, call, request):
        return []
    names = [topic.name for topic in request.topics or () if topic.name is not None]
    missing = [
        name for name in dict.fromkeys(names) if name not in metadata.image.topics and not topic_name_fault(name)
    ]
    return [name for name in missing if call.may(*SEEN, name) and _may_create(call, name)]


def _may_create(call: Call, name: str) -> bool:
    return may_by_cluster(call, ON_CLUSTER, name) or call.may(*ON_TOPIC, name)


def _describe(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    found: Sequence[Found],
    allowed: _Allowed,
    set_right: Callable[[Topics], Topics],
) -> Response | Later[Response]:
    """A worker describes and encodes many partitions, which would hold up the loop."""
    partitions = sum(len(each.partitions) for each in found if isinstance(each, Topic))

    def describe() -> Topics:
        states = PartitionStates(node, metadata, data)
        return [_topic(states, each) if isinstance(each, Topic) else each for each in found]

    if partitions <= PARTITIONS_AT_ONCE_MAX:
        return _response(node, metadata, call, allowed, set_right(describe()))

    def encode(topics: Topics) -> Later[Response]:
        response = _response(node, metadata, call, allowed, set_right(topics))
        if call.is_piece:
            return done(response)
        return node.workers.run(lambda: encoded(response, call.version))

    return node.workers.run(describe).chain(encode)


def _response(
    node: NodeContext, metadata: MetadataContext, call: Call, allowed: _Allowed, topics: Topics
) -> m.MetadataResponse:
    for topic in topics if allowed.on_topics else ():
        if not topic.error_code:
            topic.topic_authorized_operations = allowed.on_topics.get(topic.name or "", NOT_ASKED_FOR)
    brokers = [
        m.MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in _addresses(node, call)
    ]
    return m.MetadataResponse(
        brokers=brokers,
        cluster_id=metadata.image.cluster_id,
        controller_id=metadata.controller_id(),
        topics=topics,
        cluster_authorized_operations=allowed.on_cluster,
    )


def _set_right(node: NodeContext, call: Call, request: m.MetadataRequest, topics: Topics) -> Topics:
    """Adapts the topics that were named to the client that asked."""
    if call.access.is_on and _creates(node, call, request):
        for topic in topics:
            # Only the missing right kept it from being created.
            is_missing = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_missing and topic.name is not None and not _may_create(call, topic.name):
                topic.error_code = ON_TOPIC.refusal
    if call.version < BY_ID_FROM:
        # Two versions allow a null name in the request, but not in the response.
        for topic in topics:
            topic.name = topic.name or ""
    if call.connection.misdirected:
        _tell_misdirected(node, call, topics)
    return topics


def _tell_misdirected(node: NodeContext, call: Call, topics: Topics) -> None:
    """Reports no leader once to a client that keeps sending to the wrong node."""
    now_ms = node.clock.monotonic_ms()
    for topic in topics:
        for each in topic.partitions:
            if call.connection.misdirected.is_stuck(topic.topic_id, each.partition_index, each.leader_epoch, now_ms):
                each.leader_id, each.error_code = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
                node.journal(
                    "client keeps producing to a non-leader, reporting no leader to it",
                    partition=f"{topic.name}-{each.partition_index}",
                    client=call.client_id,
                )


def _addresses(node: NodeContext, call: Call) -> list[tuple[int, str, int, str | None]]:
    """The active brokers; while most are fenced, all of them. librdkafka forgets every broker that is missing here,
    and looks for no other for minutes once the last one it knows is gone."""
    lives = node.addresses_for(call.connection)
    known = node.addresses_for(call.connection, with_fenced=True)
    return lives if 2 * len(lives) > len(known) else known


def _find(metadata: MetadataContext, call: Call, wanted: m.MetadataRequest.MetadataRequestTopic) -> Found:
    by_id = wanted.topic_id != NO_TOPIC_ID
    if by_id and wanted.name is not None:
        return _failed(wanted, ErrorCode.INVALID_REQUEST)
    if not demand_topic(metadata, call, Operation.DESCRIBE, wanted.name, wanted.topic_id):
        return _failed(wanted, SEEN.refusal)
    if by_id:
        topic = metadata.image.topics_by_id.get(wanted.topic_id)
        return topic or _failed(wanted, ErrorCode.UNKNOWN_TOPIC_ID)
    if wanted.name is None or topic_name_fault(wanted.name):
        return _failed(wanted, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return metadata.image.topics.get(wanted.name) or _failed(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _failed(
    wanted: m.MetadataRequest.MetadataRequestTopic, code: ErrorCode
) -> m.MetadataResponse.MetadataResponseTopic:
    return m.MetadataResponse.MetadataResponseTopic(
        error_code=code,
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[],
    )


def _topic(states: PartitionStates, topic: Topic) -> m.MetadataResponse.MetadataResponseTopic:
    return m.MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(states, topic, index, each) for index, each in enumerate(topic.partitions)],
    )


def _partition(
    states: PartitionStates, topic: Topic, index: int, partition: Partition
) -> m.MetadataResponse.MetadataResponsePartition:
    state = states.of(topic, index, partition)
    return m.MetadataResponse.MetadataResponsePartition(
        error_code=state.error,
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=state.offline_replicas,
    )


API = Api(
    key=3,
    name="Metadata",
    versions=(0, 13),
    handle=handle,
    lists="topics",
    at_once=SLICE_TOPICS,
    pieces=(way("topics", "topics", once=lambda each: (each.name, each.topic_id), items=PIECE_TOPICS),),
    rights=by_handler(SEEN, ON_TOPIC, ON_CLUSTER),
)
