"""DescribeQuorum (55), versions 0-2: the leader of the metadata log and the log end offset of each voter.

1 fetch times · 2 error messages, directories and the voters' addresses. Only the leader knows the offsets of the
others: another node names the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.peers.controller_channel import forward_ms
from millpond.broker.quorum.host import ReplicaState
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.image import NO_DIRECTORY
from millpond.metadata.topics import METADATA_TOPIC
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

NODES_FROM = 2
UNKNOWN_OFFSET = -1
"""The high watermark of a leader that has not committed a record of its own epoch yet."""


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.DescribeQuorumRequest) -> Outcome:
    """Confirms leadership first: nodes rely on the high watermark, and that of a deposed leader is out of date."""
    if not metadata.controller.is_active:
        return _describe(node, metadata, call, request)
    confirmed = metadata.controller.confirmed(done(None)).recover(Refused, lambda _: None)
    return confirmed.map(lambda _: _describe(node, metadata, call, request))


def _describe(
    node: NodeContext, metadata: MetadataContext, call: Call, request: m.DescribeQuorumRequest
) -> m.DescribeQuorumResponse:
    response = m.DescribeQuorumResponse(
        topics=[
            m.DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(node, metadata, topic.topic_name, each.partition_index, call.version)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    if not call.is_own:
        _name_nodes(node, call, response)
    return response


def forward(
    node: NodeContext, metadata: MetadataContext, call: Call, request: m.DescribeQuorumRequest
) -> Later[m.DescribeQuorumResponse]:
    """The controller answers with the addresses of the listener this node used; a client gets those of its own
    listener."""
    asked: Later[m.DescribeQuorumResponse] = metadata.controller_channel.ask(
        request, call.version, forward_ms(request)
    )
    return asked.map(lambda response: _name_nodes(node, call, response))


def _name_nodes(node: NodeContext, call: Call, response: m.DescribeQuorumResponse) -> m.DescribeQuorumResponse:
    if call.version >= NODES_FROM:
        response.nodes = [
            m.DescribeQuorumResponse.Node(
                node_id=node_id,
                listeners=[
                    m.DescribeQuorumResponse.Listener(name=call.connection.link.listener, host=host, port=port)
                ],
            )
            for node_id, host, port, _ in node.addresses_for(call.connection)
        ]
    return response


def _partition(
    node: NodeContext, metadata: MetadataContext, topic: str, index: int, version: int
) -> m.DescribeQuorumResponse.PartitionData:
    if topic != METADATA_TOPIC or index != 0:
        return m.DescribeQuorumResponse.PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {METADATA_TOPIC}-0 has a quorum",
            current_voters=[],
            observers=[],
        )
    controller = metadata.controller
    if not controller.host.is_leader:
        return m.DescribeQuorumResponse.PartitionData(
            partition_index=index,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            error_message=f"node {node.node_id} does not lead the metadata",
            leader_id=controller.leader_id,
            leader_epoch=controller.leader_epoch,
            current_voters=[],
            observers=[],
        )
    now_ms = node.clock.wall_ms()
    voters = {voter.node_id for voter in controller.host.voters}
    named = {each.node_id: each.directory_id for each in controller.host.log.voters or ()}
    registered = {int(each.id): each.directory_id for each in metadata.image.brokers.values()}
    directories = registered | named if version >= NODES_FROM else {}
    states = [_state(each, now_ms, directories) for each in controller.host.states()]
    return m.DescribeQuorumResponse.PartitionData(
        partition_index=index,
        leader_id=controller.leader_id,
        leader_epoch=controller.leader_epoch,
        # What it knew as a follower may be less than what is committed.
        high_watermark=controller.committed_offset if controller.is_active else UNKNOWN_OFFSET,
        current_voters=[each for each in states if each.replica_id in voters],
        observers=[each for each in states if each.replica_id not in voters],
    )


def _state(
    state: ReplicaState, now_ms: int, directories: Mapping[int, UUID]
) -> m.DescribeQuorumResponse.ReplicaState:
    return m.DescribeQuorumResponse.ReplicaState(
        replica_id=state.replica.node_id,
        replica_directory_id=directories.get(state.replica.node_id, NO_DIRECTORY),
        log_end_offset=state.end_offset,
        last_fetch_timestamp=-1 if state.fetched_ago_ms is None else now_ms - state.fetched_ago_ms,
        last_caught_up_timestamp=-1 if state.caught_up_ago_ms is None else now_ms - state.caught_up_ago_ms,
    )


API = Api(
    key=55,
    name="DescribeQuorum",
    versions=(0, 2),
    handle=handle,
    at_controller=True,
    forward=forward,
    pieces=(way("topics.partitions", "topics.partitions"),),
    rights=on_cluster(Operation.DESCRIBE),
)
