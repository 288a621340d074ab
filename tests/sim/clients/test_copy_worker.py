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


class CopySetup:
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

    def worker(self, name: str, style: WorkerStyle, transactional_id: str = "setup") -> CopyWorker:
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
def setup(one_node) -> CopySetup:
    return CopySetup(one_node)


@pytest.mark.parametrize("is_v2", [True, False])
def test_everything_is_copied_exactly_once(setup: CopySetup, is_v2: bool) -> None:
    setup.worker("one", replace(CALM, is_v2=is_v2, abort_share=0.3, sends_late=True))
    assert setup.one_node.sim.run_until(setup.is_done)
    setup.one_node.sim.run_for(6_000)
    assert setup.findings() == []
    assert setup.history.counts["transactions aborted"] > 0


@pytest.mark.parametrize("is_v2", [True, False])
def test_a_zombie_is_fenced_when_it_wakes_up(setup: CopySetup, is_v2: bool) -> None:
    style = replace(CALM, is_v2=is_v2, ends_slowly=True)
    zombie = setup.worker("zombie", style)
    setup.one_node.sim.run_until(lambda: len(setup.history.transactions) == 3)
    zombie.freeze()
    heir = setup.worker("heir", style)
    setup.one_node.sim.run_until(lambda: len(setup.history.transactions) > 6)
    zombie.thaw()
    assert setup.one_node.sim.run_until(setup.is_done)
    assert (zombie.is_fenced, heir.is_fenced) == (True, False)
    assert setup.findings() == []


def test_an_orphaned_transaction_blocks_others_until_it_times_out(setup: CopySetup) -> None:
    orphan = setup.worker("orphan", replace(CALM, is_orphan=True, timeout_ms=3_000), "orphan")
    assert setup.one_node.sim.run_until(lambda: orphan.is_over)
    began_ms = setup.clock.now_ms
    setup.worker("one", CALM)
    assert setup.one_node.sim.run_until(setup.is_done)
    assert setup.clock.now_ms > began_ms + 2_500
    assert setup.findings() == []


def test_workers_survive_a_power_cut(setup: CopySetup) -> None:
    setup.worker("one", CALM)
    setup.one_node.sim.run_until(lambda: len(setup.history.transactions) == 4)
    setup.one_node.node.crash()
    assert setup.one_node.node.start()
    assert setup.one_node.sim.run_until(setup.is_done)
    assert setup.findings() == []
