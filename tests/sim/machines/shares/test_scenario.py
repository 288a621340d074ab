"""Runs by seed: no finished record comes again, none is lost, and the same seed is the same run."""

from __future__ import annotations

import pytest

from millpond.sim.machines.shares.scenario import run_seed

SEEDS = 48
PER_TEST = 12


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_nothing_that_must_never_happen_happens(first: int) -> None:
    finished = leader_changes = 0
    for seed in range(first, first + PER_TEST):
        outcome = run_seed(seed)
        assert outcome.violation is None, "\n".join([*outcome.story, f"seed {seed}: {outcome.violation}"])
        finished += outcome.committed
        leader_changes += outcome.elections
    assert finished > 40 * PER_TEST, "there must be something to lose"
    assert leader_changes > PER_TEST


def test_a_seed_that_failed_once() -> None:
    """Two releases of one lock failed, one after the other, when it had expired: each of them began it anew."""
    outcome = run_seed(12)
    assert outcome.violation is None, "\n".join([*outcome.story, str(outcome.violation)])


def test_the_same_seed_is_the_same_run() -> None:
    one, other = run_seed(7), run_seed(7)
    assert one == other
    assert one.trace != run_seed(8).trace
