"""What an acknowledged record survives by `flush.ack`, as docs/decisions/0009 has it, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.sim.cluster.plan import FaultPlan, ProducerPlan, TopicPlan, make_plan
from millpond.sim.cluster.scenario import Scenario


def violations(seed: int, flush_ack: str, fault: str) -> list[str]:
    """What goes wrong when this happens twice while records are written to three replicas."""
    configs = {"flush.ack": flush_ack, "min.insync.replicas": "2", "segment.bytes": str(1 << 20)}
    plan = replace(
        make_plan(seed, nodes=3),
        topics=(TopicPlan("topic0", 2, 3, configs),),
        producers=(ProducerPlan(12, 1, 40, 50),),
        faults=tuple(FaultPlan(fault, at_ms, 500, seed + at_ms) for at_ms in (2_500, 5_000)),
    )
    scenario = Scenario(seed, plan)
    # Whether records that are owed may be lost is what is asked here.
    scenario.injector._is_synced_first = True
    outcome = scenario.run()
    assert outcome.records["acknowledged"] > 20, "there must be something to lose"
    return outcome.violations


@pytest.mark.parametrize(
    ("flush_ack", "fault"),
    [
        ("never", "all killed"),
        ("auto", "all killed"),
        ("auto", "power cut"),
        ("always", "power cut"),
        ("always", "blackout"),
    ],
)
def test_what_acknowledged_records_survive(flush_ack: str, fault: str) -> None:
    assert not violations(3, flush_ack, fault)


@pytest.mark.slow
def test_page_caches_do_not_survive_the_loss_of_all_power() -> None:
    assert any(violations(seed, "auto", "blackout") for seed in (3, 0, 1, 2, 4, 5))
