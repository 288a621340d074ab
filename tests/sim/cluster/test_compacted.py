"""Nodes stay away longer than tombstones are kept; and bugs that are put in must be found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.patience import with_time

from millpond.broker.replication.fetchers import OUTDATED
from millpond.broker.replication.leader_role import LeaderRole
from millpond.log.compaction import CompactionPlan
from millpond.sim.cluster.compacted_scenario import (
    LONG_ABSENCE,
    RETURNED,
    CompactedScenario,
    make_compacted_plan,
)
from millpond.sim.cluster.shrinker import play

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_that_was_deleted_returns(seed: int) -> None:
    """Absences alone, so that faults that are added to other scenarios change nothing here."""
    scenario = CompactedScenario(seed, make_compacted_plan(seed, (LONG_ABSENCE,)))
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    lines = [line for node in scenario.cluster.nodes.values() for line in node.journal_lines]
    assert any("compacted" in line for line in lines)
    assert any(OUTDATED in line for line in lines)
    assert outcome.records["acknowledged"] > 20


@with_time
@pytest.mark.parametrize("seed", range(100, 110))
def test_nothing_that_was_deleted_returns_in_more_runs(seed: int) -> None:
    scenario = CompactedScenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])


def resume_wherever_a_replica_ends(patch: Patch) -> None:
    patch.setattr(LeaderRole, "must_start_over", lambda *_: False)


def drop_evidence_without_a_trace(patch: Patch) -> None:
    patch.setattr(CompactionPlan, "_drop_evidence", lambda *_: None)


@with_time
@pytest.mark.parametrize("put_in", [resume_wherever_a_replica_ends, drop_evidence_without_a_trace])
def test_a_mutant_is_found(put_in: Callable[[Patch], None], monkeypatch: Patch) -> None:
    put_in(monkeypatch)
    for seed in range(20):
        _, outcome = play(seed, make_compacted_plan(seed, (LONG_ABSENCE,)), CompactedScenario)
        if outcome.violations:
            assert outcome.violations[0].startswith(RETURNED), f"seed {seed}: {outcome.violations}"
            return
    pytest.fail(f"{put_in.__name__} lived through 20 seeds")
