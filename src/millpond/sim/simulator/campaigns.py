"""A seed of a campaign, played for its story: what nodes and clients did, line by line, and what was found."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any, Final

from millpond.sim.cluster.campaigns import CAMPAIGNS
from millpond.sim.simulator.story import Line
from millpond.sim.simulator.tape import BadLink, CampaignSeed
from millpond.sim.world.disk import PowerCut

LINES_SHOWN_MAX: Final = 5_000


@dataclass(slots=True)
class PlayedSeed:
    link: str
    plan: str
    lines: list[Line] = field(default_factory=list)
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
    """Play it to its end, which may be the failure that it is known for."""
    campaign = CAMPAIGNS.get(seed.scenario)
    if campaign is None:
        raise BadLink(f"There is no campaign {seed.scenario!r}; there are {', '.join(CAMPAIGNS)}.")
    plan = campaign.plan(seed.seed)
    scenario = campaign.kind(seed.seed, plan)
    played = PlayedSeed(seed.link, str(plan))
    try:
        played.findings = list(scenario.run().violations)
    except (Exception, PowerCut):
        # A bug that such a seed is kept for may end the run in any way.
        played.findings = [*scenario.history.violations, traceback.format_exc(limit=-8)]
    played.lines = [_line(text) for text in scenario.story()]
    return played


def _line(text: str) -> Line:
    moment, _, rest = text.partition(" ")
    who, _, what = rest.partition(" ")
    is_node = who.startswith("node") and "/" in who
    return Line(int(moment), who.partition("/")[0], what) if is_node else Line(int(moment), "", rest)
