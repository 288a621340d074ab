"""Plans: the same for the same seed, and over many seeds of every kind."""

from __future__ import annotations

from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.sim.records.plan import FAULTS, WORK_MS, make_plan


def test_a_seed_is_one_plan() -> None:
    assert make_plan(7) == make_plan(7)
    assert make_plan(7) != make_plan(8)


def test_every_plan_is_one_that_a_node_accepts() -> None:
    for seed in range(200):
        plan = make_plan(seed)
        layers = NodeLayers(node_settings(plan.node))
        for topic in plan.topics:
            layers.topic_settings(topic.configs)
        assert plan.producers
        assert all(0 <= fault.at_ms <= WORK_MS for fault in plan.faults)
        assert all(not producer.idempotent or producer.acks == -1 for producer in plan.producers)


def test_many_seeds_have_everything() -> None:
    plans = [make_plan(seed) for seed in range(200)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FAULTS)
    assert {producer.acks for plan in plans for producer in plan.producers} == {-1, 0, 1}
    assert {topic.is_compacted for plan in plans for topic in plan.topics} == {True, False}
    assert {topic.survives for plan in plans for topic in plan.topics} == {True, False}
    assert {plan.ends_with_power_cut for plan in plans} == {True, False}


def test_the_kinds_of_faults_can_be_chosen() -> None:
    assert {fault.kind for seed in range(9) for fault in make_plan(seed, ["kill"]).faults} == {"kill"}
