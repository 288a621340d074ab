"""A group under churn: members join, leave, crash and stall, nodes crash, and no record is skipped."""

from __future__ import annotations

import pytest

from support.churn import MEMBER_EVENTS, NODE_EVENTS, NODE_SETTINGS, Campaign, Plan
from support.groups import PROTOCOLS
from support.seeds import fresh_seed

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def churned(make_node, tmp_path, **wanted):
    plan = Plan(seed=fresh_seed(), **wanted)
    tally = Campaign(make_node(NODE_SETTINGS), plan, tmp_path / "workers", "churn").run()
    print(plan, tally, sep="\n")
    assert tally.findings == []
    assert tally.read >= tally.written > 1000
    return tally


@pytest.mark.slow
@every_protocol
def test_members_come_go_crash_and_stand_still(make_node, tmp_path, protocol):
    tally = churned(make_node, tmp_path, protocol=protocol, seconds=6, events=MEMBER_EVENTS, events_min=6)
    assert sum(tally.events.values()) >= 6
    # On a busy machine members start so slowly that few generations read anything before the next event.
    assert tally.generations >= 1
    assert tally.holdings > tally.holdings_lost


@pytest.mark.slow
@every_protocol
def test_the_node_crashes_and_the_group_goes_on(make_node, tmp_path, protocol):
    wanted = {"seconds": 4, "events": NODE_EVENTS, "events_min": 2, "pause_seconds": 1.2}
    tally = churned(make_node, tmp_path, protocol=protocol, **wanted)
    assert tally.events["kill node"] >= 2
