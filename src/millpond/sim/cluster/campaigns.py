"""The campaigns over seeds of whole clusters: their names, scenarios and plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from millpond.sim.cluster.compacted_scenario import COMPACTED_FAULTS, CompactedScenario, make_compacted_plan
from millpond.sim.cluster.full_disk_scenario import FullDiskScenario, make_full_disk_plan
from millpond.sim.cluster.members_scenario import MembersScenario, make_members_plan
from millpond.sim.cluster.moves_scenario import MovesScenario, make_moves_plan
from millpond.sim.cluster.plan import FAULTS, Plan, make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.sim.cluster.upgrade_scenario import UpgradeScenario, make_upgrade_plan

WIDE_PARTITIONS: Final = (260, 520)
"""More than one slice of an election, and more than two."""


@dataclass(frozen=True, slots=True)
class Campaign:
    kind: type[Scenario]
    make_plan: Callable[[int, Sequence[str], int | None], Plan]
    has_own_nodes: bool = False
    """The plan decides how many nodes there are."""

    def plan(self, seed: int, faults: Sequence[str] = FAULTS, nodes: int | None = None) -> Plan:
        return self.make_plan(seed, faults, nodes)


def _with_racks(seed: int, faults: Sequence[str], nodes: int | None) -> Plan:
    return replace(make_plan(seed, faults, nodes), has_racks=True)


def _compacted(seed: int, faults: Sequence[str], nodes: int | None) -> Plan:
    return make_compacted_plan(seed, COMPACTED_FAULTS if tuple(faults) == FAULTS else faults, nodes)


def _wide(seed: int, faults: Sequence[str], nodes: int | None) -> Plan:
    """One topic has hundreds of partitions, so that faults hit what the controller does slice by slice."""
    plan = make_plan(f"wide {seed}", faults, nodes)
    first, *others = plan.topics
    count = Random(f"wide {seed}").choice(WIDE_PARTITIONS)
    return replace(plan, topics=(replace(first, partitions=count), *others), admin_operations=0)


CAMPAIGNS: Final[Mapping[str, Campaign]] = {
    "faults": Campaign(Scenario, make_plan),
    "racks": Campaign(Scenario, _with_racks),
    "wide": Campaign(Scenario, _wide),
    "full": Campaign(FullDiskScenario, lambda seed, _, nodes: make_full_disk_plan(seed, nodes)),
    "compacted": Campaign(CompactedScenario, _compacted),
    "members": Campaign(MembersScenario, lambda seed, faults, _: make_members_plan(seed, faults), True),
    "moves": Campaign(MovesScenario, lambda seed, faults, _: make_moves_plan(seed, faults), True),
    "upgrade": Campaign(UpgradeScenario, lambda seed, faults, _: make_upgrade_plan(seed, faults), True),
}
