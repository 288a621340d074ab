"""Fetch (1), versions 4-18: read record batches, waiting for new ones if there are too few.

4 isolation level · 5 log start offset · 7 fetch sessions · 9 leader epoch check · 10 zstd · 11 rack · 12 flexible,
diverging epoch · 13 topic ids · 15 replica state · 16 node endpoints · 17 directory id · 18 high watermark.
A follower, which sends its replica id and from version 15 its broker epoch, reads to the end of the log, and its
fetch offset shows the leader how far it has replicated (`fetch.replica_sessions`). A consumer reads what is committed
(`fetch.consumer_fetch`). The leader redirects a consumer that names its rack to a replica in that rack (KIP-392),
which serves what it knows to be committed; a replica that is out of sync or behind answers OFFSET_NOT_AVAILABLE, and
the client returns to the leader.

Records are sent as file ranges, straight from the page cache; a worker first reads ranges that are not in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import OF_NODES, Need, Rights, Screened, demand_node, demand_topic
from millpond.broker.fetch.consumer_fetch import AT_ONCE_MAX, ConsumerFetch
from millpond.broker.fetch.consumer_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    TOPIC_IDS_FROM,
    FetchContext,
    RequestedPartition,
    RequestedPartitions,
)
from millpond.broker.fetch.partition_reads import TopicResponses, failed_partition
from millpond.broker.fetch.short_path import serve_short
from millpond.broker.quorum.wire import is_metadata_fetch
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.responses.current_leader import MOVED, current_leader, endpoints
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import CHARACTERS_PER_ITEM
from millpond.wire import messages as m
from millpond.wire.kernel import short_fetch

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.requests.connection import Connection

ITEMS_MAX: Final = 30_000
"""How many topics and partitions one request may name: all are looked up before the first is read."""

ON_TOPIC = Need(Operation.READ, AclResource.TOPIC)
CURRENT_LEADER_FROM, REPLICA_STATE_FROM, NODE_ENDPOINTS_FROM = 12, 15, 16


def prepare(data: DataContext, call: Call, request: m.FetchRequest) -> Later[Any] | None:
    """Look up thousands of partitions in steps before the request is handled."""
    if _replica_id(call, request) >= 0 or is_metadata_fetch(request, call.version):
        return None

    def keep(requested: RequestedPartitions) -> None:
        call.requested_partitions = requested

    owner = call.principal if call.access.is_on else None
    steps = data.fetch_source.sessions.requested_in_steps(request, owner)
    return call.connection.run_in_turns(steps).map(keep)


def handle(
    node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: m.FetchRequest
) -> Outcome:
    if is_metadata_fetch(request, call.version):
        return metadata.controller.host.answer(request, call.connection.number, call.connection.link.listener)
    replica_id = _replica_id(call, request)
    if replica_id >= 0:
        broker_epoch = request.replica_state.replica_epoch if call.version >= REPLICA_STATE_FROM else -1
        return data.replica_sessions.fetch(request, replica_id, broker_epoch, call.connection.run_in_turns)
    now_ms = node.clock.monotonic_ms()
    quota = None if call.meter is None else call.meter.consumer
    is_throttled = quota is not None and quota.wait_ms(now_ms) > 0
    if is_throttled and request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        # Without a session: a throttled client starts over anyway.
        return m.FetchResponse(session_id=NO_SESSION, responses=[])
    owner = call.principal if call.access.is_on else None
    try:
        context = data.fetch_source.sessions.context(request, call.version, now_ms, owner, call.requested_partitions)
    except Refused as refusal:
        return m.FetchResponse(error_code=refusal.code, session_id=NO_SESSION, responses=[])
    if is_throttled:
        return m.FetchResponse(session_id=context.session_id, responses=[])
    return _consumer_fetch(node, metadata, data, call, request, context).begin()


def short(
    node: NodeContext, metadata: MetadataContext, data: DataContext, connection: Connection, frame: memoryview
) -> bool:
    request = short_fetch(frame)
    if request is None:
        return False
    return serve_short(data.fetch_source, connection, request, _answer_now, (node, metadata, data))


def _answer_now(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.FetchRequest,
    context: FetchContext,
) -> Outcome:
    return _consumer_fetch(node, metadata, data, call, request, context).answer_now()


def _consumer_fetch(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.FetchRequest,
    context: FetchContext,
) -> ConsumerFetch:
    responder = _Responder(node, metadata, data, call, context.session_id)
    return ConsumerFetch(data.fetch_source, call, request, context, responder)


def _replica_id(call: Call, request: m.FetchRequest) -> int:
    return request.replica_state.replica_id if call.version >= REPLICA_STATE_FROM else request.replica_id


class _Responder:
    """See `consumer_fetch.Responder`."""

    __slots__ = ("_by_id", "_call", "_data", "_leaders", "_metadata", "_node", "_session_id")

    def __init__(
        self, node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, session_id: int
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._call = call
        self._session_id = session_id
        self._by_id = call.version >= TOPIC_IDS_FROM
        self._leaders: set[int] = set()
        """Nodes that the client should ask instead."""

    def may_read(self, requested: RequestedPartition, partition: Partition | None) -> bool:
        call = self._call
        if partition is not None:
            topic = partition.name.topic
            return call.access.may_often(call.connection, Operation.READ, topic) or call.demand(*ON_TOPIC, topic)
        name, topic_id, _ = requested.key
        return demand_topic(self._metadata, call, Operation.READ, name, topic_id if self._by_id else NO_TOPIC_ID)

    def failed(
        self, requested: RequestedPartition, code: ErrorCode, partition: Partition | None = None
    ) -> m.FetchResponse.PartitionData:
        name, topic_id, index = requested.key
        failed = failed_partition(index, code, partition)
        version = self._call.version
        if code not in MOVED or version < CURRENT_LEADER_FROM:
            return failed
        leader = current_leader(self._node, self._metadata, self._data, topic_id if self._by_id else name, index)
        if leader is not None:
            if version >= NODE_ENDPOINTS_FROM:
                self._leaders.add(leader.node_id)
            failed.current_leader = m.FetchResponse.LeaderIdAndEpoch(
                leader_id=leader.node_id, leader_epoch=leader.leader_epoch
            )
        return failed

    def response(self, topics: TopicResponses) -> m.FetchResponse:
        return m.FetchResponse(
            session_id=self._session_id,
            responses=list(topics.values()),
            node_endpoints=[
                m.FetchResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in endpoints(self._node, self._call.connection, self._leaders)
            ],
        )


def _screen(metadata: MetadataContext, call: Call, request: m.FetchRequest) -> Screened | None:
    """Only nodes may fetch as a replica, or the metadata. The rights of consumers are checked at each read."""
    is_metadata = is_metadata_fetch(request, call.version)
    if (not is_metadata and _replica_id(call, request) < 0) or demand_node(call):
        return None
    if is_metadata or sum(len(topic.partitions) for topic in request.topics) > AT_ONCE_MAX:
        # A client that sets a replica id by mistake does not name that many.
        return Screened(None, m.FetchResponse(error_code=OF_NODES.refusal, responses=[]))
    return Screened(None, m.FetchResponse(responses=[_refuse_topic(topic) for topic in request.topics]))


def _refuse_topic(topic: m.FetchRequest.FetchTopic) -> m.FetchResponse.FetchableTopicResponse:
    return m.FetchResponse.FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=[failed_partition(each.partition, ON_TOPIC.refusal) for each in topic.partitions],
    )


def _is_large(response: m.FetchResponse) -> bool:
    """Many partitions, or long names."""
    topics = response.responses
    return sum(len(topic.partitions) + len(topic.topic) // CHARACTERS_PER_ITEM for topic in topics) > AT_ONCE_MAX


API = Api(
    key=1,
    name="Fetch",
    versions=(4, 18),
    handle=handle,
    short=short,
    lists="topics",
    prepare=prepare,
    waits=True,
    is_large=_is_large,
    has_ranges=True,
    whole_max=ITEMS_MAX,
    rights=Rights((ON_TOPIC, OF_NODES), _screen),
)
