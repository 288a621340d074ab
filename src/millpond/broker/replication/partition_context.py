"""What the partitions of a node share: the node's identity, its clock, its disk and the state of its peers."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from millpond.base.ports import Clock
from millpond.base.values import dataclass
from millpond.broker.loop.turns import Turns
from millpond.broker.storage.flusher import Flusher
from millpond.log.partition_log import PartitionLog
from millpond.replication.leader import CanJoin


@dataclass(frozen=True, slots=True)
class PartitionContext:
    node_id: int
    clock: Clock
    turns: Turns
    """For the partitions that very many reads wait for."""
    flusher: Flusher
    flush: Callable[[PartitionLog], None]
    """Sync a log in the background."""
    can_join: CanJoin
    broker_epoch_of: Callable[[int], int]
    """The broker epoch in the metadata; -1 for an unknown node."""
    has_room: Callable[[int], bool]
    """Whether a node has free disk space, according to the controller."""
    lag_ms_max: Callable[[], int]
    """How long a follower may lag before it leaves the ISR."""
    on_isr_change: Callable[[UUID, int], None]
    """Called with the topic ID and index of a partition led here whose ISR may need to change."""
    sessions_missed: Callable[[], int]
    """For how many session timeouts heartbeats have failed, if other nodes may lead in its place by now."""
    has_lease: Callable[[], bool]
    """Whether it is certain that no other node leads this node's partitions."""
    is_followed_by: Callable[[int], bool]
    """Whether a node has fetched from this one recently."""
    resign_leadership: Callable[[UUID, int], None]
    """Called with the topic ID and index of a partition that this node can no longer write: another should lead."""
