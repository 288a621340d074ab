"""Plans of moves between the look at them and their run."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from millpond.admin.errors import Refused
from millpond.admin.placement import PartitionPlacement, Placement
from millpond.base.ids import TopicPartition
from millpond.console import move_plans
from millpond.console.move_plans import KEPT_MAX, MoveOrder, MovePlan, MovePlans, make_plan
from millpond.remote.cluster import Cluster

MB = 1_000_000
BALANCE = MoveOrder("balance")


class Written:
    """A cluster of three nodes, of which two hold all partitions. They grow."""

    def __init__(self) -> None:
        self.sizes = [100 * MB] * 8
        self.replicas = {index: (1 + index % 2,) for index in range(8)}

    @property
    def placement(self) -> Placement:
        held = {
            TopicPartition("a", index): PartitionPlacement(nodes, nodes, nodes[0], self.sizes[index])
            for index, nodes in self.replicas.items()
        }
        return Placement(dict.fromkeys((1, 2, 3), ""), held)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    cluster = Written()
    monkeypatch.setattr(move_plans, "read_placement", lambda _: cluster.placement)
    return cluster


CLUSTER = cast(Cluster, None)


def shown(plans: MovePlans) -> MovePlan:
    plan = make_plan(CLUSTER, BALANCE)
    assert plan.moves
    plans.keep(BALANCE, plan)
    return plan


def test_a_plan_runs_as_it_was_shown_whatever_is_written_meanwhile(written: Written) -> None:
    plans = MovePlans()
    plan = shown(plans)
    for grown in range(8):
        # Another partition is the smallest each time, so that a plan of its own would move others first, or others.
        written.sizes = [100 * MB + 7 * MB * ((index + grown) % 8) for index in range(8)]
        assert plans.agreed(CLUSTER, BALANCE, plan.mark).moves == plan.moves
    written.sizes = [104 * MB, *[100 * MB] * 7]
    assert make_plan(CLUSTER, BALANCE).mark != plan.mark, "one that is made now moves another partition"
    assert plans.agreed(CLUSTER, BALANCE, plan.mark).moves == plan.moves


def test_the_order_of_its_moves_does_not_matter(written: Written) -> None:
    plan = make_plan(CLUSTER, BALANCE)
    assert replace(plan, moves=[*reversed(plan.moves)]).mark == plan.mark
    assert replace(plan, moves=plan.moves[1:]).mark != plan.mark
    assert replace(plan, to_elect=[TopicPartition("b", 0)]).mark != plan.mark


def test_a_plan_that_does_not_fit_any_more_moves_nothing(written: Written) -> None:
    plans = MovePlans()
    plan = shown(plans)
    written.replicas[plan.moves[0].partition.partition] = (3,)
    with pytest.raises(Refused, match="for 1 partition: review it again"):
        plans.agreed(CLUSTER, BALANCE, plan.mark)


def test_a_plan_that_is_not_known_any_more_runs_if_it_would_be_the_same(written: Written) -> None:
    plans = MovePlans()
    plan = shown(plans)
    for number in range(KEPT_MAX):
        plans.keep(MoveOrder("drain", nodes=(number,)), plan)
    assert plans.agreed(CLUSTER, BALANCE, plan.mark).moves == plan.moves
    # It was shown for something else.
    with pytest.raises(Refused, match="has changed"):
        plans.agreed(CLUSTER, BALANCE, "another mark")
    written.replicas[7] = (3,)
    with pytest.raises(Refused, match="has changed"):
        plans.agreed(CLUSTER, BALANCE, plan.mark)
