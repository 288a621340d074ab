"""Plans of moves that were shown. Exactly the plan that was shown is run, or none.

A plan depends on the sizes of partitions, which change while records are written: a moment later it may differ. So
plans that were shown are kept for a while under their mark, and run if they still fit: every partition is where it
was, and can go to its target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from millpond.admin.balance import plan_balance, plan_leaders, unled
from millpond.admin.drain import find_member, plan_drain_of
from millpond.admin.errors import Refused
from millpond.admin.members import describe_members
from millpond.admin.moves import read_placement
from millpond.admin.placement import Placement, PlannedMove, outdated, plan_factor, plan_move
from millpond.admin.topics import find_topic
from millpond.base.ids import TopicPartition
from millpond.base.words import counted
from millpond.remote.cluster import Cluster

KEPT_MAX: Final = 8
"""A plan of ten thousand partitions takes some megabytes."""


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """A request for a plan."""

    what: str
    """drain, balance, leaders, move or factor."""
    nodes: tuple[int, ...] = ()
    topic: str = ""
    partitions: tuple[int, ...] = ()
    factor: int = 0

    def __str__(self) -> str:
        match self.what:
            case "drain":
                return f"Drain of node {', '.join(map(str, self.nodes))}"
            case "move" | "factor":
                return f"Move of {self.topic}"
        return "Balance of leaders" if self.what == "leaders" else "Balance"


@dataclass(frozen=True, slots=True)
class MovePlan:
    placement: Placement
    moves: Sequence[PlannedMove]
    to_elect: Sequence[TopicPartition] = ()

    @property
    def mark(self) -> str:
        """Equal for plans with the same moves, in any order."""
        moves = sorted((each.partition, each.before, each.target) for each in self.moves)
        return hashlib.sha256(repr((moves, sorted(self.to_elect))).encode()).hexdigest()[:24]


def make_plan(cluster: Cluster, order: MoveOrder) -> MovePlan:
    match order.what:
        case "drain":
            members = describe_members(cluster)
            for node_id in order.nodes:
                find_member(members, node_id)
            return MovePlan(read_placement(cluster), plan_drain_of(cluster, order.nodes))
        case "balance":
            placement = read_placement(cluster)
            moves = plan_balance(placement)
            return MovePlan(placement, moves, unled(placement, moves))
        case "leaders":
            placement = read_placement(cluster)
            moves = plan_leaders(placement)
            return MovePlan(placement, moves, unled(placement, moves))
        case "move":
            find_topic(cluster, order.topic)
            placement = read_placement(cluster)
            return MovePlan(placement, plan_move(placement, order.topic, order.partitions, order.nodes))
    find_topic(cluster, order.topic)
    placement = read_placement(cluster)
    return MovePlan(placement, plan_factor(placement, [order.topic], order.factor))


class MovePlans:
    """The plans that were shown last."""

    def __init__(self) -> None:
        self._kept: dict[tuple[MoveOrder, str], MovePlan] = {}

    def keep(self, order: MoveOrder, plan: MovePlan) -> None:
        self._kept.pop((order, plan.mark), None)
        while len(self._kept) >= KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        moved = {each.partition for each in plan.moves}
        held = {each: placement for each, placement in plan.placement.partitions.items() if each in moved}
        self._kept[order, plan.mark] = replace(plan, placement=replace(plan.placement, partitions=held))

    def agreed(self, cluster: Cluster, order: MoveOrder, mark: str) -> MovePlan:
        """The plan that was shown under this mark; raises Refused if it is unknown, or no longer fits."""
        kept = self._kept.get((order, mark))
        if kept is None:
            # After a restart, or many plans later: a new plan may well be the same.
            plan = make_plan(cluster, order)
            if plan.mark != mark:
                raise Refused("The plan has changed: review it again. Nothing was moved")
            return plan
        now = read_placement(cluster)
        if others := outdated(kept.moves, kept.placement, now):
            named = counted(len(others), "partition")
            raise Refused(f"The plan no longer fits for {named}: review it again. Nothing was moved")
        return replace(kept, placement=now)
