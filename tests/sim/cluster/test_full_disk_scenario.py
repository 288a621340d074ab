"""Runs in which one disk is full while the others have room: the checker finds writes that do not go on."""

from __future__ import annotations

import pytest

from millpond.broker.membership.heartbeats import Heartbeats
from millpond.broker.replication.isr import IsrKeeper
from millpond.sim.cluster import scenario as scenario_module
from millpond.sim.cluster.full_disk_scenario import STALLED, FullDiskScenario


@pytest.mark.parametrize("seed", range(3))
def test_writes_go_on_while_one_disk_is_full(seed: int) -> None:
    scenario = FullDiskScenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert outcome.faults
    assert outcome.records["acknowledged"] > 50


def test_a_full_leader_that_keeps_its_partitions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeats, "_note_full", lambda *_: None)
    monkeypatch.setattr(IsrKeeper, "resign_leadership", lambda *_: None)
    monkeypatch.setattr(scenario_module, "SETTLE_MS", 10_000)
    result = [each for seed in range(4) for each in FullDiskScenario(seed).run().violations]
    assert any(STALLED in each for each in result)
