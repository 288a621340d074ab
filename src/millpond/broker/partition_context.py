"""What the partitions of a node share: who this node is, its clock, its disk, and what it knows of its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.base.ports import Clock
from millpond.broker.flusher import Flusher
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
    lag_ms_max: Callable[[], int]
    """How long a follower may be behind before it leaves the ISR."""
