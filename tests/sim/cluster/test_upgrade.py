"""Nodes of two versions live together; and bugs that are put in must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.support.patience import with_time

from millpond.broker.controller import controller
from millpond.metadata import features
from millpond.metadata.image import Image
from millpond.sim.cluster import scenario as scenario_module
from millpond.sim.cluster import upgrade_scenario
from millpond.sim.cluster.upgrade_scenario import NEWEST, UpgradeScenario, make_upgrade_plan

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", [1, 2])
def test_nodes_of_two_versions_live_together_until_the_level_is_raised(seed: int) -> None:
    scenario = UpgradeScenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert scenario.is_raised
    assert scenario.refused > 2
    assert outcome.records["acknowledged"] > 20


@with_time
@pytest.mark.parametrize("seed", range(100, 106))
def test_nodes_of_two_versions_live_together_for_longer(seed: int) -> None:
    scenario = UpgradeScenario(seed)
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])


def write_new_records_before_the_level_is_final(patch: Patch) -> None:
    patch.setattr(controller, "metadata_version", lambda _: NEWEST)


def raise_the_level_without_asking_all(patch: Patch) -> None:
    real = features.decide_update_features

    def decide(image: Image, *rest: object, **named: object) -> object:
        alone = image.copy()
        alone.brokers.clear()
        return real(alone, *rest, **named)  # type: ignore[arg-type]

    patch.setattr("millpond.broker.apis.k57_update_features.decide_update_features", decide)


def let_anybody_in(patch: Patch) -> None:
    patch.setattr("millpond.metadata.brokers.unsupported", lambda *_: None)
    patch.setattr(controller, "unsupported", lambda *_: None)


@dataclass(frozen=True)
class Mutant:
    put_in: Callable[[Patch], None]
    seeds: int
    named_by: str


DEATHS = ("kill", "kill of a leader", "stop")
MUTANTS = [
    Mutant(write_new_records_before_the_level_is_final, 8, upgrade_scenario.UNREADABLE),
    Mutant(raise_the_level_without_asking_all, 5, upgrade_scenario.TOO_HIGH),
    pytest.param(Mutant(let_anybody_in, 12, upgrade_scenario.TOO_HIGH), marks=with_time),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.put_in.__name__)
def test_a_mutant_is_found(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant.put_in(monkeypatch)
    monkeypatch.setattr(scenario_module, "SETTLE_MS", 1_000)
    monkeypatch.setattr(scenario_module, "READ_MS", 1_000)
    for seed in range(mutant.seeds):
        violations = UpgradeScenario(seed, make_upgrade_plan(seed, DEATHS)).run().violations
        if any(each.startswith(mutant.named_by) for each in violations):
            return
    pytest.fail(f"{mutant.put_in.__name__} lived through {mutant.seeds} seeds")
