"""A cluster in which only disks fill up: writes continue while the other nodes have space.

With one full disk and enough in-sync replicas on the other nodes, every partition has a leader that can write, and no
write stays uncommitted, except for the time that the controller takes to react.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from millpond.config.node import BROKER_HEARTBEAT_INTERVAL_MS, REPLICA_LAG_MS_MAX
from millpond.config.topic import MIN_INSYNC_REPLICAS
from millpond.sim.cluster.checkers import Inspector
from millpond.sim.cluster.plan import Plan, make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.sim.world.disk import BOUNDLESS

if TYPE_CHECKING:
    from uuid import UUID

    from millpond.metadata.image import Image
    from millpond.metadata.image import Partition as ImagePartition
    from millpond.sim.cluster.cluster import SimCluster
    from millpond.sim.cluster.fault_injector import FaultInjector

FULL_DISK = "full disk"
STALLED = "writes stall while one disk is full"
LATE_MS = 1_000
"""Besides the time that a leader takes to hand over its partitions, or a follower to leave the ISR."""


def make_full_disk_plan(seed: int | str, nodes: int | None = None) -> Plan:
    """Like any other plan, with a few long faults, all of one kind."""
    random = Random(f"full disk plan {seed}")
    plan = make_plan(f"full disk {seed}", (FULL_DISK,), nodes or random.choice((3, 3, 5)))
    faults = [
        replace(fault, at_ms=random.randrange(4_000), lasts_ms=random.choice((5_000, 8_000)))
        for fault in plan.faults[: random.choice((1, 1, 2))]
    ]
    producers = [replace(each, batches=60, pace_ms=100) for each in plan.producers]
    return replace(plan, faults=tuple(faults), producers=tuple(producers), admin_operations=0)


class FullDiskInspector(Inspector):
    def __init__(self, cluster: SimCluster, injector: FaultInjector) -> None:
        super().__init__(cluster, injector)
        self._stalled: dict[tuple[UUID, int], tuple[int, int]] = {}
        """Since when a partition has stalled, and at which high watermark."""

    def _findings(self) -> Iterator[str]:
        yield from super()._findings()
        yield from self._look_at_writes()

    def _look_at_writes(self) -> Iterator[str]:
        before, self._stalled = self._stalled, {}
        image = self.cluster.image
        full = [node_id for node_id, node in self.cluster.nodes.items() if node.disk.capacity_bytes < BOUNDLESS]
        if image is None or len(full) != 1 or len(dict(self.cluster.running())) < len(self.cluster.nodes):
            return
        now_ms = self.cluster.sim.clock.now_ms
        for topic in image.topics.values():
            settings = self.cluster.nodes[full[0]].broker.layers.topic_settings(image.topic_config(topic.name))
            for index, partition in enumerate(topic.partitions):
                in_sync = [each for each in partition.isr if each not in full]
                if len(in_sync) < settings[MIN_INSYNC_REPLICAS]:
                    continue
                committed = self._committed_if_stalled(image, topic.id, index, partition)
                if committed is None:
                    continue
                since_ms, was = before.get((topic.id, index), (now_ms, committed))
                since_ms = since_ms if was == committed else now_ms
                self._stalled[topic.id, index] = since_ms, committed
                if now_ms - since_ms > self._patience_ms(full[0]):
                    yield f"{STALLED}: {topic.name}-{index} at {committed}, node {full[0]} is full, {partition}"

    def _committed_if_stalled(
        self, image: Image, topic_id: UUID, index: int, partition: ImagePartition
    ) -> int | None:
        """The high watermark of a partition that cannot be written or has uncommitted writes; else None."""
        if not image.is_active(partition.leader):
            return -1
        node = self.cluster.nodes[partition.leader]
        replica = node.broker.partitions.by_id(topic_id, index)
        if replica is None or node.broker.store.files.room.is_short:
            return -1
        return replica.committed_offset if replica.log.end_offset > replica.committed_offset else None

    def _patience_ms(self, node_id: int) -> int:
        settings = self.cluster.nodes[node_id].broker.settings
        return 2 * settings[BROKER_HEARTBEAT_INTERVAL_MS] + settings[REPLICA_LAG_MS_MAX] + LATE_MS


class FullDiskScenario(Scenario):
    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan or make_full_disk_plan(seed))
        self.inspector = FullDiskInspector(self.cluster, self.injector)
