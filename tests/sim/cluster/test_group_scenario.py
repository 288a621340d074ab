"""Groups and transactions on whole clusters by seed: coordinators move, and nothing that they promised is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.sim.cluster.group_scenario import ClusterGroupScenario, make_cluster_group_plan
from millpond.sim.cluster.plan import FIRST_FAULTS


@pytest.mark.parametrize("seed", [1, 3])
def test_workers_finish_on_three_nodes(seed: int) -> None:
    scenario = ClusterGroupScenario(seed, replace(make_cluster_group_plan(seed, nodes=3), faults=()))
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    done = outcome.counts.get("transactions done", 0) + outcome.counts.get("commits done", 0)
    assert done > 10, "there must be something to break"


@pytest.mark.parametrize("seed", [303, 315])
def test_other_nodes_replace_coordinators_that_pause_or_die(seed: int) -> None:
    scenario = ClusterGroupScenario(
        seed, make_cluster_group_plan(seed, ("pause of a leader", "kill of a leader"), nodes=3)
    )
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
    assert sum(outcome.faults.get(kind, 0) for kind in ("pause of a leader", "kill of a leader"))


FAILED_ONCE = {
    500422: "a coordinator met a rotted batch in its own log, and its node ended",
    500672: "a simulated consumer that was sent a rotted batch died of it: a real one asks again until it is mended",
}


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once(seed: int) -> None:
    scenario = ClusterGroupScenario(seed, make_cluster_group_plan(seed, FIRST_FAULTS))
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])
