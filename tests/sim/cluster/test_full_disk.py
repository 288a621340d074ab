"""One disk of three is full: the others go on, and the node gets nothing back before it has room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.sim.cluster.node_cluster import NodeCluster, code_of, produce

from millpond.base.errors import ErrorCode
from millpond.broker.storage.disk_reserve import RESERVE_FILE
from millpond.sim.node import DATA_FOLDER
from millpond.wire import messages as m

REBALANCE = {"leader.imbalance.check.interval.seconds": "2"}


class FullDisk(NodeCluster):
    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        super().__init__(texts={**REBALANCE, **(texts or {})})
        self.victim = self.other(self.controller_id)
        self.create(self.victim, partitions=4)

    def fill(self, left_bytes: int = 0) -> None:
        self.nodes[self.victim].disk.fill(left_bytes)

    def write(self) -> ErrorCode:
        """One record to the present leader, as a client would that has just asked for it."""
        replies = produce(self, self.partition().leader, acks=-1)
        self.wait(lambda: bool(replies), within_ms=30_000)
        return code_of(replies[0])

    def leaders(self) -> set[int]:
        return {each.leader for each in self.image.topics["pond"].partitions}


@pytest.mark.parametrize("left_bytes", [0, 100, 1000])
def test_writes_go_on_while_one_disk_is_full(left_bytes: int) -> None:
    """The full node must not rejoin the ISR, nor get its leaderships back, before it has room."""
    full = FullDisk()
    full.fill(left_bytes)
    written, slowest_ms, led_by_victim, was_full = 0, 0, 0, False
    for _ in range(120):
        began_ms = full.sim.clock.now_ms
        code = full.write()
        slowest_ms = max(slowest_ms, full.sim.clock.now_ms - began_ms)
        written += code is ErrorCode.NONE
        full.sim.run_for(250)
        led_by_victim += was_full and full.victim in full.leaders()
        was_full |= full.victim in full.image.full_brokers
    assert was_full
    assert written > 110
    assert slowest_ms < 3_000
    assert not led_by_victim
    assert all(full.victim not in each.isr for each in full.image.topics["pond"].partitions)


def test_a_node_with_room_again_catches_up_and_leads_again() -> None:
    full = FullDisk()
    full.fill()
    full.wait(lambda: full.write() is ErrorCode.NONE and full.leaders() != {full.victim})
    full.sim.run_for(5_000)
    disk = full.nodes[full.victim].disk
    disk.capacity_bytes += 1_500
    full.sim.run_for(5_000)
    assert full.victim not in full.partition().isr, "a little room is not enough"
    disk.make_room()
    full.wait(full.is_whole)
    assert disk.exists(f"{DATA_FOLDER}/{RESERVE_FILE}")
    full.wait(lambda: full.leaders() == {full.victim})
    full.wait(lambda: full.nodes[full.victim].broker.partitions.get("pond", 0).is_leader)
    assert full.write() is ErrorCode.NONE


def test_new_topics_are_led_by_nodes_with_room() -> None:
    full = FullDisk()
    full.fill()
    full.wait(lambda: full.write() is ErrorCode.NONE and full.victim in full.image.full_brokers)
    topic = m.CreateTopicsRequest.CreatableTopic(name="late", num_partitions=6, replication_factor=3)
    reply = full.ask(full.controller_id, m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
    assert [each.error_code for each in reply.topics] == [0]
    partitions = full.image.topics["late"].partitions
    assert all(each.leader != full.victim and full.victim not in each.isr for each in partitions)


def delete(cluster: NodeCluster, node_id: int, name: str) -> Any:
    state = m.DeleteTopicsRequest.DeleteTopicState(name=name)
    return cluster.ask(node_id, m.DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6).responses[0].error_code


def alone() -> NodeCluster:
    cluster = NodeCluster(count=1)
    topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=1)
    reply = cluster.ask(1, m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
    assert [each.error_code for each in reply.topics] == [0]
    for _ in range(50):
        replies = produce(cluster, 1, acks=-1)
        cluster.wait(lambda replies=replies: bool(replies))  # type: ignore[misc]
        assert code_of(replies[0]) is ErrorCode.NONE
    return cluster


@pytest.mark.parametrize("ends", ["stop", "kill", "crash"])
def test_a_single_node_on_a_full_disk_starts_and_deletes_a_topic(ends: str) -> None:
    cluster = alone()
    node = cluster.nodes[1]
    node.disk.fill()
    replies = produce(cluster, 1, acks=-1)
    cluster.wait(lambda: bool(replies))
    assert code_of(replies[0]) is ErrorCode.KAFKA_STORAGE_ERROR
    # Another process fills the space that the reserve had kept.
    getattr(node, ends)()
    cluster.wait(lambda: not node.is_up)
    assert node.start(), node.journal_lines[-5:]
    replies = produce(cluster, 1, acks=-1)
    cluster.wait(lambda: bool(replies))
    assert code_of(replies[0]) is ErrorCode.KAFKA_STORAGE_ERROR, "there is no room for records"
    used = node.disk.used_bytes()
    assert delete(cluster, 1, "pond") == 0
    cluster.wait(lambda: node.disk.used_bytes() < used, within_ms=3_000)


@pytest.mark.parametrize("ends", ["stop", "kill", "crash"])
def test_a_disk_that_fills_while_the_node_is_down_does_not_keep_it_from_starting(ends: str) -> None:
    cluster = alone()
    node = cluster.nodes[1]
    getattr(node, ends)()
    cluster.wait(lambda: not node.is_up)
    node.disk.fill()
    assert node.start(), node.journal_lines[-5:]
    cluster.sim.run_for(1_000)
    assert delete(cluster, 1, "pond") == 0
    node.disk.make_room()
    cluster.sim.run_for(3_000)
    assert any("disk has room again" in line for line in node.journal_lines)


@pytest.mark.parametrize(
    "intervals", [{}, {"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "9000"}]
)
def test_a_full_leader_has_no_lease_once_others_may_lead(intervals: dict[str, str]) -> None:
    """The controller gives its partitions away without waiting for a lease to end."""
    full = FullDisk(intervals)
    victim = full.victim
    assert full.write() is ErrorCode.NONE
    full.sim.run_for(1_500)
    full.fill()
    produce(full, victim, acks=-1)
    full.wait(lambda: full.partition().leader != victim)
    for other in full.nodes.keys() - {victim}:
        full.sim.network.partition(f"node{victim}", f"node{other}")
    for _ in range(300):
        full.sim.run_for(10)
        partition = full.nodes[victim].broker.partitions.get("pond", 0)
        assert partition.leader_role is None or not partition.leader_role.is_certain


class FullFollower(FullDisk):
    """A node whose disk is full follows partitions of which only the first one is written to."""

    def __init__(self) -> None:
        NodeCluster.__init__(self, texts=REBALANCE)
        self.victim = self.other(self.controller_id)
        self.create(self.other(self.controller_id, self.victim), partitions=8)
        self.wait(self.is_whole)
        self.fill()
        self.wait(lambda: self.write() is ErrorCode.NONE and self.victim in self.image.full_brokers)
        self.sim.run_for(5_000)

    def epochs(self) -> list[int]:
        return [each.partition_epoch for each in self.image.topics["pond"].partitions]


def test_a_full_follower_stays_out_of_the_isr_of_idle_partitions() -> None:
    """Its fetches say that it has everything; that it has no room for more, its leader hears from the controller."""
    full = FullFollower()
    epochs = full.epochs()
    for _ in range(60):
        full.sim.run_for(500)
        assert all(full.victim not in each.isr for each in full.image.topics["pond"].partitions)
    assert full.epochs() == epochs
    full.nodes[full.victim].disk.make_room()
    full.wait(full.is_whole, within_ms=5_000)


def test_a_full_follower_stays_out_when_the_controller_changes() -> None:
    full = FullFollower()
    epochs, was = full.epochs(), full.controller_id
    full.nodes[was].broker.controller.resign()
    full.wait(lambda: full.controller_id not in (0, was))
    full.sim.run_for(20_000)
    assert full.victim in full.image.full_brokers
    assert sum(full.epochs()) - sum(epochs) <= 2 * len(epochs), "each partition may be granted once and taken back"
    full.nodes[full.victim].disk.make_room()
    full.wait(full.is_whole, within_ms=5_000)


def test_full_followers_are_in_sync_where_the_leader_is_full_too() -> None:
    """Keeping them out would gain nothing, and leave the records on one disk."""
    full = FullFollower()
    for node in full.nodes.values():
        node.disk.fill()
    full.wait(lambda: (full.write() is not ErrorCode.NONE) and len(full.image.full_brokers) == 3, within_ms=30_000)
    full.wait(lambda: all(len(each.isr) == 3 for each in full.image.topics["pond"].partitions[1:]), within_ms=30_000)


def test_a_controller_without_disk_space_for_metadata_hands_over() -> None:
    """While it stays controller, no broker can register, be fenced or be elected."""
    cluster = NodeCluster()
    cluster.sim.run_for(1_000)
    was = cluster.controller_id
    disk = cluster.nodes[was].disk
    # Another process fills the space that the reserve had kept.
    for _ in range(3):
        disk.fill()
        cluster.sim.run_for(200)
    topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=3)
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    assert cluster.ask(was, request, 7).topics[0].error_code != 0
    cluster.wait(lambda: cluster.controller_id not in (0, was), within_ms=5_000)
    assert cluster.ask(cluster.controller_id, request, 7).topics[0].error_code == 0


def test_a_controller_without_disk_space_stays_if_the_others_have_no_majority() -> None:
    """They would need its vote, which it cannot write either; while it stays, it grants leases."""
    cluster = NodeCluster()
    cluster.sim.run_for(1_000)
    was = cluster.controller_id
    cluster.nodes[cluster.other(was)].kill()
    cluster.wait(lambda: sum(broker.fenced for broker in cluster.image.brokers.values()) == 1)
    for _ in range(3):
        cluster.nodes[was].disk.fill()
        cluster.sim.run_for(200)
    topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=1)
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    assert cluster.ask(was, request, 7).topics[0].error_code != 0
    cluster.sim.run_for(3_000)
    assert cluster.controller_id == was
