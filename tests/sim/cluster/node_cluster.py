"""A cluster of simulated nodes, and what tests do to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millpond.base.errors import ErrorCode
from millpond.metadata.image import Image
from millpond.sim.clients.client import SimClient
from millpond.sim.node import PORT, SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch


class NodeCluster:
    """Three nodes by default, started and registered."""

    def __init__(self, seed: int = 1, count: int = 3, texts: Mapping[str, str] | None = None) -> None:
        self.sim = SimWorld(seed)
        numbers = range(1, count + 1)
        members = ",".join(f"{node_id}@node{node_id}:{PORT}" for node_id in numbers)
        self.nodes = {
            node_id: SimNode(
                self.sim, f"node{node_id}", {"node.id": str(node_id), "cluster.nodes": members, **(texts or {})}
            )
            for node_id in numbers
        }
        for node in self.nodes.values():
            assert node.start(), node.journal_lines
        self.wait(lambda: all(node.broker.lifecycle.ready.ended for node in self.nodes.values()))

    def wait(self, condition: Callable[[], bool], within_ms: int = 10_000) -> int:
        """Until it holds; how long that took."""
        began_ms = self.sim.clock.now_ms
        assert self.sim.run_until(condition, within_ms=within_ms), "\n".join(
            line for node in self.nodes.values() for line in node.journal_lines[-15:]
        )
        return self.sim.clock.now_ms - began_ms

    @property
    def controller_id(self) -> int:
        active = [
            (node.broker.controller.leader_epoch, node_id)
            for node_id, node in self.nodes.items()
            if node.is_up and node.broker.controller.is_active
        ]
        return max(active)[1] if active else 0

    @property
    def image(self) -> Image:
        return self.nodes[self.controller_id].broker.image

    def other(self, *but: int) -> int:
        return next(node_id for node_id in self.nodes if node_id not in but)

    def ask(self, node_id: int, request: m.Message, version: int) -> Any:
        replies: list[Any] = []
        client = SimClient(self.sim.network, f"node{node_id}", PORT, "client")
        client.send(request, version, replies.append)
        self.wait(lambda: bool(replies))
        return replies[0]

    def create(
        self, first: int, partitions: int = 1, replicas: tuple[int, ...] | None = None, min_isr: str = "2"
    ) -> Any:
        """A topic whose partitions this node leads; another one is asked for it."""
        others = [node_id for node_id in self.nodes if node_id != first]
        replicas = replicas or (first, *others)
        topic = m.CreateTopicsRequest.CreatableTopic(
            name="pond",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index in range(partitions)
            ],
            configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value=min_isr)],
        )
        reply = self.ask(others[0], m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert [each.error_code for each in reply.topics] == [0]
        # The answer comes when the asked node knows of it; those who are to lead and to follow may hear it later.
        self.wait(lambda: all(self._has_opened(first, node_id, partitions) for node_id in replicas))
        return self.image.topics["pond"]

    def _has_opened(self, leader: int, node_id: int, partitions: int) -> bool:
        found = [self.nodes[node_id].broker.partitions.get("pond", index) for index in range(partitions)]
        return all(each is not None and each.is_leader == (node_id == leader) for each in found)

    def partition(self) -> Any:
        return self.image.topics["pond"].partitions[0]

    def is_whole(self) -> bool:
        return (
            self.controller_id != 0
            and len(self.image.brokers) == 3
            and all(not broker.fenced for broker in self.image.brokers.values())
            and all(len(each.isr) == 3 for topic in self.image.topics.values() for each in topic.partitions)
        )


def produce(cluster: NodeCluster, node_id: int, acks: int, sequence: int | None = None) -> list[Any]:
    """One record, written to a node, by producer 7 if it has a number; where its answer will be."""
    kind = m.ProduceRequest
    numbers = {} if sequence is None else {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    batch = encode_batch([Record(0, 1, b"k", b"v")], **numbers)
    data = kind.PartitionProduceData(index=0, records=memoryview(bytearray(batch)))
    topic = kind.TopicProduceData(name="pond", partition_data=[data])
    replies: list[Any] = []
    client = SimClient(cluster.sim.network, f"node{node_id}", PORT, "client")
    client.send(kind(acks=acks, timeout_ms=20_000, topic_data=[topic]), 12, replies.append)
    return replies


def code_of(reply: Any) -> ErrorCode:
    return ErrorCode(reply.responses[0].partition_responses[0].error_code)


def leader_told_by(cluster: NodeCluster, node_id: int) -> int:
    topic = m.MetadataRequest.MetadataRequestTopic(name="pond")
    response = cluster.ask(node_id, m.MetadataRequest(topics=[topic], allow_auto_topic_creation=False), 12)
    return int(response.topics[0].partitions[0].leader_id)


def cut_off(cluster: NodeCluster, victim: int) -> list[int]:
    others = [node_id for node_id in cluster.nodes if node_id != victim]
    for node_id in others:
        cluster.sim.network.partition(f"node{victim}", f"node{node_id}")
    return others
