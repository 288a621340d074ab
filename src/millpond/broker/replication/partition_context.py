"""What the partitions of a node share: who this node is, its clock, its disk, and what it knows of its peers."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from millpond.base.ports import Clock
from millpond.base.values import dataclass
from millpond.broker.storage.flusher import Flusher
from millpond.log.partition_log import PartitionLog
from millpond.replication.leader import CanJoin


@dataclass(frozen=True, slots=True)
class PartitionContext:
    node_id: int
    clock: Clock
    flusher: Flusher
    flush: Callable[[PartitionLog], None]
    """Force a log to disk though nobody waits for it."""
    can_join: CanJoin
    broker_epoch_of: Callable[[int], int]
    """As the metadata knows it; -1 for a node that it does not know."""
    has_room: Callable[[int], bool]
    """Whether a node can write what it fetches, as far as the controller knows."""
    lag_ms_max: Callable[[], int]
    """How long a follower may be behind before it leaves the ISR."""
    on_isr_change: Callable[[UUID, int], None]
    """Topic id and index of a partition that this node leads: there may be another ISR to ask for."""
    sessions_missed: Callable[[], int]
    """For the time of how many sessions this node has not been heard, if others may lead in its place by now."""
    has_lease: Callable[[], bool]
    """Whether it is certain that nobody else leads what this node leads."""
    is_followed_by: Callable[[int], bool]
    """Whether a node has fetched from this one in the last moments."""
    give_away: Callable[[UUID, int], None]
    """The same of a partition that this node cannot write any more: another one should lead it."""
