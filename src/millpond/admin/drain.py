"""Drains nodes: the plan, the mark that keeps new replicas away, and what is left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from millpond.admin.balance import plan_drain, stuck_on_drained
from millpond.admin.errors import Refused
from millpond.admin.members import Member, Members, set_drained
from millpond.admin.moves import read_placement
from millpond.admin.placement import PartitionPlacement, PlannedMove
from millpond.base.ids import TopicPartition
from millpond.base.words import counted
from millpond.remote.cluster import Cluster

LOOKS: Final = 5
LOOK_SECONDS: Final = 0.2
NAMED_MAX: Final = 5


def find_member(members: Members, node_id: int) -> Member:
    member = members.get(node_id)
    if member is None:
        numbers = ", ".join(str(each.node_id) for each in members.nodes)
        raise Refused(f"There is no node {node_id}; the cluster has {numbers}.")
    return member


def plan_drain_of(cluster: Cluster, node_ids: Sequence[int]) -> list[PlannedMove]:
    """The moves that empty these nodes; raises Refused if a partition cannot go anywhere else."""
    placement = read_placement(cluster)
    placement = replace(placement, drained=placement.drained | {*node_ids})
    moves = plan_drain(placement)
    stuck = stuck_on_drained(placement, moves)
    for node_id in node_ids:
        if mine := [each for each in stuck if node_id in placement.partitions[each].target]:
            raise _stuck(mine, node_id)
    return moves


def mark_drained(cluster: Cluster, node_ids: Sequence[int], is_drained: bool) -> None:
    for node_id in node_ids:
        set_drained(cluster, node_id, is_drained)


def still_held(cluster: Cluster, node_ids: Sequence[int]) -> dict[TopicPartition, PartitionPlacement]:
    """The partitions that these nodes hold or will get; the answering node may be slightly behind the controller."""
    for _ in range(LOOKS):
        held = {
            each: partition
            for each, partition in read_placement(cluster).partitions.items()
            if {*node_ids} & {*partition.target}
        }
        if not held:
            break
        time.sleep(LOOK_SECONDS)
    return held


def _stuck(partitions: list[TopicPartition], node_id: int) -> Refused:
    topic = partitions[0].topic
    named = ", ".join(each.folder for each in partitions[:NAMED_MAX]) + (" …" if len(partitions) > NAMED_MAX else "")
    return Refused(
        f"Node {node_id} cannot be drained: {counted(len(partitions), 'partition')} ({named}) cannot go "
        "anywhere else now. If there are too few nodes, add one (`millpond up --join HOST:PORT`), or "
        f"use fewer replicas (`millpond topic replicas {topic} --factor N`). If a replica is behind, wait for "
        f"it, or drain its node too if it is dead (`millpond node drain {node_id} M`)."
    )
