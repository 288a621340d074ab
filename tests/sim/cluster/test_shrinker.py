"""A plan that fails is made smaller until nothing more can be left out."""

from __future__ import annotations

from millpond.sim.cluster.plan import make_plan
from millpond.sim.cluster.shrinker import shrink


def test_what_does_not_matter_is_left_out() -> None:
    seed = next(seed for seed in range(100) if len(make_plan(seed).faults) == 12)
    plan = make_plan(seed)
    guilty = {plan.faults[3], plan.faults[8]}
    small = shrink(seed, plan, lambda tried: guilty <= set(tried.faults))
    assert set(small.faults) == guilty
    assert len(small.producers) == len(small.readers) == len(small.topics) == 1


def test_nothing_is_left_out_that_matters() -> None:
    plan = make_plan(1)
    assert shrink(1, plan, lambda tried: tried == plan) == plan
