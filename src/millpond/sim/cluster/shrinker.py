"""Finds the fewest faults and clients with which a seed still fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

from millpond.sim.cluster.plan import Plan, make_plan
from millpond.sim.cluster.scenario import Outcome, Scenario
from millpond.sim.world.disk import PowerCut

RUNS_MAX = 120


def play(seed: int, plan: Plan | None = None, kind: type[Scenario] = Scenario) -> tuple[Scenario, Outcome]:
    """One run; an exception in a node counts as a violation."""
    scenario = kind(seed, plan)
    try:
        return scenario, scenario.run()
    except (Exception, PowerCut) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        file = where.filename.rpartition("/")[2]
        return scenario, Outcome(seed, [f"{type(error).__name__}: {error} ({file}:{where.lineno})"])


def kind_of(outcome: Outcome) -> str:
    """The kind of violation, without its numbers; empty if there is none."""
    return outcome.violations[0].partition(":")[0] if outcome.violations else ""


def shrink(seed: int, plan: Plan | None = None, fails: Callable[[Plan], bool] | None = None) -> Plan:
    """The plan of a failing seed, without everything that the failure does not need."""
    plan = plan or make_plan(seed)
    if fails is None:
        kind = kind_of(play(seed, plan)[1])

        def fails(tried: Plan) -> bool:
            return kind_of(play(seed, tried)[1]) == kind

    runs = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(plan):
            runs += 1
            if runs > RUNS_MAX:
                return plan
            if fails(smaller):
                plan, progress = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Halves first, then one by one."""
    count = len(plan.faults)
    size = count // 2
    while size:
        for at in range(0, count, size):
            yield replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])
        size //= 2
    if count == 1:
        yield replace(plan, faults=())
    if len(plan.producers) > 1:
        yield replace(plan, producers=plan.producers[:1])
    if len(plan.readers) > 1:
        yield replace(plan, readers=plan.readers[:1])
    if len(plan.topics) > 1:
        yield replace(plan, topics=plan.topics[:1])
