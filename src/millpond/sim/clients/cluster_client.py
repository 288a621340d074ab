"""A client of a cluster, which finds leaders and coordinators and sends each request to the right node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import OnReply, SimClient
from millpond.sim.node import PORT
from millpond.sim.world.network import SimNetwork
from millpond.wire import messages as m
from millpond.wire.messages import Message
from millpond.wire.model import Struct

METADATA_VERSION = 12
FIND_VERSION = 4
TIMEOUT_MS = 4_000
GROUP_KEY, TRANSACTION_KEY = 0, 1
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
WRONG_COORDINATOR = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

Hear = Callable[[Any], None]


class ClusterClient:
    """Connections to every node from one host, and what this client believes about leaders and coordinators.

    `send` takes what `SimClient` takes. Produce and Fetch are split by leader and their responses merged;
    requests of a group or transactional id go to the coordinator, all others to any node.
    """

    def __init__(
        self,
        network: SimNetwork,
        nodes: Iterable[int],
        name: str,
        random: Random,
        *,
        timeout_ms: int = TIMEOUT_MS,
        rack: str = "",
    ) -> None:
        self.name = name
        self.rack = rack
        """With a rack it reads from the replicas that leaders name as preferred (KIP-392)."""
        self.nodes = {
            node_id: SimClient(network, f"node{node_id}", PORT, name, timeout_ms=timeout_ms) for node_id in nodes
        }
        self.clock = network.clock
        self._random = random
        self._favourite = random.choice(list(self.nodes))
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._leaders_changed = 0
        self._preferred: dict[tuple[str, int], tuple[int, int]] = {}
        """The preferred read replica, and the leader epoch in which the leader named it."""
        self.times_sent_elsewhere = 0
        self.unsent: Counter[tuple[str, int]] = Counter()
        """Batches without a known leader, whose producer has no response yet: later ones must not overtake them."""
        self._coordinators: dict[tuple[int, str], int] = {}
        self._ids: dict[UUID, str] = {}
        self._topics: dict[str, None] = {}
        self._is_looking = False

    @property
    def timeout_ms(self) -> int:
        return self.nodes[self._favourite].timeout_ms

    @timeout_ms.setter
    def timeout_ms(self, timeout_ms: int) -> None:
        for client in self.nodes.values():
            client.timeout_ms = timeout_ms

    @property
    def connections_made(self) -> int:
        """Also rises with each change of a leader, as a new leader may know less than the earlier one."""
        return self._leaders_changed + sum(client.connections_made for client in self.nodes.values())

    def disconnect(self) -> None:
        for client in self.nodes.values():
            client.disconnect()

    # Routing

    def send(self, request: Message, version: int, on_reply: OnReply, *, is_answered: bool = True) -> None:
        """`on_reply` is called once, with the response or with None when it is lost."""
        assert is_answered, "no one could tell which of several nodes has received it"
        match request:
            case m.ProduceRequest():
                _Produce(self, request, version, on_reply).start()
            case m.FetchRequest():
                _Fetch(self, request, version, on_reply).start()
            case m.DeleteRecordsRequest():
                self._delete_records(request, version, on_reply)
            case m.FindCoordinatorRequest():
                self.send_to_any(request, version, on_reply)
            case _:
                key = _coordinated_by(request)
                if key is None:
                    self.send_to_any(request, version, on_reply)
                else:
                    self._send_to_coordinator(key, request, version, on_reply)

    def send_to_any(self, request: Message, version: int, on_reply: OnReply) -> None:
        def heard(reply: Any) -> None:
            if reply is None:
                self.change_node()
            on_reply(reply)

        self.nodes[self._favourite].send(request, version, heard)

    def _delete_records(self, request: m.DeleteRecordsRequest, version: int, on_reply: OnReply) -> None:
        """Send the request, for one partition, to its leader; lost at once if there is none."""
        topic = request.topics[0]
        index = topic.partitions[0].partition_index
        leader = self.leader_of(topic.name, index)
        if leader is None:
            self.clock.call_soon(lambda: on_reply(None))
            return
        node_id = leader[0]

        def heard(reply: m.DeleteRecordsResponse | None) -> None:
            if reply is None or reply.topics[0].partitions[0].error_code in WRONG_NODE:
                self.forget_leader(topic.name, index, node_id)
            on_reply(reply)

        self.nodes[node_id].send(request, version, heard)

    def change_node(self) -> None:
        self._favourite = self._random.choice(list(self.nodes))

    # Coordinators

    def _send_to_coordinator(self, key: tuple[int, str], request: Message, version: int, on_reply: OnReply) -> None:
        node_id = self._coordinators.get(key)
        if node_id is None:
            self._find_coordinator(key, request, version, on_reply)
            return

        def heard(reply: Any) -> None:
            if reply is None or any(code in WRONG_COORDINATOR for code in _codes(reply)):
                self._coordinators.pop(key, None)
            on_reply(reply)

        self.nodes[node_id].send(request, version, heard)

    def _find_coordinator(self, key: tuple[int, str], request: Message, version: int, on_reply: OnReply) -> None:
        def heard(reply: m.FindCoordinatorResponse | None) -> None:
            told = None if reply is None else reply.coordinators[0]
            if told is None or told.error_code or told.node_id not in self.nodes:
                self.change_node()
                on_reply(None)
            else:
                self._coordinators[key] = told.node_id
                self._send_to_coordinator(key, request, version, on_reply)

        kind, name = key
        self.send_to_any(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name]), FIND_VERSION, heard)

    # Leaders

    def leader_of(self, topic: str, index: int) -> tuple[int, int] | None:
        """The node that leads and its leader epoch, as far as this client knows."""
        self._topics[topic] = None
        leader = self._leaders.get((topic, index))
        if leader is None:
            self.refresh_leaders()
        return leader

    def source_of(self, topic: str, index: int) -> tuple[int, int] | None:
        """The node to read from, the leader or its preferred replica, and the leader epoch."""
        leader = self.leader_of(topic, index)
        preferred = self._preferred.get((topic, index))
        return preferred if leader is not None and preferred is not None and preferred[1] == leader[1] else leader

    def update_source(self, topic: str, index: int, part: m.FetchResponse.PartitionData) -> bool:
        """Whether a fetch response names another replica to read from; after an error, read from the leader again."""
        if part.error_code:
            if self._preferred.pop((topic, index), None) is not None:
                self._leaders_changed += 1
            return False
        if part.preferred_read_replica < 0:
            return False
        leader = self._leaders.get((topic, index))
        if leader is not None:
            self._preferred[topic, index] = part.preferred_read_replica, leader[1]
            self._leaders_changed += 1
            self.times_sent_elsewhere += 1
        return True

    def name_of(self, name: str, topic_id: UUID) -> str:
        """The topic's name, where a request has only its id."""
        return name or self._ids.get(topic_id, "")

    def expect(self, topic: str, topic_id: UUID) -> None:
        self._topics[topic] = None
        self._ids[topic_id] = topic

    def forget_leader(self, topic: str, index: int, node_id: int) -> None:
        """Refresh the leaders because this node did not act as one, unless another leader is known already."""
        leader = self._leaders.get((topic, index))
        if leader is not None and leader[0] == node_id:
            del self._leaders[topic, index]
            self._leaders_changed += 1
            self.refresh_leaders()

    def refresh_leaders(self) -> None:
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
            self.change_node()
        for topic in reply.topics:
            for part in topic.partitions:
                key = topic.name or "", part.partition_index
                leader = part.leader_id, part.leader_epoch
                if part.leader_id not in self.nodes:
                    self._leaders.pop(key, None)
                    self.change_node()
                elif part.leader_epoch >= self._leaders.get(key, (-1, -1))[1] and self._leaders.get(key) != leader:
                    self._leaders[key] = leader
                    self._leaders_changed += 1


def _coordinated_by(request: Message) -> tuple[int, str] | None:
    """The coordinator key type and key, if the request is for a coordinator."""
    if isinstance(request, m.OffsetFetchRequest):
        return GROUP_KEY, request.groups[0].group_id
    if isinstance(request, m.AddPartitionsToTxnRequest):
        return TRANSACTION_KEY, request.v3_and_below_transactional_id
    if isinstance(request, m.TxnOffsetCommitRequest):
        return GROUP_KEY, request.group_id
    name = getattr(request, "transactional_id", None)
    if name is not None:
        return TRANSACTION_KEY, name
    group_id = getattr(request, "group_id", None)
    return None if group_id is None else (GROUP_KEY, group_id)


def _codes(message: Struct) -> Iterator[int]:
    """All error codes in a response, at any depth."""
    names: tuple[str, ...] = type(message).__slots__
    for name in names:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, Struct):
                yield from _codes(inner)


class _Split:
    """One request to several leaders, answered as one."""

    def __init__(self, client: ClusterClient, version: int, on_reply: OnReply) -> None:
        self._client = client
        self._version = version
        self._on_reply = on_reply
        self._waiting = 1

    def _send(self, requests: dict[int, Any]) -> None:
        self._waiting += len(requests)
        for node_id, request in requests.items():
            self._client.nodes[node_id].send(request, self._version, self._hear(node_id, request))
        # Never inside `send`: the caller would get the response before it has sent everything.
        self._client.clock.call_soon(self._done)

    def _hear(self, node_id: int, request: Any) -> Hear:
        def heard(reply: Any) -> None:
            if reply is None:
                self._lose(node_id, request)
            else:
                self._take(node_id, reply)
            self._done()

        return heard

    def _done(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._on_reply(self._whole())

    def _check(self, name: str, topic_id: UUID, index: int, node_id: int, error: int) -> None:
        if error in WRONG_NODE or error == ErrorCode.REQUEST_TIMED_OUT:
            self._client.forget_leader(self._client.name_of(name, topic_id), index, node_id)

    def _lose(self, node_id: int, request: Any) -> None:
        raise NotImplementedError

    def _take(self, node_id: int, reply: Any) -> None:
        raise NotImplementedError

    def _whole(self) -> Message:
        raise NotImplementedError


class _Produce(_Split):
    def __init__(self, client: ClusterClient, request: m.ProduceRequest, version: int, on_reply: OnReply) -> None:
        super().__init__(client, version, on_reply)
        self._request = request
        self._answers: dict[tuple[str, UUID], m.ProduceResponse.TopicProduceResponse] = {}
        self._unsent: list[tuple[str, int]] = []

    def start(self) -> None:
        asked = self._request
        by_node: dict[int, m.ProduceRequest] = {}
        for topic in asked.topic_data:
            for part in topic.partition_data:
                key = self._client.name_of(topic.name, topic.topic_id), part.index
                leader = self._client.leader_of(*key)
                if leader is None or self._client.unsent[key]:
                    self._answer(topic.name, topic.topic_id, part.index, ErrorCode.LEADER_NOT_AVAILABLE)
                    self._client.unsent[key] += 1
                    self._unsent.append(key)
                    continue
                request = by_node.setdefault(
                    leader[0],
                    m.ProduceRequest(
                        transactional_id=asked.transactional_id,
                        acks=asked.acks,
                        timeout_ms=asked.timeout_ms,
                        topic_data=[],
                    ),
                )
                request.topic_data.append(
                    m.ProduceRequest.TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[part])
                )
        self._send(by_node)

    def _lose(self, node_id: int, request: m.ProduceRequest) -> None:
        for topic in request.topic_data:
            for part in topic.partition_data:
                self._check(topic.name, topic.topic_id, part.index, node_id, ErrorCode.REQUEST_TIMED_OUT)
                self._answer(topic.name, topic.topic_id, part.index, ErrorCode.REQUEST_TIMED_OUT)

    def _take(self, node_id: int, reply: m.ProduceResponse) -> None:
        for topic in reply.responses:
            for part in topic.partition_responses:
                self._check(topic.name, topic.topic_id, part.index, node_id, part.error_code)
                self._put(topic.name, topic.topic_id, part)

    def _answer(self, name: str, topic_id: UUID, index: int, error: ErrorCode) -> None:
        kind = m.ProduceResponse.PartitionProduceResponse
        self._put(name, topic_id, kind(index=index, error_code=error, base_offset=-1))

    def _put(self, name: str, topic_id: UUID, answer: m.ProduceResponse.PartitionProduceResponse) -> None:
        kind = m.ProduceResponse.TopicProduceResponse
        topic = self._answers.setdefault((name, topic_id), kind(name=name, topic_id=topic_id, partition_responses=[]))
        topic.partition_responses.append(answer)

    def _whole(self) -> m.ProduceResponse:
        self._client.unsent.subtract(self._unsent)
        return m.ProduceResponse(responses=list(self._answers.values()))


class _Fetch(_Split):
    """Without fetch sessions, which would differ from node to node."""

    def __init__(self, client: ClusterClient, request: m.FetchRequest, version: int, on_reply: OnReply) -> None:
        super().__init__(client, version, on_reply)
        self._request = request
        self._answers: dict[tuple[str, UUID], m.FetchResponse.FetchableTopicResponse] = {}

    def start(self) -> None:
        asked = self._request
        by_node: dict[int, m.FetchRequest] = {}
        for topic in asked.topics:
            for part in topic.partitions:
                source = self._client.source_of(self._client.name_of(topic.topic, topic.topic_id), part.partition)
                if source is None:
                    self._answer(topic.topic, topic.topic_id, part.partition, ErrorCode.LEADER_NOT_AVAILABLE)
                    continue
                request = by_node.setdefault(
                    source[0],
                    m.FetchRequest(
                        rack_id=self._client.rack,
                        max_wait_ms=asked.max_wait_ms,
                        min_bytes=asked.min_bytes,
                        max_bytes=asked.max_bytes,
                        isolation_level=asked.isolation_level,
                        session_id=0,
                        session_epoch=-1,
                        topics=[],
                        forgotten_topics_data=[],
                    ),
                )
                request.topics.append(
                    m.FetchRequest.FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=[part])
                )
        self._send(by_node)

    def _lose(self, node_id: int, request: m.FetchRequest) -> None:
        for topic in request.topics:
            for part in topic.partitions:
                self._check(topic.topic, topic.topic_id, part.partition, node_id, ErrorCode.REQUEST_TIMED_OUT)
                self._answer(topic.topic, topic.topic_id, part.partition, ErrorCode.REQUEST_TIMED_OUT)

    def _take(self, node_id: int, reply: m.FetchResponse) -> None:
        for topic in reply.responses:
            for part in topic.partitions:
                self._check(topic.topic, topic.topic_id, part.partition_index, node_id, part.error_code)
                name = self._client.name_of(topic.topic, topic.topic_id)
                if self._client.rack and self._client.update_source(name, part.partition_index, part):
                    continue
                self._put(topic.topic, topic.topic_id, part)

    def _answer(self, name: str, topic_id: UUID, index: int, error: ErrorCode) -> None:
        kind = m.FetchResponse.PartitionData
        answer = kind(partition_index=index, error_code=error, high_watermark=-1, records=memoryview(b""))
        self._client.update_source(self._client.name_of(name, topic_id), index, answer)
        self._put(name, topic_id, answer)

    def _put(self, name: str, topic_id: UUID, answer: m.FetchResponse.PartitionData) -> None:
        kind = m.FetchResponse.FetchableTopicResponse
        topic = self._answers.setdefault((name, topic_id), kind(topic=name, topic_id=topic_id, partitions=[]))
        topic.partitions.append(answer)

    def _whole(self) -> m.FetchResponse:
        return m.FetchResponse(responses=list(self._answers.values()))
