"""Nodes reach the controller over a separate listener if one is configured, with its own address and login."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.settings import SettingError
from millpond.broker.requests.call import is_of_node
from millpond.broker.requests.connection import Connection
from millpond.config.node import node_settings
from millpond.sim.clients.client import SimClient
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.header import NAMES, decode_request_header

PUBLIC, INTERNAL, CONTROLLER = 9092, 9093, 9094
NUMBERS = (1, 2, 3)
MAP = {
    "listener.security.protocol.map": "PUBLIC:PLAINTEXT,INTERNAL:SSL,CONTROLLER:SASL_SSL",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
    "ssl.client.auth": "required",
    "ssl.keystore.location": "CN=node",
    "ssl.truststore.location": "/ca.pem",
    "inter.broker.sasl.username": "node",
    "inter.broker.sasl.password": "sesame",
    "super.users": "User:CN=node;User:node",
    "allow.everyone.if.no.acl.found": "true",
}


def addresses(port: int) -> str:
    return ",".join(f"{each}@host-{each}:{port}" for each in NUMBERS)


def texts_of(number: int) -> dict[str, str]:
    ports = {"PUBLIC": PUBLIC, "INTERNAL": INTERNAL, "CONTROLLER": CONTROLLER}
    return {
        **MAP,
        "node.id": str(number),
        "listeners": ",".join(f"{name}://host-{number}:{port}" for name, port in ports.items()),
        "cluster.nodes": addresses(INTERNAL),
        "controller.quorum.voters": addresses(CONTROLLER),
    }


class ListenerCluster:
    def __init__(self) -> None:
        self.sim = SimWorld(3)
        self.nodes = {number: SimNode(self.sim, f"host-{number}", texts_of(number)) for number in NUMBERS}
        self.asked: Counter[tuple[str, str]] = Counter()
        """Requests from nodes, counted by API and listener."""
        for number, node in self.nodes.items():
            del node.texts["listen"]
            self.start(number)
        self.wait(lambda: self.active() == set(NUMBERS))

    def start(self, number: int) -> None:
        node = self.nodes[number]
        assert node.start(), node.journal_lines
        dispatcher = node.broker.dispatcher
        handle = dispatcher.handle

        def note(connection: Connection, frame: memoryview) -> None:
            if not connection.must_log_in:
                header = decode_request_header(frame)
                is_from_node = connection.may_be_node and is_of_node(header.client_id)
                self.asked[NAMES[header.api_key], connection.link.listener] += is_from_node
            handle(connection, frame)

        dispatcher.handle = note  # type: ignore[method-assign]

    def wait(self, condition: Any) -> None:
        assert self.sim.run_until(condition, within_ms=60_000), [
            *(line for node in self.nodes.values() for line in node.journal_lines),
            *self.sim.network.faults,
        ]

    def active(self) -> set[int]:
        for node in self.nodes.values():
            if node.is_up and node.broker.controller.is_active:
                return {each for each in NUMBERS if node.broker.image.is_active(each)}
        return set()

    def ask(self, number: int, request: m.Message, version: int, name: str = "client") -> Any:
        client = SimClient(self.sim.network, f"host-{number}", PUBLIC, name, timeout_ms=20_000)
        replies: list[Any] = []
        client.send(request, version, replies.append)
        self.wait(lambda: bool(replies))
        return replies[0]

    def listeners(self, name: str) -> set[str]:
        return {listener for (api, listener), count in self.asked.items() if api == name and count}


@pytest.fixture(scope="module")
def cluster() -> ListenerCluster:
    cluster = ListenerCluster()
    kind = m.CreateTopicsRequest.CreatableTopic
    for number in NUMBERS:
        wanted = kind(name=f"by-{number}", num_partitions=3, replication_factor=3, assignments=[], configs=[])
        reply = cluster.ask(number, m.CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 5)
        assert [each.error_code for each in reply.topics] == [ErrorCode.NONE]
    cluster.sim.run_for(3_000)
    return cluster


def test_the_quorum_and_the_controller_are_asked_by_their_own_listener(cluster: ListenerCluster) -> None:
    for name in ("Vote", "BrokerRegistration", "BrokerHeartbeat", "AllocateProducerIds", "CreateTopics"):
        assert cluster.listeners(name) == {"CONTROLLER"}, name
    # Metadata is fetched over one listener, records over the other.
    assert cluster.listeners("Fetch") == {"CONTROLLER", "INTERNAL"}


def test_it_stays_so_when_the_controller_is_lost_and_comes_back(cluster: ListenerCluster) -> None:
    number = next(each for each, node in cluster.nodes.items() if node.broker.controller.is_active)
    cluster.nodes[number].kill()
    cluster.wait(lambda: cluster.active() == set(NUMBERS) - {number})
    cluster.start(number)
    cluster.wait(lambda: cluster.active() == set(NUMBERS))
    assert cluster.listeners("Vote") == {"CONTROLLER"}


def test_clients_are_not_told_of_it(cluster: ListenerCluster) -> None:
    reply = cluster.ask(1, m.MetadataRequest(topics=[]), 9)
    assert {each.port for each in reply.brokers} == {PUBLIC}


def test_a_client_that_calls_itself_a_node_is_none_by_another_listener(cluster: ListenerCluster) -> None:
    """Even where `allow.everyone.if.no.acl.found` permits everything."""
    reply = cluster.ask(1, m.AllocateProducerIdsRequest(broker_id=2, broker_epoch=1), 0, "millpond-node-2")
    assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_node_that_does_not_know_where_the_others_have_theirs_does_not_start() -> None:
    texts = texts_of(1)
    texts["controller.quorum.voters"] = f"1@host-1:{CONTROLLER},2@host-2:{CONTROLLER}"
    with pytest.raises(SettingError, match="include the address of node 3 on it"):
        node_settings(texts)


def test_describe_quorum_names_only_the_controller_listener(cluster: ListenerCluster) -> None:
    """From any node: a node that is not the controller forwards the request over a listener that clients do not
    use.
    """
    partition = m.DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = m.DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    for number in NUMBERS:
        reply = cluster.ask(number, m.DescribeQuorumRequest(topics=[topic]), 2)
        told = {(each.name, each.host, each.port) for node in reply.nodes for each in node.listeners}
        assert told == {("PUBLIC", f"host-{each}", PUBLIC) for each in NUMBERS}
