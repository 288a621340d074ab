"""The state of a partition in responses: its leader, its offline replicas and its error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.metadata.leadership import NO_LEADER

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.metadata.image import Partition, Topic


GUESSED_FROM_SESSIONS: Final = 2
"""A leader that has lost the controller names itself for this many session timeouts, then guesses its successor.

A guess that comes too soon has to be taken back, and librdkafka, which sees one leader, another and the first again
within milliseconds, stays with the second. A client that is sent to a leader without writes asks again soon.

If most of the other nodes refuse connections, their processes may have ended, and only this node can be read from; or
a firewall rejects connections, and another node leads. This node then names the other node and itself in turn, each
for as many sessions.
"""


class PartitionState(NamedTuple):
    error: ErrorCode
    leader: int
    offline_replicas: list[int]


def likely_leader(
    node: NodeContext, metadata: MetadataContext, data: DataContext, topic: str, index: int, partition: Partition
) -> int:
    """The node to send clients to: the leader, as far as this node knows.

    A leader that may have been replaced long ago names the replica that a controller would elect in its place. Naming
    no leader would not help: the client would ask the same node again, and some clients know no other.
    """
    turn = metadata.lifecycle.sessions_missed // GUESSED_FROM_SESSIONS
    may_guess = turn > 0 if metadata.controller.others_may_lead else turn % 2 == 1
    here = data.partitions.get(topic, index) if may_guess else None
    if here is None or here.leader_role is None or not here.leader_role.is_doubtful:
        return partition.leader
    in_sync = (node_id for node_id in partition.replicas if node_id in partition.isr and node_id != node.node_id)
    return next(in_sync, NO_LEADER)


class PartitionStates:
    """The states of partitions, all computed with the same set of live brokers."""

    def __init__(self, node: NodeContext, metadata: MetadataContext, data: DataContext) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._alive = {each.id for each in list(metadata.image.brokers.values()) if not each.fenced}

    def of(self, topic: Topic, index: int, partition: Partition) -> PartitionState:
        offline = [node_id for node_id in partition.replicas if node_id not in self._alive]
        leader = likely_leader(self._node, self._metadata, self._data, topic.name, index, partition)
        if leader not in self._alive:
            # A partition with a single replica keeps its leader in the image while that broker is away.
            return PartitionState(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, offline)
        error = ErrorCode.NONE
        if leader == self._node.node_id and self._data.partitions.get(topic.name, index) is None:
            # The log is not open here: it has not been created yet, or the node needs repair.
            error = ErrorCode.LEADER_NOT_AVAILABLE
        return PartitionState(error, leader, offline)
