"""What a seed decides before a run of a cluster begins."""

from __future__ import annotations

from millpond.sim.cluster.plan import FAULTS, make_plan


def test_the_same_seed_is_the_same_plan() -> None:
    assert make_plan(3) == make_plan(3)
    assert make_plan(3) != make_plan(4)


def test_every_kind_of_fault_is_planned() -> None:
    planned = {fault.kind for seed in range(300) for fault in make_plan(seed).faults}
    assert planned == set(FAULTS)


def test_a_plan_keeps_to_the_kinds_it_is_given() -> None:
    assert {fault.kind for seed in range(20) for fault in make_plan(seed, ("kill",)).faults} == {"kill"}
