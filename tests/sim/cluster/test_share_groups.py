"""Share groups on three nodes: the leader or the share coordinator ends, and the next one continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.sim.cluster.node_cluster import NodeCluster, cut_off
from tests.support.share_members import ACCEPT, GROUP, RELEASE, Member, acquired, initialize, results

from millpond.base.errors import ErrorCode
from millpond.coordinators.shares.keys import SharePartition
from millpond.sim.clients.client import SimClient
from millpond.sim.node import PORT
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

PATIENCE_MS = 60_000


class Caller:
    """A connection to one node of the cluster."""

    def __init__(self, cluster: NodeCluster, node_id: int) -> None:
        self._cluster = cluster
        self._client = SimClient(cluster.sim.network, f"node{node_id}", PORT, "member", timeout_ms=PATIENCE_MS)

    def ask(self, request: m.Message, version: int, *, within_ms: int = PATIENCE_MS) -> Any:
        replies: list[Any] = []
        self._client.send(request, version, replies.append)
        self._cluster.wait(lambda: bool(replies), within_ms)
        return replies[0]


class Nodes:
    """Three nodes, a topic with a replica on each, and members that find its leader."""

    def __init__(self, seed: int, texts: Mapping[str, str] | None = None) -> None:
        self.cluster = NodeCluster(seed, texts=texts)
        self.sim = self.cluster.sim
        topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=1, replication_factor=3)
        request = m.CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        (created,) = self.cluster.ask(self.cluster.controller_id, request, 7).topics
        assert created.error_code == 0
        self.cluster.wait(lambda: all(len(node.broker.partitions) for node in self.cluster.nodes.values()))
        initialize(self, start_offset=0)

    @property
    def broker(self) -> Any:
        return next(node.broker for node_id, node in self.cluster.nodes.items() if node_id == self.leader_id)

    @property
    def leader_id(self) -> int:
        return self.cluster.image.topics["pond"].partitions[0].leader

    def coordinator_id(self, group: str) -> int:
        shares = self.broker.shares
        key = SharePartition(group, self.broker.image.topics["pond"].id, 0).coordinator_key
        return self.cluster.image.topics[shares.topic].partitions[shares.partition_of(key)].leader

    def member(self, member_id: str, group: str = GROUP) -> Member:
        return Member(self, member_id, group=group, caller=Caller(self.cluster, self.leader_id))

    def append(self, *values: bytes) -> None:
        records = [Record(number, self.sim.clock.wall_ms(), None, value) for number, value in enumerate(values)]
        data = m.ProduceRequest.TopicProduceData(
            name="pond",
            partition_data=[
                m.ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytearray(encode_batch(records))))
            ],
        )
        request = m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data])
        (topic,) = self.cluster.ask(self.leader_id, request, 9).responses
        assert topic.partition_responses[0].error_code == 0

    def lead_elsewhere(self, before: int) -> None:
        self.cluster.wait(lambda: self.cluster.controller_id > 0 and self.leader_id not in (before, -1), PATIENCE_MS)
        leader = self.cluster.nodes[self.leader_id].broker
        self.cluster.wait(lambda: leader.partitions.get("pond", 0).is_leader, PATIENCE_MS)


@pytest.mark.parametrize("seed", range(3))
def test_the_next_leader_continues(seed: int) -> None:
    nodes = Nodes(seed)
    nodes.append(b"a", b"b", b"c", b"d")
    member = nodes.member("m")
    assert acquired(member.fetch(0)) == [(0, 3, 1)]
    assert results(member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE))) == [0]
    before = nodes.leader_id
    nodes.cluster.nodes[before].kill()
    nodes.lead_elsewhere(before)
    other = nodes.member("n")
    # What the member held, the killed leader has forgotten.
    assert acquired(other.fetch(0, max_wait_ms=20_000)) == [(1, 1, 2), (2, 3, 1)]
    assert results(other.acknowledge((1, 3, ACCEPT))) == [0]


@pytest.mark.parametrize("seed", range(3))
def test_a_deposed_leader_acknowledges_nothing(seed: int) -> None:
    nodes = Nodes(seed)
    nodes.append(b"a", b"b")
    member = nodes.member("m")
    assert acquired(member.fetch(0)) == [(0, 1, 1)]
    before = nodes.leader_id
    nodes.sim.pause(nodes.cluster.nodes[before].name)
    nodes.cluster.wait(lambda: nodes.cluster.controller_id != before, PATIENCE_MS)
    nodes.lead_elsewhere(before)
    other = nodes.member("n")
    assert acquired(other.fetch(0, max_wait_ms=20_000)) == [(0, 1, 1)]
    assert results(other.acknowledge((0, 0, ACCEPT))) == [0]
    nodes.sim.resume(nodes.cluster.nodes[before].name)
    assert results(member.acknowledge((0, 0, RELEASE), (1, 1, ACCEPT))) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert results(other.acknowledge((1, 1, RELEASE))) == [0]
    assert acquired(other.fetch()) == [(1, 1, 2)]


@pytest.mark.parametrize("seed", range(3))
def test_the_next_share_coordinator_continues(seed: int) -> None:
    nodes = Nodes(seed)
    nodes.append(b"a", b"b")
    groups = (f"g{number}" for number in range(100))
    group = next(each for each in groups if nodes.coordinator_id(each) != nodes.leader_id)
    initialize(nodes, group=group, start_offset=0)
    member = nodes.member("m", group)
    assert acquired(member.fetch(0)) == [(0, 1, 1)]
    nodes.cluster.nodes[nodes.coordinator_id(group)].kill()
    assert results(member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE))) == [0]
    assert acquired(member.fetch()) == [(1, 1, 2)]


@pytest.mark.parametrize("seed", range(3))
def test_a_deposed_leader_delivers_nothing(seed: int) -> None:
    """Members still reach it, but it cannot know what others have finished."""
    nodes = Nodes(seed)
    nodes.append(b"a")
    nodes.append(b"b")
    member, other = nodes.member("m"), nodes.member("n")
    assert acquired(member.fetch(0, max_records=1)) == [(0, 0, 1)]
    before = nodes.leader_id
    cut_off(nodes.cluster, before)
    nodes.lead_elsewhere(before)
    pond = nodes.broker.partitions.get("pond", 0)
    nodes.cluster.wait(lambda: pond.committed_offset == 2)
    third = nodes.member("o")
    assert acquired(third.fetch(0, max_wait_ms=20_000)) == [(0, 1, 1)]
    assert results(third.acknowledge((0, 1, ACCEPT))) == [0]
    assert nodes.cluster.nodes[before].broker.partitions.get("pond", 0).is_leader
    assert acquired(other.fetch(0)) == []
    nodes.sim.network.heal()
    nodes.append(b"c")
    response = other.fetch(epoch=1, max_wait_ms=20_000)
    assert [each.error_code for topic in response.responses for each in topic.partitions] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    ]
