"""What clients are told of a partition: who leads it, who of its replicas is away, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millpond.base.errors import ErrorCode
from millpond.metadata.leadership import NO_LEADER

if TYPE_CHECKING:
    from millpond.broker.services import Services
    from millpond.metadata.image import Partition, Topic


class PartitionState(NamedTuple):
    error: ErrorCode
    leader: int
    offline_replicas: list[int]


def leads_in_doubt(broker: Services, topic: str, index: int) -> bool:
    """Whether this node is the last leader that it has heard of, and others may know better: clients should ask them."""
    if not broker.lifecycle.sessions_missed:
        return False
    partition = broker.partitions.get(topic, index)
    return partition is not None and partition.leading is not None and partition.leading.is_doubtful


class PartitionStates:
    """The states of partitions, all by the brokers that live at one moment."""

    def __init__(self, broker: Services) -> None:
        self._broker = broker
        self._alive = {each.id for each in list(broker.image.brokers.values()) if not each.fenced}

    def of(self, topic: Topic, index: int, partition: Partition) -> PartitionState:
        offline = [node_id for node_id in partition.replicas if node_id not in self._alive]
        if partition.leader not in self._alive:
            # That of a partition with one replica keeps its name while it is away.
            return PartitionState(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, offline)
        if leads_in_doubt(self._broker, topic.name, index):
            return PartitionState(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, offline)
        error = ErrorCode.NONE
        if partition.leader == self._broker.node_id and self._broker.partitions.get(topic.name, index) is None:
            # Its log is not open here: it is yet to be made, or the node to be repaired.
            error = ErrorCode.LEADER_NOT_AVAILABLE
        return PartitionState(error, partition.leader, offline)
