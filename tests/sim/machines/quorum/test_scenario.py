"""Runs by seed: nothing that must never happen happens, and the same seed is the same run."""

from __future__ import annotations

import pytest

from millpond.sim.machines.quorum import first_leader, starvation
from millpond.sim.machines.quorum.scenario import run_seed

SEEDS = 48
PER_TEST = 12


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_nothing_that_must_never_happen_happens(first: int) -> None:
    acknowledged = 0
    for seed in range(first, first + PER_TEST):
        outcome = run_seed(seed)
        assert outcome.violation is None, "\n".join([*outcome.story, f"seed {seed}: {outcome.violation}"])
        acknowledged += outcome.acknowledged
    assert acknowledged > 20 * PER_TEST, "there must be something to lose"


@pytest.mark.parametrize("seed", range(6))
def test_a_starved_quorum_is_never_without_a_leader_for_long(seed: int) -> None:
    outcome = starvation.run_seed(seed)
    assert outcome.violation is None, "\n".join([*outcome.story, str(outcome.violation)])
    assert outcome.acknowledged


@pytest.mark.parametrize("seed", range(6))
def test_a_cluster_whose_first_leader_dies_at_once_has_a_second_one(seed: int) -> None:
    outcome = first_leader.run_seed(seed)
    assert outcome.violation is None, "\n".join([*outcome.story, str(outcome.violation)])
    assert outcome.elections == 2


def test_a_seed_that_failed_once() -> None:
    """A client that happened to write nothing for seconds was taken for a quorum that commits nothing."""
    outcome = run_seed(100405)
    assert outcome.violation is None, "\n".join([*outcome.story, str(outcome.violation)])


def test_the_same_seed_is_the_same_run() -> None:
    one, other = run_seed(7), run_seed(7)
    assert one == other
    assert one.trace != run_seed(8).trace
