"""A seed decides everything before a run begins."""

from __future__ import annotations

import pytest

from millpond.sim.coordination.plan import FAULTS, Sharing, Work, make_coordination_plan


def test_the_same_seed_is_the_same_plan() -> None:
    assert make_coordination_plan(3) == make_coordination_plan(3)
    assert make_coordination_plan(3) != make_coordination_plan(4)


def test_seeds_bring_every_kind_of_work_sharing_and_fault() -> None:
    plans = [make_coordination_plan(seed) for seed in range(300)]
    assert {plan.work for plan in plans} == set(Work)
    assert {plan.sharing for plan in plans} == set(Sharing)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FAULTS)
    assert {style.is_v2 for plan in plans for style in plan.workers} == {True, False}


@pytest.mark.parametrize("sharing", Sharing)
def test_a_plan_can_be_narrowed(sharing: Sharing) -> None:
    plan = make_coordination_plan(1, ["kill"], work=Work.COPY, sharing=sharing, versions=[False])
    assert (plan.work, plan.sharing) == (Work.COPY, sharing)
    assert {fault.kind for fault in plan.faults} == {"kill"}
    assert not any(style.is_v2 for style in plan.workers)


def test_members_that_share_nothing_fixed_only_copy() -> None:
    assert all(make_coordination_plan(seed, work=Work.READ).sharing is not Sharing.FIXED for seed in range(60))
