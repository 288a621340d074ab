"""What a partition needs around it, for tests that construct one directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from millpond.base.ports import Clock, Disk
from millpond.broker.loop.turns import Turns
from millpond.broker.replication.partition_context import PartitionContext
from millpond.broker.storage.flusher import Flusher
from millpond.replication.leader import CanJoin, PartitionView
from millpond.sim.world.workers import SimWorkers

ME = 1


def partition_context(
    disk: Disk,
    clock: Clock,
    *,
    node_id: int = ME,
    flusher: Flusher | None = None,
    flush: Callable[[Any], None] = lambda _: None,
    can_join: CanJoin = lambda *_: True,
    on_isr_change: Callable[[UUID, int], None] = lambda *_: None,
    sessions_missed: Callable[[], int] = lambda: 0,
    has_lease: Callable[[], bool] = lambda: True,
    is_followed_by: Callable[[int], bool] = lambda _: True,
    resign_leadership: Callable[[UUID, int], None] = lambda *_: None,
) -> PartitionContext:
    """A node whose peers may all join the ISR."""
    return PartitionContext(
        node_id=node_id,
        clock=clock,
        turns=Turns(clock),
        flusher=flusher or Flusher(SimWorkers(clock), disk, "/data"),
        flush=flush,
        can_join=can_join,
        broker_epoch_of=lambda _: 1,
        has_room=lambda _: True,
        lag_ms_max=lambda: 10_000,
        on_isr_change=on_isr_change,
        sessions_missed=sessions_missed,
        has_lease=has_lease,
        is_followed_by=is_followed_by,
        resign_leadership=resign_leadership,
    )


def view(leader: int, epoch: int, partition_epoch: int, replicas: str = "1", isr: str = "1") -> PartitionView:
    """Replicas and ISR are written as `123`."""
    return PartitionView(leader, epoch, partition_epoch, tuple(map(int, replicas)), tuple(map(int, isr)))
