"""Runs of whole clusters by seed: nothing that must never happen happens, and the same seed is the same run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.sim.cluster import checkers
from millpond.sim.cluster import scenario as scenario_module
from millpond.sim.cluster.plan import FIRST_FAULTS, make_plan
from millpond.sim.cluster.scenario import Scenario


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_of_one_keeps_every_promise(seed: int) -> None:
    scenario = Scenario(seed, make_plan(seed, nodes=1))
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert outcome.records["acknowledged"] > 20, "there must be something to lose"
    assert outcome.records_checked >= outcome.records["acknowledged"] or scenario.history.requested_deletes


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_keeps_every_promise(seed: int) -> None:
    scenario = Scenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert outcome.records["acknowledged"] > 20, "there must be something to lose"
    assert outcome.records_checked >= outcome.records["acknowledged"] or scenario.history.requested_deletes


FAILED_ONCE = {
    1800000: "a replica was found damaged while its leader told it what to forget, and the node ended",
    2301387: "a leader that had been replaced told readers who had come further that there is no such offset",
    2302316: "a controller that had been cut off took a fetch that had lain in wait for a proof that it leads",
    2412611: "records were deleted by the only replica in sync, and another one that had all of them led again",
    2431765: "the next leader took a third batch of a producer for its first, and the first two were out of order",
}


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once(seed: int) -> None:
    scenario = Scenario(seed, make_plan(seed, FIRST_FAULTS))
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])


def test_the_same_seed_is_the_same_run() -> None:
    one, other = Scenario(4).run(), Scenario(4).run()
    assert one == other
    assert one.trace_hash != Scenario(5, make_plan(5, nodes=1)).run().trace_hash


def test_records_that_vanish_from_a_leader_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing heals after that, so there is nothing to wait for.
    monkeypatch.setattr(scenario_module, "SETTLE_MS", 2_000)
    monkeypatch.setattr(scenario_module, "READ_MS", 1_000)
    scenario = Scenario(1, replace(make_plan(1, nodes=1), faults=()))

    def lose_some() -> None:
        partition = max(scenario.cluster.nodes[1].broker.partitions, key=lambda each: each.log.end_offset)
        truncation = partition.log.begin_truncation(partition.log.end_offset // 2)
        truncation.run()
        partition.log.finish_truncation(truncation)

    scenario.sim.clock.call_later(5_000, lose_some)
    violations = scenario.run().violations
    assert any(each.startswith((checkers.HIGH_WATERMARK_FELL, checkers.TRUSTED_LACKS_RECORDS)) for each in violations)
