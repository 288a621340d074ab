"""What clients are told of a partition: who leads it, who of its replicas is away, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.metadata.leadership import NO_LEADER

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.metadata.image import Partition, Topic


GUESSED_FROM_SESSIONS: Final = 2
"""After so many sessions without being heard a node guesses who leads in its place; before, it goes on naming itself.

A guess that comes too soon is taken back: librdkafka, told of one leader, another and the first again within
milliseconds, stays with the second. Who is sent to a leader that takes no writes asks again soon.

Where most of the other nodes refuse connections, their processes may have ended, and this node is the only one that
can be read from; or a firewall rejects, and another one leads. It then names the other one and itself in turn, each
for as many sessions.
"""


class PartitionState(NamedTuple):
    error: ErrorCode
    leader: int
    offline_replicas: list[int]


def likely_leader(
    node: NodeContext, metadata: MetadataContext, data: DataContext, topic: str, index: int, partition: Partition
) -> int:
    """Whom to send clients to: the leader, as far as this node knows.

    A leader that may have been replaced for long names the one whom a controller elects in its place. Who hears of no
    leader asks the same node again, and some clients know only one that they are connected to.
    """
    turn = metadata.lifecycle.sessions_missed // GUESSED_FROM_SESSIONS
    may_guess = turn > 0 if metadata.controller.others_may_lead else turn % 2 == 1
    here = data.partitions.get(topic, index) if may_guess else None
    if here is None or here.leading is None or not here.leading.is_doubtful:
        return partition.leader
    in_sync = (node_id for node_id in partition.replicas if node_id in partition.isr and node_id != node.node_id)
    return next(in_sync, NO_LEADER)


class PartitionStates:
    """The states of partitions, all by the brokers that live at one moment."""

    def __init__(self, node: NodeContext, metadata: MetadataContext, data: DataContext) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._alive = {each.id for each in list(metadata.image.brokers.values()) if not each.fenced}

    def of(self, topic: Topic, index: int, partition: Partition) -> PartitionState:
        offline = [node_id for node_id in partition.replicas if node_id not in self._alive]
        leader = likely_leader(self._node, self._metadata, self._data, topic.name, index, partition)
        if leader not in self._alive:
            # That of a partition with one replica keeps its name while it is away.
            return PartitionState(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, offline)
        error = ErrorCode.NONE
        if leader == self._node.node_id and self._data.partitions.get(topic.name, index) is None:
            # Its log is not open here: it is yet to be made, or the node to be repaired.
            error = ErrorCode.LEADER_NOT_AVAILABLE
        return PartitionState(error, leader, offline)
