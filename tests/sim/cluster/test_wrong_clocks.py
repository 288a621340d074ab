"""Nodes whose clocks are wrong by hours or years: they delete nothing early and mislead no other node."""

from __future__ import annotations

import pytest
from tests.sim.cluster.test_rescue import Rescue

from millpond.log.retention import RetentionClock
from millpond.log.store import LogStore

DAY_MS = 86_400_000
YEARS_MS = 3650 * DAY_MS


class WrongClocks(Rescue):
    """A cluster whose topics keep records for a day, in segments that hold a few of them."""

    def __init__(self) -> None:
        super().__init__(
            texts={
                "log.retention.check.interval.ms": "500",
                "log.retention.ms": str(DAY_MS),
                "log.segment.bytes": "16384",
                "log.flush.offset.checkpoint.interval.ms": "500",
            }
        )
        self.create_topics(pond=(1, 2, 3))
        self.kept = [b"%d" % number * 9000 for number in range(4)]
        for value in self.kept:
            self.write(1, "pond", value)
        self.wait(lambda: all(self.values(node_id, "pond") == self.kept for node_id in self.nodes))
        here = self.nodes[1].broker.partitions.get("pond", 0)
        assert here is not None
        assert len(list(here.log.segments)) > 1

    def restart_with_clock_off(self, node_id: int, by_ms: int) -> None:
        # When its segments were written is noted by then; what is not counts as written at the start.
        self.sim.run_for(1_000)
        self.nodes[node_id].kill()
        self.sim.jump_wall(f"node{node_id}", by_ms)
        assert self.nodes[node_id].start()
        broker = self.nodes[node_id].broker
        self.wait(
            lambda: broker.lifecycle.ready.ended and self.is_whole() and broker.partitions.get("pond", 0) is not None,
            within_ms=20_000,
        )


@pytest.fixture
def clocks() -> WrongClocks:
    return WrongClocks()


@pytest.mark.parametrize("by_ms", [YEARS_MS, -YEARS_MS, 2 * DAY_MS])
def test_a_node_that_starts_with_a_wrong_clock_deletes_nothing_when_it_leads(clocks: WrongClocks, by_ms: int) -> None:
    victim = clocks.other(clocks.controller_id)
    clocks.restart_with_clock_off(victim, by_ms)
    others = [node_id for node_id in clocks.nodes if node_id != victim]
    assert any("differs from the controller's" in line for line in clocks.nodes[victim].journal_lines)
    # It leads alone, for longer than a look at what is too old takes.
    for node_id in others:
        if node_id != clocks.controller_id:
            clocks.nodes[node_id].kill()
    clocks.wait(lambda: clocks.image.topics["pond"].partitions[0].leader in (victim, clocks.controller_id))
    clocks.sim.run_for(3_000)
    assert clocks.values(victim, "pond") == clocks.kept
    assert clocks.values(clocks.controller_id, "pond") == clocks.kept


def test_without_the_comparison_a_clock_years_ahead_would_delete_everything(
    clocks: WrongClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the above."""
    monkeypatch.setattr(LogStore, "hold_back", lambda *_: None)
    victim = clocks.other(clocks.controller_id)
    clocks.restart_with_clock_off(victim, YEARS_MS)
    clocks.wait(lambda: clocks.values(victim, "pond") != clocks.kept, within_ms=20_000)


def test_a_clock_years_off_delays_no_election_and_no_group(clocks: WrongClocks) -> None:
    """All waiting is measured by durations."""
    controller = clocks.controller_id
    for node_id in clocks.nodes:
        clocks.sim.jump_wall(f"node{node_id}", node_id * YEARS_MS if node_id % 2 else -node_id * YEARS_MS)
    clocks.sim.run_for(3_000)
    assert clocks.controller_id == controller
    clocks.nodes[controller].kill()
    clocks.wait(lambda: clocks.controller_id not in (0, controller), within_ms=3_000)
    clocks.wait(lambda: clocks.image.topics["pond"].partitions[0].leader not in (-1, controller), within_ms=3_000)
    leader = clocks.image.topics["pond"].partitions[0].leader
    clocks.wait(lambda: clocks.leads(leader, "pond"))
    assert clocks.write(leader, "pond", b"on") == len(clocks.kept)


def test_a_clock_that_is_set_right_is_believed_again() -> None:
    store = LogStore.__new__(LogStore)
    store.logs, store._ahead_ms, store._clock = {}, 0, RetentionClock()
    right = 1_700_000_000_000
    store.hold_back(YEARS_MS)
    assert store.retention_now(right + YEARS_MS, 0) == right
    assert store.retention_now(right + YEARS_MS + 1_000, 1_000) == right + 1_000
    for second in range(2, 2_000, 60):
        now_ms = store.retention_now(right + second * 1_000, second * 1_000)
        assert now_ms <= right + second * 1_000
    assert now_ms == right + second * 1_000
