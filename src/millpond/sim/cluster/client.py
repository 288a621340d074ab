"""A client of a cluster: it asks who leads what, and sends each request to the right node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.client import OnReply, SimClient
from millpond.sim.node import PORT
from millpond.sim.world.network import SimNetwork
from millpond.wire import messages as m
from millpond.wire.messages import Message

METADATA_VERSION = 12
TIMEOUT_MS = 4_000
WRONG_NODE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class ClusterClient:
    """Connections to every node from one host, and what this client believes about leaders.

    `send` takes what `SimClient` takes: Produce is split by leader and its answers put together, anything else goes
    to whoever answers.
    """

    def __init__(self, network: SimNetwork, nodes: Iterable[int], name: str, random: Random) -> None:
        self.name = name
        self.nodes = {
            node_id: SimClient(network, f"node{node_id}", PORT, name, timeout_ms=TIMEOUT_MS) for node_id in nodes
        }
        self.clock = network.clock
        self._random = random
        self._favourite = random.choice(list(self.nodes))
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._ids: dict[UUID, str] = {}
        self._topics: dict[str, None] = {}
        self._is_looking = False

    def disconnect(self) -> None:
        for client in self.nodes.values():
            client.disconnect()

    # Whoever answers

    def send(self, request: Message, version: int, on_reply: OnReply, *, is_answered: bool = True) -> None:
        """`on_reply` comes exactly once, with the response or with None when that is lost."""
        assert is_answered, "nobody could tell which of several nodes has heard it"
        if isinstance(request, m.ProduceRequest):
            _Produce(self, request, version, on_reply).start()
        else:
            self.send_to_any(request, version, on_reply)

    def send_to_any(self, request: Message, version: int, on_reply: OnReply) -> None:
        def heard(reply: Any) -> None:
            if reply is None:
                self.look_elsewhere()
            on_reply(reply)

        self.nodes[self._favourite].send(request, version, heard)

    def look_elsewhere(self) -> None:
        self._favourite = self._random.choice(list(self.nodes))

    # Who leads

    def leader_of(self, topic: str, index: int) -> tuple[int, int] | None:
        """The node that leads and its leader epoch, as far as this client knows."""
        self._topics[topic] = None
        leader = self._leaders.get((topic, index))
        if leader is None:
            self.look_for_leaders()
        return leader

    def name_of(self, topic_id: UUID) -> str | None:
        return self._ids.get(topic_id)

    def expect(self, topic: str, topic_id: UUID) -> None:
        self._topics[topic] = None
        self._ids[topic_id] = topic

    def forget_leader(self, topic: str, index: int, node_id: int) -> None:
        """That node did not do as a leader; ask who leads, unless somebody else is known already."""
        leader = self._leaders.get((topic, index))
        if leader is not None and leader[0] == node_id:
            del self._leaders[topic, index]
            self.look_for_leaders()

    def look_for_leaders(self) -> None:
        if self._is_looking or not self._topics:
            return
        self._is_looking = True
        request = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=name) for name in self._topics],
            allow_auto_topic_creation=False,
        )
        self.send_to_any(request, METADATA_VERSION, self._on_metadata)

    def _on_metadata(self, reply: m.MetadataResponse | None) -> None:
        self._is_looking = False
        if reply is None:
            return
        if any(topic.error_code for topic in reply.topics):
            self.look_elsewhere()
        for topic in reply.topics:
            for part in topic.partitions:
                if part.leader_id in self.nodes:
                    known = self._leaders.get((topic.name or "", part.partition_index), (-1, -1))
                    if part.leader_epoch >= known[1]:
                        self._leaders[topic.name or "", part.partition_index] = part.leader_id, part.leader_epoch
                else:
                    self._leaders.pop((topic.name or "", part.partition_index), None)
                    self.look_elsewhere()


class _Produce:
    """One Produce request to several leaders, answered as one."""

    def __init__(self, client: ClusterClient, request: m.ProduceRequest, version: int, on_reply: OnReply) -> None:
        self._client = client
        self._request = request
        self._version = version
        self._on_reply = on_reply
        self._answers: dict[tuple[str, UUID], m.ProduceResponse.TopicProduceResponse] = {}
        self._waiting = 1

    def start(self) -> None:
        by_node: dict[int, m.ProduceRequest] = {}
        for topic in self._request.topic_data:
            name = topic.name or self._client.name_of(topic.topic_id) or ""
            for part in topic.partition_data:
                leader = self._client.leader_of(name, part.index)
                if leader is None:
                    self._answer(topic.name, topic.topic_id, part.index, ErrorCode.LEADER_NOT_AVAILABLE)
                    continue
                request = by_node.setdefault(
                    leader[0],
                    m.ProduceRequest(acks=self._request.acks, timeout_ms=self._request.timeout_ms, topic_data=[]),
                )
                request.topic_data.append(
                    m.ProduceRequest.TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[part])
                )
        self._waiting += len(by_node)
        for node_id, request in by_node.items():
            self._client.nodes[node_id].send(request, self._version, self._hear(node_id, request))
        # Never while it is being sent: whoever waits for it would be called before it knows that it waits.
        self._client.clock.call_soon(self._done)

    def _hear(self, node_id: int, request: m.ProduceRequest) -> Callable[[m.ProduceResponse | None], None]:
        def heard(reply: m.ProduceResponse | None) -> None:
            if reply is None:
                for topic in request.topic_data:
                    for part in topic.partition_data:
                        name = topic.name or self._client.name_of(topic.topic_id) or ""
                        self._client.forget_leader(name, part.index, node_id)
                        self._answer(topic.name, topic.topic_id, part.index, ErrorCode.REQUEST_TIMED_OUT)
            else:
                for answer in reply.responses:
                    name = answer.name or self._client.name_of(answer.topic_id) or ""
                    for part_answer in answer.partition_responses:
                        if part_answer.error_code in WRONG_NODE:
                            self._client.forget_leader(name, part_answer.index, node_id)
                        self._take(answer.name, answer.topic_id, part_answer)
            self._done()

        return heard

    def _answer(self, name: str, topic_id: UUID, index: int, error: ErrorCode) -> None:
        self._take(
            name,
            topic_id,
            m.ProduceResponse.PartitionProduceResponse(index=index, error_code=error, base_offset=-1),
        )

    def _take(self, name: str, topic_id: UUID, answer: m.ProduceResponse.PartitionProduceResponse) -> None:
        topic = self._answers.setdefault(
            (name, topic_id),
            m.ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[]),
        )
        topic.partition_responses.append(answer)

    def _done(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._on_reply(m.ProduceResponse(responses=list(self._answers.values())))
