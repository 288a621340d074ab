"""A crew keeps a hand in every partition, whatever is done to it."""

from __future__ import annotations

from random import Random

from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.coordination.crew import Crew
from millpond.sim.coordination.plan import Churn, ChurnPlan, Sharing, Work, make_coordination_plan
from millpond.sim.history.groups import CoordinationHistory


def crew_of(pond, *churn: ChurnPlan, sharing: Sharing = Sharing.CLASSIC) -> tuple[Crew, CoordinationHistory]:
    plan = make_coordination_plan(1, (), work=Work.COPY, sharing=sharing)
    plan.crew = plan.crew[:1]
    plan.churn = list(churn)
    plan.orphan_at_ms = None
    history = CoordinationHistory()
    topic = GroupTopic("t", pond.partitions[0].topic_id, 2)
    return Crew(plan, pond.sim.clock, pond.client, history, topic, topic, Random(1), 1), history


def beginnings(history: CoordinationHistory) -> int:
    return sum(line.endswith("begins") for line in history.lines)


def test_who_crashes_leaves_or_is_replaced_has_a_successor(pond) -> None:
    for kind in (Churn.CRASH, Churn.LEAVE, Churn.REPLACE):
        for sharing in (Sharing.CLASSIC, Sharing.FIXED):
            crew, history = crew_of(pond, ChurnPlan(kind, 3_000, 0, 500), sharing=sharing)
            crew.start()
            pond.sim.run_for(2_900)
            assert beginnings(history) == 1
            pond.sim.run_for(3_000)
            assert beginnings(history) == 2, (kind, sharing)
            crew.stop()


def test_who_is_frozen_keeps_its_place(pond) -> None:
    crew, history = crew_of(pond, ChurnPlan(Churn.FREEZE, 2_000, 0, 500))
    crew.start()
    pond.sim.run_for(6_000)
    assert beginnings(history) == 1
    assert crew.counts == {"crew: freeze": 1}
    crew.stop()


def test_a_calm_crew_is_left_alone(pond) -> None:
    crew, history = crew_of(pond, ChurnPlan(Churn.CRASH, 2_000, 0, 500))
    crew.start()
    pond.sim.run_for(1_500)
    crew.calm_down()
    pond.sim.run_for(3_000)
    assert beginnings(history) == 1
    assert crew.counts == {}
    crew.stop()
