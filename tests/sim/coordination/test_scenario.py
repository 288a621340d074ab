"""Whole runs with groups and transactions by seed: nothing that must never happen happens, and a seed is one run."""

from __future__ import annotations

import pytest

from millpond.sim.coordination.plan import FAULTS, Sharing, Work, make_coordination_plan
from millpond.sim.coordination.scenario import CoordinationScenario
from support.seeds import seeds

SEEDS = 4
PER_TEST = 2


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_nothing_that_must_never_happen_happens(first: int) -> None:
    for seed in seeds(range(first, first + PER_TEST)):
        outcome = CoordinationScenario(seed).run()
        assert outcome.violations == [], (
            f"play it again: python tests/campaigns/simulate.py coordination --replay {seed}"
        )


@pytest.mark.parametrize("kind", dict.fromkeys(FAULTS))
def test_each_kind_of_fault_is_lived_through(kind: str) -> None:
    plan = make_coordination_plan(28, [kind], work=Work.COPY)
    outcome = CoordinationScenario(28, plan).run()
    assert outcome.violations == []
    assert outcome.counts["transactions done"] > 5


@pytest.mark.parametrize("sharing", [Sharing.CLASSIC, Sharing.CONSUMER, Sharing.MIXED])
def test_each_kind_of_group_reads_everything(sharing: Sharing) -> None:
    outcome = CoordinationScenario(7, make_coordination_plan(7, work=Work.READ, sharing=sharing)).run()
    assert outcome.violations == []
    assert outcome.counts["records processed"] >= outcome.counts["records of the input"] > 0


@pytest.mark.parametrize("seed", [3])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    one, other = CoordinationScenario(seed).run(), CoordinationScenario(seed).run()
    assert one.trace_hash == other.trace_hash
    assert one == other


def test_other_seeds_are_other_runs() -> None:
    assert len({CoordinationScenario(seed).run().trace_hash for seed in (3, 4, 5)}) == 3
