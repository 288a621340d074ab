"""Two processes run with one node id and different data folders: only one of them counts towards a majority."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.metadata.decision import Decision
from millpond.metadata.image import ALL_BROKERS
from millpond.metadata.records import ConfigRecord
from millpond.sim.cluster.plan import make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.sim.node import PORT, SimNode

KINDS = (
    *["second process"] * 4,
    "isolation of a leader",
    "kill of the controller",
    "rejecting isolation of the controller",
    "split",
    "power cut",
)


class Duplicate(NodeCluster):
    """Three nodes: the controller, `other`, and `victim`, whose id a second process takes."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.leader = self.controller_id
        self.victim, self.other_id = (node_id for node_id in self.nodes if node_id != self.leader)
        texts = {**self.nodes[self.victim].texts, "listen": f"twin:{PORT}", "data.folder": "/var/twin"}
        self.twin = SimNode(self.sim, "twin", texts)

    def start_twin(self) -> None:
        assert self.twin.start()
        end = self.nodes[self.leader].broker.controller.applied_offset
        self.wait(lambda: self.twin.broker.controller.applied_offset >= end)
        self.sim.run_for(2_000)

    def isolate_leader_with_twin(self) -> None:
        for node_id in (self.victim, self.other_id):
            self.sim.network.partition(f"node{self.leader}", f"node{node_id}")

    def submit(self, node_id: int, value: str) -> list[Any]:
        """Set a config at the controller on this node; the list receives the outcome."""
        record = ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, "test", value)
        answers: list[Any] = []
        controller = self.nodes[node_id].broker.controller
        controller.submit(lambda _: Decision((record,), value)).then(answers.append, answers.append)
        return answers

    def value(self) -> str | None:
        return self.image.config_of(ALL_BROKERS).get("test")


@pytest.mark.parametrize("seed", [0, 14, 21])
def test_clusters_keep_their_promises_while_nodes_run_twice(seed: int) -> None:
    """Seed 14 fenced a broker that held a lease, and 21 dropped committed metadata, while both processes counted."""
    scenario = Scenario(seed, make_plan(seed, KINDS))
    outcome = scenario.run()
    assert not outcome.violations, "\n".join([*scenario.story(), *outcome.violations])


@pytest.mark.parametrize("seed", range(4))
def test_a_record_that_only_the_second_process_has_is_not_committed(seed: int) -> None:
    cluster = Duplicate(seed)
    cluster.start_twin()
    cluster.isolate_leader_with_twin()
    answers = cluster.submit(cluster.leader, "lost")
    cluster.sim.run_for(1_000)
    was_committed = answers == ["lost"]
    cluster.nodes[cluster.leader].crash()
    cluster.twin.crash()
    cluster.wait(lambda: cluster.controller_id not in (0, cluster.leader), within_ms=20_000)
    cluster.sim.run_for(1_000)
    assert not was_committed, f"acknowledged, and the next controller has {cluster.value()}"


def test_a_leader_that_only_the_second_process_follows_resigns() -> None:
    cluster = Duplicate()
    cluster.start_twin()
    controller = cluster.nodes[cluster.leader].broker.controller
    cluster.isolate_leader_with_twin()
    cluster.wait(lambda: not controller.host.is_leader, within_ms=5_000)


def test_the_second_process_stays_a_new_voter_and_the_cluster_goes_on() -> None:
    cluster = Duplicate()
    cluster.start_twin()
    cluster.sim.run_for(5_000)
    assert cluster.twin.broker.controller.host.is_new
    answers = cluster.submit(cluster.controller_id, "kept")
    cluster.wait(lambda: answers == ["kept"])
    assert cluster.is_whole()


def test_a_wiped_node_counts_once_it_has_registered_with_its_new_folder() -> None:
    cluster = Duplicate()
    before = cluster.image.brokers[cluster.victim].directory_id
    cluster.nodes[cluster.victim].kill()
    cluster.sim.wipe(f"node{cluster.victim}")
    assert cluster.nodes[cluster.victim].start()
    cluster.wait(lambda: not cluster.nodes[cluster.victim].broker.controller.host.is_new)
    assert cluster.image.brokers[cluster.victim].directory_id != before
    cluster.nodes[cluster.other_id].kill()
    answers = cluster.submit(cluster.leader, "kept")
    cluster.wait(lambda: answers == ["kept"])


def test_a_wiped_node_is_counted_after_all_nodes_have_restarted() -> None:
    """The images start from snapshots, which may name the folder before."""
    cluster = Duplicate()
    cluster.nodes[cluster.victim].kill()
    cluster.sim.wipe(f"node{cluster.victim}")
    assert cluster.nodes[cluster.victim].start()
    cluster.wait(lambda: not cluster.nodes[cluster.victim].broker.controller.host.is_new)
    cluster.wait(cluster.is_whole)
    cluster.sim.run_for(500)
    for node in cluster.nodes.values():
        node.kill()
    for node_id in (cluster.victim, cluster.leader):
        assert cluster.nodes[node_id].start()
    cluster.wait(lambda: cluster.controller_id != 0)
    answers = cluster.submit(cluster.controller_id, "kept")
    cluster.wait(lambda: answers == ["kept"])


def test_a_folder_that_was_replaced_counts_no_longer() -> None:
    """The node moved to a new disk; then someone starts the old disk again, beside it."""
    cluster = Duplicate()
    cluster.nodes[cluster.victim].kill()
    assert cluster.twin.start()
    cluster.wait(lambda: not cluster.twin.broker.controller.host.is_new, within_ms=20_000)
    cluster.wait(lambda: not cluster.image.brokers[cluster.victim].fenced, within_ms=20_000)
    leader = cluster.controller_id
    others = [
        name for name in ("node1", "node2", "node3", "twin") if name not in (f"node{leader}", f"node{cluster.victim}")
    ]
    assert cluster.nodes[cluster.victim].start()
    cluster.sim.run_for(2_000)
    for name in others:
        cluster.sim.network.partition(f"node{leader}", name)
    answers = cluster.submit(leader, "lost")
    cluster.sim.run_for(1_000)
    assert answers != ["lost"], "committed with the old disk"
