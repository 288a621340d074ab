"""Runs a campaign seed and returns its trace: what nodes and clients did, and the violations."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from millpond.sim.cluster.campaigns import CAMPAIGNS, Campaign
from millpond.sim.cluster.group_scenario import ClusterGroupScenario
from millpond.sim.coordination.scenario import CoordinationScenario
from millpond.sim.machines.quorum import scenario as quorum
from millpond.sim.machines.quorum.voters_scenario import run_voters_seed
from millpond.sim.machines.replication import scenario as replication
from millpond.sim.machines.run import Outcome as MachineOutcome
from millpond.sim.machines.shares import scenario as shares
from millpond.sim.records.scenario import Scenario as RecordsScenario
from millpond.sim.simulator.event_log import Line
from millpond.sim.simulator.recording import BadLink, CampaignSeed
from millpond.sim.world.disk import PowerCut

LINES_SHOWN_MAX: Final = 5_000


class _Found(Protocol):
    @property
    def violations(self) -> list[str]: ...


class _Scenario(Protocol):
    """Whole nodes and their clients, from a seed."""

    @property
    def plan(self) -> object: ...

    @property
    def history(self) -> _Found: ...

    def run(self) -> _Found: ...

    def story(self) -> list[str]: ...


def _cluster(campaign: Campaign) -> Callable[[int], _Scenario]:
    return lambda seed: campaign.kind(seed, campaign.plan(seed))


SCENARIOS: Final[Mapping[str, Callable[[int], _Scenario]]] = {
    **{name: _cluster(campaign) for name, campaign in CAMPAIGNS.items()},
    "crews": ClusterGroupScenario,
    "coordination": CoordinationScenario,
    "records": RecordsScenario,
}

MACHINES: Final[Mapping[str, Callable[[int], MachineOutcome]]] = {
    "quorum": quorum.run_seed,
    "replication": replication.run_seed,
    "share_window": shares.run_seed,
    "voters": run_voters_seed,
}
"""Pure state machines without nodes. They keep no trace of a run without violations."""


@dataclass(slots=True)
class PlayedSeed:
    link: str
    plan: str
    lines: Sequence[Line] = ()
    findings: list[str] = field(default_factory=list)

    def shape(self) -> dict[str, Any]:
        return {
            "link": self.link,
            "plan": self.plan,
            "story": [line._asdict() for line in self.lines[-LINES_SHOWN_MAX:]],
            "story_lines": len(self.lines),
            "findings": self.findings,
        }


def play_campaign(seed: CampaignSeed) -> PlayedSeed:
    """Run the seed to its end or its failure."""
    if seed.scenario in SCENARIOS:
        return _play_scenario(seed, SCENARIOS[seed.scenario](seed.seed))
    if seed.scenario in MACHINES:
        return _play_machine(seed, MACHINES[seed.scenario])
    raise BadLink(f"There is no campaign {seed.scenario!r}; there are {', '.join((*SCENARIOS, *MACHINES))}.")


def _play_scenario(seed: CampaignSeed, scenario: _Scenario) -> PlayedSeed:
    played = PlayedSeed(seed.link, str(scenario.plan))
    try:
        played.findings = list(scenario.run().violations)
    except (Exception, PowerCut):
        # The bug that this seed shows may raise anything.
        played.findings = [*scenario.history.violations, traceback.format_exc(limit=-8)]
    played.lines = list(map(_line, scenario.story()))
    return played


def _play_machine(seed: CampaignSeed, run: Callable[[int], MachineOutcome]) -> PlayedSeed:
    outcome = run(seed.seed)
    violations = [] if outcome.violation is None else [outcome.violation]
    return PlayedSeed(
        seed.link, "There is none: it is random at every step.", list(map(_line, outcome.story)), violations
    )


def _line(text: str) -> Line:
    moment, _, rest = text.strip().partition(" ")
    who, _, what = rest.partition(" ")
    # A line of a node's log begins with the node and its incarnation.
    node, _, life = who.partition("/")
    return Line(int(moment), node, what) if life.isdecimal() else Line(int(moment), "", rest)
