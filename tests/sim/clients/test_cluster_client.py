"""The client of simulated clusters sends what a real one would."""

from __future__ import annotations

from random import Random

from millpond.base.errors import ErrorCode
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m


class Node:
    """Keeps requests until the test has them answered."""

    def __init__(self) -> None:
        self.asked = []

    def send(self, request, version, on_reply, **_):
        if isinstance(request, m.ProduceRequest):
            self.asked.append((request, on_reply))

    def answer(self):
        request, on_reply = self.asked.pop(0)
        kind, part = m.ProduceResponse.TopicProduceResponse, m.ProduceResponse.PartitionProduceResponse
        replies = [
            kind(name=topic.name, partition_responses=[part(index=each.index) for each in topic.partition_data])
            for topic in request.topic_data
        ]
        on_reply(m.ProduceResponse(responses=replies))


def produce(*indexes):
    part = m.ProduceRequest.PartitionProduceData
    topics = [
        m.ProduceRequest.TopicProduceData(name="one_node", partition_data=[part(index=index, records=b"")])
        for index in indexes
    ]
    return m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)


def codes(reply):
    return {part.index: part.error_code for topic in reply.responses for part in topic.partition_responses}


def test_no_batch_overtakes_one_that_found_no_leader():
    sim = SimWorld(1)
    client = ClusterClient(sim.network, [1], "producer", Random(1))
    node = client.nodes[1] = Node()
    client._leaders["one_node", 0] = (1, 0)
    replies = []
    client.send(produce(0, 1), 9, replies.append)
    client._leaders["one_node", 1] = (1, 0)
    client.send(produce(1), 9, replies.append)
    sim.run_for(10)
    assert [codes(each) for each in replies] == [{1: ErrorCode.LEADER_NOT_AVAILABLE}]
    node.answer()
    sim.run_for(10)
    assert codes(replies[1]) == {0: ErrorCode.NONE, 1: ErrorCode.LEADER_NOT_AVAILABLE}
    client.send(produce(1), 9, replies.append)
    node.answer()
    sim.run_for(10)
    assert codes(replies[2]) == {1: ErrorCode.NONE}
    assert not node.asked
