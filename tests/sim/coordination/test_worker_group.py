"""A group of workers keeps one alive in every slot, whatever happens to it."""

from __future__ import annotations

from random import Random

from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.coordination.plan import Churn, ChurnPlan, Sharing, Work, make_coordination_plan
from millpond.sim.coordination.worker_group import WorkerGroup
from millpond.sim.history.groups import CoordinationHistory


def worker_group(
    one_node, *churn: ChurnPlan, sharing: Sharing = Sharing.CLASSIC
) -> tuple[WorkerGroup, CoordinationHistory]:
    plan = make_coordination_plan(1, (), work=Work.COPY, sharing=sharing)
    plan.workers = plan.workers[:1]
    plan.churn = list(churn)
    plan.orphan_at_ms = None
    history = CoordinationHistory()
    topic = GroupTopic("t", one_node.partitions[0].topic_id, 2)
    return WorkerGroup(plan, one_node.sim.clock, one_node.client, history, topic, topic, Random(1), 1), history


def starts(history: CoordinationHistory) -> int:
    return sum(line.endswith("starts") for line in history.lines)


def test_a_worker_that_crashes_leaves_or_is_replaced_has_a_successor(one_node) -> None:
    for kind in (Churn.CRASH, Churn.LEAVE, Churn.REPLACE):
        for sharing in (Sharing.CLASSIC, Sharing.FIXED):
            workers, history = worker_group(one_node, ChurnPlan(kind, 3_000, 0, 500), sharing=sharing)
            workers.start()
            one_node.sim.run_for(2_900)
            assert starts(history) == 1
            one_node.sim.run_for(3_000)
            assert starts(history) == 2, (kind, sharing)
            workers.stop()


def test_a_frozen_worker_keeps_its_slot(one_node) -> None:
    workers, history = worker_group(one_node, ChurnPlan(Churn.FREEZE, 2_000, 0, 500))
    workers.start()
    one_node.sim.run_for(6_000)
    assert starts(history) == 1
    assert workers.counts == {"churn: freeze": 1}
    workers.stop()


def test_calm_workers_are_not_disturbed(one_node) -> None:
    workers, history = worker_group(one_node, ChurnPlan(Churn.CRASH, 2_000, 0, 500))
    workers.start()
    one_node.sim.run_for(1_500)
    workers.calm_down()
    one_node.sim.run_for(3_000)
    assert starts(history) == 1
    assert workers.counts == {}
    workers.stop()
