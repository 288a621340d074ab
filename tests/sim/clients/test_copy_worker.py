"""Simulated copy workers: both protocols, fencing, orphans and zombies, without any other trouble."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from millpond.sim.clients.committed_reader import CommittedReader
from millpond.sim.clients.copy_worker import CopyWorker, WorkerStyle
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.requests import Membership
from millpond.sim.coordination.checkers import check_copied, check_sightings, check_transactions
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Promise

CALM = WorkerStyle(pace_ms=10, abort_share=0.0, sends_late=False)


class Mill:
    def __init__(self, one_node) -> None:
        self.one_node = one_node
        self.clock = one_node.sim.clock
        self.history = CoordinationHistory()
        self.source = GroupTopic("t", one_node.partitions[0].topic_id, 2)
        producer = one_node.producer()
        for partition in one_node.partitions:
            for _ in range(6):
                producer.produce(partition, one_node.contents(2), Promise.SURVIVES)
        assert one_node.sim.run_until(producer.is_idle)
        one_node.wait_for(lambda then: one_node.admin.create("out", 2, {}, then))
        (topic_id,) = one_node.history.topics["out"].ids
        self.target = GroupTopic("out", topic_id, 2)
        self.reader = self.read("live")

    def read(self, name: str) -> CommittedReader:
        reader = CommittedReader(self.clock, self.one_node.client(name), self.history, self.target)
        reader.start()
        return reader

    def worker(self, name: str, style: WorkerStyle, transactional_id: str = "mill") -> CopyWorker:
        worker = CopyWorker(
            self.clock,
            self.one_node.client,
            self.history,
            transactional_id,
            name,
            self.source,
            self.target,
            Random(name),
            style,
        )
        worker.start()
        worker.begin(Membership("g", partitions=frozenset({0, 1})))
        return worker

    def is_done(self) -> bool:
        return self.history.reached == {0: 12, 1: 12}

    def findings(self) -> list[str]:
        final = self.read("final")
        assert self.one_node.sim.run_until(final.is_at_end)
        self.reader.close()
        return [
            *self.history.violations,
            *check_copied({0: 12, 1: 12}, final.shown, 2),
            *check_transactions(self.history, final.shown),
            *check_sightings(self.history, self.reader.shown, final.shown),
        ]


@pytest.fixture
def mill(one_node) -> Mill:
    return Mill(one_node)


@pytest.mark.parametrize("is_v2", [True, False])
def test_everything_is_copied_exactly_once(mill: Mill, is_v2: bool) -> None:
    mill.worker("one", replace(CALM, is_v2=is_v2, abort_share=0.3, sends_late=True))
    assert mill.one_node.sim.run_until(mill.is_done)
    mill.one_node.sim.run_for(6_000)
    assert mill.findings() == []
    assert mill.history.counts["transactions aborted"] > 0


@pytest.mark.parametrize("is_v2", [True, False])
def test_a_zombie_is_fenced_when_it_wakes_up(mill: Mill, is_v2: bool) -> None:
    style = replace(CALM, is_v2=is_v2, ends_slowly=True)
    zombie = mill.worker("zombie", style)
    mill.one_node.sim.run_until(lambda: len(mill.history.transactions) == 3)
    zombie.freeze()
    heir = mill.worker("heir", style)
    mill.one_node.sim.run_until(lambda: len(mill.history.transactions) > 6)
    zombie.thaw()
    assert mill.one_node.sim.run_until(mill.is_done)
    assert (zombie.is_fenced, heir.is_fenced) == (True, False)
    assert mill.findings() == []


def test_everybody_waits_for_an_orphan_until_its_time_is_over(mill: Mill) -> None:
    orphan = mill.worker("orphan", replace(CALM, is_orphan=True, timeout_ms=3_000), "orphan")
    assert mill.one_node.sim.run_until(lambda: orphan.is_over)
    began_ms = mill.clock.now_ms
    mill.worker("one", CALM)
    assert mill.one_node.sim.run_until(mill.is_done)
    assert mill.clock.now_ms > began_ms + 2_500
    assert mill.findings() == []


def test_a_power_cut_is_lived_through(mill: Mill) -> None:
    mill.worker("one", CALM)
    mill.one_node.sim.run_until(lambda: len(mill.history.transactions) == 4)
    mill.one_node.node.crash()
    assert mill.one_node.node.start()
    assert mill.one_node.sim.run_until(mill.is_done)
    assert mill.findings() == []
