"""Several nodes of which one alone keeps the metadata, as the cores of a machine do: the others go on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import SimClient
from millpond.sim.node import PORT, SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

COUNT = 3
TOPIC = "pond"


class Cores:
    """Three nodes; the first one votes."""

    def __init__(self, seed: int = 1) -> None:
        self.sim = SimWorld(seed)
        members = ",".join(f"{each}@node{each}:{PORT}" for each in range(1, COUNT + 1))
        self.texts = {"cluster.nodes": members, "cluster.voters": "1"}
        self.nodes = {
            each: SimNode(self.sim, f"node{each}", {"node.id": str(each), **self.texts})
            for each in range(1, COUNT + 1)
        }

    def start(self) -> None:
        for node in self.nodes.values():
            assert node.is_up or node.start(), node.journal_lines
        self.wait(self.is_whole)

    def is_whole(self) -> bool:
        return all(
            node.is_up
            and node.broker.lifecycle.ready.ended
            and sum(each.is_active for each in node.broker.image.brokers.values()) == COUNT
            for node in self.nodes.values()
        )

    def wait(self, condition: Callable[[], bool], within_ms: int = 10_000) -> int:
        began_ms = self.sim.clock.now_ms
        assert self.sim.run_until(condition, within_ms=within_ms), "\n".join(
            line for node in self.nodes.values() for line in node.journal_lines[-15:]
        )
        return self.sim.clock.now_ms - began_ms

    def ask(self, node_id: int, request: m.Message, version: int) -> Any:
        replies: list[Any] = []
        SimClient(self.sim.network, f"node{node_id}", PORT, "client").send(request, version, replies.append)
        self.wait(lambda: bool(replies))
        return replies[0]

    def create(self, by: int, name: str = TOPIC) -> ErrorCode:
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=COUNT, replication_factor=-1, assignments=[], configs=[]
        )
        reply = self.ask(by, m.CreateTopicsRequest(topics=[topic], timeout_ms=2000), 7)
        code = ErrorCode(reply.topics[0].error_code)
        if code is ErrorCode.NONE:
            # The answer comes when the asked node knows of it; the others may hear it later.
            up = [node for node in self.nodes.values() if node.is_up]
            self.wait(lambda: all(name in node.broker.image.topics for node in up))
        return code

    def led_by(self, node_id: int, name: str = TOPIC) -> int:
        """The partition that it leads."""
        image = self.nodes[node_id].broker.image
        return next(index for index, each in enumerate(image.topics[name].partitions) if each.leader == node_id)

    def write(self, node_id: int, index: int) -> ErrorCode:
        kind = m.ProduceRequest
        batch = memoryview(bytearray(encode_batch([Record(0, 1, b"k", b"v")])))
        data = kind.PartitionProduceData(index=index, records=batch)
        topic = kind.TopicProduceData(name=TOPIC, partition_data=[data])
        reply = self.ask(node_id, kind(acks=-1, timeout_ms=5000, topic_data=[topic]), 12)
        return ErrorCode(reply.responses[0].partition_responses[0].error_code)

    def end_offset(self, node_id: int, index: int) -> int:
        partition = self.nodes[node_id].broker.partitions.get(TOPIC, index)
        assert partition is not None
        return partition.committed_offset


@pytest.fixture
def cores() -> Cores:
    made = Cores()
    made.start()
    return made


def test_topics_have_one_replica_and_are_on_all_of_them(cores: Cores) -> None:
    assert cores.create(by=2) is ErrorCode.NONE
    partitions = cores.nodes[1].broker.image.topics[TOPIC].partitions
    assert sorted(each.replicas for each in partitions) == [(1,), (2,), (3,)]
    assert [node.broker.controller.is_active for node in cores.nodes.values()] == [True, False, False]


def test_the_others_write_on_while_the_voter_is_gone_and_it_comes_back(cores: Cores) -> None:
    assert cores.create(by=2) is ErrorCode.NONE
    index = cores.led_by(2)
    cores.nodes[1].kill()
    for _ in range(5):
        # Also when it has been gone for longer than any session lasts.
        assert cores.write(2, index) is ErrorCode.NONE
        cores.sim.run_for(1000)
    assert cores.create(by=3, name="late") is not ErrorCode.NONE
    assert cores.nodes[1].start()
    assert cores.wait(cores.is_whole) < 2000
    assert cores.create(by=3, name="later") is ErrorCode.NONE
    assert cores.write(1, cores.led_by(1)) is ErrorCode.NONE
    assert cores.write(2, index) is ErrorCode.NONE
    assert cores.end_offset(2, index) == 6


def test_one_that_is_killed_leads_again_what_only_it_has(cores: Cores) -> None:
    assert cores.create(by=1) is ErrorCode.NONE
    index = cores.led_by(3)
    assert cores.write(3, index) is ErrorCode.NONE
    cores.nodes[3].kill()
    cores.wait(lambda: cores.nodes[1].broker.image.brokers[3].fenced)
    assert cores.write(2, cores.led_by(2)) is ErrorCode.NONE
    assert cores.nodes[3].start()
    assert cores.wait(cores.is_whole) < 2000
    cores.wait(lambda: cores.nodes[3].broker.partitions.get(TOPIC, index) is not None)
    assert cores.write(3, index) is ErrorCode.NONE
    assert cores.end_offset(3, index) == 2


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_started_again_at_once_need_not_wait_for_the_end_of_its_session(seed: int) -> None:
    cores = Cores(seed)
    cores.start()
    assert cores.create(by=1) is ErrorCode.NONE
    index = cores.led_by(3)
    cores.sim.run_for(1000)
    for number in range(1, 4):
        cores.nodes[3].kill()
        assert cores.nodes[3].start()
        assert cores.wait(cores.is_whole) < 800
        cores.wait(lambda: cores.nodes[3].broker.partitions.get(TOPIC, index) is not None)
        assert cores.write(3, index) is ErrorCode.NONE
        assert cores.end_offset(3, index) == number
        cores.sim.run_for(500)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_acknowledged_survives_the_power_of_all(seed: int) -> None:
    cores = Cores(seed)
    cores.start()
    assert cores.create(by=1) is ErrorCode.NONE
    indexes = {node_id: cores.led_by(node_id) for node_id in cores.nodes}
    for node_id, index in indexes.items():
        assert cores.write(node_id, index) is ErrorCode.NONE
    for node in cores.nodes.values():
        node.crash()
    cores.start()
    for node_id, index in indexes.items():
        cores.wait(lambda node_id=node_id, index=index: cores.nodes[node_id].broker.partitions.get(TOPIC, index))  # type: ignore[misc]
        assert cores.write(node_id, index) is ErrorCode.NONE
        assert cores.end_offset(node_id, index) == 2


def test_a_node_that_was_alone_becomes_the_first_of_several_and_keeps_its_topics() -> None:
    cores = Cores()
    alone = SimNode(cores.sim, "node1", {"node.id": "1"})
    assert alone.start()
    cores.nodes = {1: alone} | {each: node for each, node in cores.nodes.items() if each != 1}
    assert cores.create(by=1) is ErrorCode.NONE
    for index in range(COUNT):
        assert cores.write(1, index) is ErrorCode.NONE
    alone.stop()
    cores.wait(lambda: not alone.is_up)
    cores.nodes[1] = SimNode(cores.sim, "node1", {"node.id": "1", **cores.texts})
    cores.start()
    cores.wait(lambda: cores.nodes[1].broker.partitions.get(TOPIC, COUNT - 1) is not None)
    for index in range(COUNT):
        assert cores.write(1, index) is ErrorCode.NONE
        assert cores.end_offset(1, index) == 2
    assert cores.create(by=3, name="new") is ErrorCode.NONE
    leaders = {each.leader for each in cores.nodes[3].broker.image.topics["new"].partitions}
    assert leaders == {1, 2, 3}
