"""Partitions move while nodes die, disks fill and leaders change; and bugs that are put in must be found."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.support.patience import with_time

from millpond.broker.replication.replica_manager import ReplicaManager
from millpond.metadata import elections, moves
from millpond.metadata.image import Partition, Topic
from millpond.metadata.leadership import NO_LEADER, change
from millpond.metadata.moves import target_of
from millpond.sim.cluster import checkers, moves_scenario
from millpond.sim.cluster import scenario as scenario_module
from millpond.sim.cluster.moves_scenario import MovesScenario, make_moves_plan
from millpond.sim.world.disk import PowerCut

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", [8, 9])
def test_partitions_move_and_every_promise_is_kept(seed: int) -> None:
    scenario = MovesScenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert scenario.moves_begun > 2
    assert scenario.moves_ended > 2
    assert outcome.records["acknowledged"] > 20


@with_time
@pytest.mark.parametrize("seed", range(100, 104))
def test_partitions_move_and_every_promise_is_kept_for_longer(seed: int) -> None:
    scenario = MovesScenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])


def count_the_target_before_it_has_caught_up(patch: Patch) -> None:
    def settled(before: Partition, after: Partition, rules: Any, can_lead: Any) -> Partition:
        if not moves.is_moving(after) or after.is_recovering:
            return after
        target = target_of(after)
        alone = replace(after, replicas=target, isr=target, elr=(), removing_replicas=(), adding_replicas=())
        ended = change(alone, target, rules, can_lead)
        return after if ended.leader == NO_LEADER else moves._one_step(before, ended)

    patch.setattr(moves, "settled", settled)
    patch.setattr(elections, "settled", settled)


def delete_who_goes_when_the_move_begins(patch: Patch) -> None:
    def is_ours(self: ReplicaManager, topic: Topic, index: int) -> bool:
        partition = topic.partitions[index]
        return self._node_id in partition.replicas and self._node_id not in partition.removing_replicas

    patch.setattr(ReplicaManager, "_is_ours", is_ours)


@dataclass(frozen=True)
class Mutant:
    put_in: Callable[[Patch], None]
    faults: tuple[str, ...]
    seeds: int
    named_by: tuple[str, ...] = ()


DEATHS = ("kill of a leader", "power cut", "isolation of a leader", "wiped disk")
MUTANTS = [
    Mutant(count_the_target_before_it_has_caught_up, DEATHS, 5, (checkers.TRUSTED_LACKS_RECORDS,)),
    Mutant(delete_who_goes_when_the_move_begins, DEATHS, 5, (moves_scenario.REPLICA_GONE,)),
]


@with_time
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.put_in.__name__)
def test_a_mutant_is_found(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant.put_in(monkeypatch)
    if mutant.named_by:
        # It is reported while it happens, as it never heals.
        monkeypatch.setattr(scenario_module, "SETTLE_MS", 1_000)
        monkeypatch.setattr(scenario_module, "READ_MS", 1_000)
    for seed in range(mutant.seeds):
        scenario = MovesScenario(seed, make_moves_plan(seed, mutant.faults))
        try:
            result = scenario.run().violations
        except (Exception, PowerCut) as error:
            result = [traceback.format_exception_only(error)[-1]]
        result = [*scenario.history.violations, *result]
        if result:
            assert not mutant.named_by or any(each.startswith(mutant.named_by) for each in result), (seed, result)
            return
    pytest.fail(f"{mutant.put_in.__name__} lived through {mutant.seeds} seeds")
