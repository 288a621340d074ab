"""A cluster in which partitions move between nodes under faults.

An administrator keeps reassigning and cancelling, without waiting for earlier moves. After healing every move must
complete by itself, and a node in the ISR must have its replica at all times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.cluster.checkers import NOT_HEALED, Inspector, Replica
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.fault_injector import FaultInjector
from millpond.sim.cluster.plan import FAULTS, WORK_MS, Plan, make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.wire import messages as m

REPLICA_GONE = "a replica that the metadata relies on is missing"
GONE_LOOKS = 20
"""A replica that was just deleted and is created again waits for its old files to be removed."""

PAUSES_MS = (50, 300, 1_000)
CALL_OFF_SHARE = 0.15


def make_moves_plan(seed: int | str, kinds: Sequence[str] = FAULTS) -> Plan:
    """Like any other plan, with nodes to spare."""
    nodes = Random(f"moves plan {seed}").choice((4, 5))
    return replace(make_plan(f"moves {seed}", kinds, nodes), admin_operations=0)


class MoveInspector(Inspector):
    def __init__(self, cluster: SimCluster, injector: FaultInjector) -> None:
        super().__init__(cluster, injector)
        self._gone: dict[Replica, int] = {}
        """For how many checks in a row a replica was missing."""

    def _findings(self) -> Iterator[str]:
        yield from super()._findings()
        gone: dict[Replica, int] = {}
        for node_id, node in self.cluster.running():
            for topic, index, partition in node.broker.image.partitions_of(node_id):
                seen = self._seen.get((node_id, topic.id, index))
                was_open = seen is not None and seen.incarnation == node.incarnation
                if was_open and node_id in partition.isr and node.broker.partitions.by_id(topic.id, index) is None:
                    key = (node_id, topic.id, index)
                    gone[key] = self._gone.get(key, 0) + 1
                    if gone[key] == GONE_LOOKS:
                        yield f"{REPLICA_GONE}: {topic.name}-{index} at node {node_id}"
        self._gone = gone

    def check_healed(self) -> Iterator[str]:
        yield from super().check_healed()
        for topic, index, partition in self.cluster.image.moving() if self.cluster.image else ():
            yield f"{NOT_HEALED}: {topic.name}-{index} is still moving: {partition}"


class MovesScenario(Scenario):
    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan or make_moves_plan(seed))
        self.inspector = MoveInspector(self.cluster, self.injector)
        self.moves_begun = self.moves_ended = 0
        self._mover = self._client("mover")
        self._dice = Random(f"mover {seed}")
        self._pause_ms = self._dice.choice(PAUSES_MS)
        self._was_moving: set[tuple[UUID, int]] = set()
        self._until_ms = 0

    def _start_clients(self) -> None:
        super()._start_clients()
        self._until_ms = self.sim.clock.now_ms + WORK_MS
        self._move()

    def _look(self) -> None:
        super()._look()
        image = self.cluster.image
        if image is not None:
            moving = {(topic.id, index) for topic, index, _ in image.moving()}
            self.moves_ended += len(self._was_moving - moving)
            self._was_moving = moving

    def _move(self) -> None:
        """Reassign some partition, and soon the next."""
        dice = self._dice
        partition = dice.choice(self.partitions)
        target = dice.sample(list(self.cluster.nodes), dice.choice((2, 3, 3)))
        replicas = None if dice.random() < CALL_OFF_SHARE else target
        kind = m.AlterPartitionReassignmentsRequest
        wanted = kind.ReassignablePartition(partition_index=partition.partition_index, replicas=replicas)
        topic = kind.ReassignableTopic(name=partition.topic, partitions=[wanted])

        def heard(reply: m.AlterPartitionReassignmentsResponse | None) -> None:
            code = reply.error_code or reply.responses[0].partitions[0].error_code if reply is not None else None
            if code == ErrorCode.NONE:
                self.moves_begun += 1
            outcome = "no answer" if code is None else ErrorCode(code).name
            self.cluster.note(f"{partition} to {replicas or 'where it was'}: {outcome}")

        self._mover.send(kind(topics=[topic], timeout_ms=1_000), 1, heard)
        if self.sim.clock.now_ms < self._until_ms:
            self.sim.clock.call_later(dice.randint(1, 2 * self._pause_ms), self._move)
