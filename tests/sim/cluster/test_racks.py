"""Consumers read from replicas in their own rack while nodes die, and see what leaders would show."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.support.patience import with_time

from millpond.broker.replication.partitions import Partition
from millpond.sim.cluster.group_scenario import ClusterGroupScenario, make_cluster_group_plan
from millpond.sim.cluster.plan import make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.sim.coordination.plan import Work
from millpond.sim.world.disk import PowerCut

Patch = pytest.MonkeyPatch
DEATHS = ("kill of a leader", "power cut", "isolation of a leader", "isolation", "pause of a leader")


def cluster_run(seed: int, faults: tuple[str, ...] = DEATHS) -> Scenario:
    return Scenario(seed, replace(make_plan(seed, faults), has_racks=True))


def crew_run(seed: int, faults: tuple[str, ...] = DEATHS) -> ClusterGroupScenario:
    return ClusterGroupScenario(
        seed, replace(make_cluster_group_plan(seed, faults, nodes=3, work=Work.COPY), has_racks=True)
    )


@pytest.mark.parametrize("seed", [1, 4])
def test_readers_of_a_rack_see_what_is_committed_and_all_of_it(seed: int) -> None:
    scenario = cluster_run(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert sum(reader.client.times_sent_elsewhere for reader in scenario.readers)
    assert sum(reader.records_read for reader in scenario.readers) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])
def test_what_was_aborted_is_left_out_at_followers_too(seed: int) -> None:
    scenario = crew_run(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert sum(client.times_sent_elsewhere for client in scenario.reading)


@with_time
@pytest.mark.parametrize("seed", range(200, 206))
def test_readers_of_a_rack_see_what_is_committed_for_longer(seed: int) -> None:
    for scenario in (Scenario(seed, replace(make_plan(seed), has_racks=True)), crew_run(seed)):
        outcome = scenario.run()
        assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])


def show_all_that_a_follower_has(patch: Patch) -> None:
    committed = Partition.committed_offset

    def offset(self: Partition) -> int:
        return self.log.end_offset if self.follower is not None else committed.__get__(self)

    patch.setattr(Partition, "committed_offset", property(offset))


def count_everything_at_a_follower_as_stable(patch: Patch) -> None:
    stable = Partition.last_stable_offset

    def offset(self: Partition) -> int:
        return self.committed_offset if self.follower is not None else stable.__get__(self)

    patch.setattr(Partition, "last_stable_offset", property(offset))


@dataclass(frozen=True)
class Mutant:
    put_in: Callable[[Patch], None]
    run: Callable[[int], Any]
    seeds: int


MUTANTS = [
    Mutant(show_all_that_a_follower_has, cluster_run, 8),
    Mutant(count_everything_at_a_follower_as_stable, crew_run, 5),
]


@with_time
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.put_in.__name__)
def test_a_mutant_is_found(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant.put_in(monkeypatch)
    for seed in range(mutant.seeds):
        scenario = mutant.run(seed)
        try:
            result = scenario.run().violations
        except (Exception, PowerCut) as error:
            result = [traceback.format_exception_only(error)[-1]]
        if [*scenario.history.violations, *result]:
            return
    pytest.fail(f"{mutant.put_in.__name__} lived through {mutant.seeds} seeds")
