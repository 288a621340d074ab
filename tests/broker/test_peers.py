"""A node sends requests to others by id: addresses are looked up each time, and an unknown id fails at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from millpond.broker.peers.peers import NodeAddresses, Peers
from millpond.broker.peers.requester import RequestLost
from millpond.config.node import node_settings
from millpond.metadata.image import Image
from millpond.metadata.records import BrokerEndpoint
from millpond.quorum.voters import Voter, VoterEndPoint
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m


class TwoNodes:
    """Two standalone nodes, and a caller."""

    def __init__(self) -> None:
        self.sim = SimWorld(5)
        self.nodes = [SimNode(self.sim, name) for name in ("a", "b")]
        assert all(node.start() for node in self.nodes)
        self.addresses = {1: ("a", 9092), 2: ("b", 9092)}
        self.heard: list[Any] = []
        self.peers = Peers(self.sim.start("asker"), "asker", self.addresses.get)

    def ask(self, node_id: int) -> Any:
        self.heard.clear()
        self.peers.ask(node_id, m.ApiVersionsRequest(), 0, 2_000).then(self.heard.append, self.heard.append)
        assert self.sim.run_until(lambda: bool(self.heard), within_ms=3_000)
        return self.heard[0]


def test_each_node_is_asked_over_its_own_connection() -> None:
    nodes = TwoNodes()
    for node_id in (1, 2, 1):
        assert isinstance(nodes.ask(node_id), m.ApiVersionsResponse)
    assert [len(node.broker.connections) for node in nodes.nodes] == [1, 1]


def test_a_request_to_an_unknown_node_fails_at_once() -> None:
    lost = TwoNodes().ask(7)
    assert isinstance(lost, RequestLost)
    assert not lost.is_cut


def test_a_node_that_moved_is_asked_where_it_is_now() -> None:
    nodes = TwoNodes()
    nodes.ask(1)
    nodes.addresses[1] = ("b", 9092)
    assert isinstance(nodes.ask(1), m.ApiVersionsResponse)
    assert [len(node.broker.connections) for node in nodes.nodes] == [0, 1]


def test_a_killed_node_is_told_from_a_silent_one() -> None:
    nodes = TwoNodes()
    nodes.nodes[0].kill()
    nodes.sim.pause("b")
    assert nodes.ask(1).is_cut
    assert not nodes.ask(2).is_cut


def test_what_the_operator_wrote_goes_before_what_a_node_says(make_server: Any) -> None:
    image: Image = make_server().broker.image
    alone = NodeAddresses(node_settings({}), image)
    assert alone(1) == ("node", 9092)
    assert alone(2) is None
    several = NodeAddresses(node_settings({"cluster.nodes": "1@10.0.0.1:7,2@10.0.0.2:8"}), image)
    assert [several(1), several(2), several(3)] == [("10.0.0.1", 7), ("10.0.0.2", 8), None]


SSL, CLEAR = 1, 0
BOTH = {
    "listeners": "PLAINTEXT://h:1,SAFE://h:2",
    "listener.security.protocol.map": "SAFE:SSL",
    "ssl.keystore.location": "/n.pem",
    "ssl.truststore.location": "/ca.pem",
}


def registered(*end_points: BrokerEndpoint) -> Any:
    return SimpleNamespace(brokers={2: SimpleNamespace(end_points=end_points)})


def test_a_node_is_reached_by_its_listener_of_the_same_name_as_ours() -> None:
    clear, safe = BrokerEndpoint("PLAINTEXT", "two", 1, CLEAR), BrokerEndpoint("SAFE", "two", 2, SSL)
    by_safe = node_settings({**BOTH, "inter.broker.listener.name": "SAFE"})
    by_clear = node_settings({**BOTH, "inter.broker.listener.name": "PLAINTEXT"})
    for image in (registered(clear, safe), registered(safe, clear)):
        assert NodeAddresses(by_safe, image)(2) == ("two", 2)
        assert NodeAddresses(by_clear, image)(2) == ("two", 1)
    # A listener of another name is used if its protocol is the same, not otherwise.
    assert NodeAddresses(by_safe, registered(clear, BrokerEndpoint("TLS", "two", 7, SSL)))(2) == ("two", 7)
    assert NodeAddresses(by_safe, registered(clear))(2) is None
    told = NodeAddresses(by_safe, registered(clear, safe)).by_listener("PLAINTEXT")
    assert told(2) == ("two", 1), "plaintext clients get plaintext addresses"


def test_of_a_leader_that_tells_where_it_is_the_listener_of_our_name_counts() -> None:
    addresses = NodeAddresses(node_settings({**BOTH, "inter.broker.listener.name": "SAFE"}), Image())
    kind = m.BeginQuorumEpochRequest.LeaderEndpoint
    addresses.learn_leader(2, [kind(name="SAFE", host="two", port=2), kind(name="PLAINTEXT", host="two", port=1)])
    assert addresses(2) == ("two", 2)
    addresses.learn_leader(3, [])
    assert addresses(3) is None


def test_voters_are_known_by_all_their_listeners() -> None:
    addresses = NodeAddresses(node_settings({**BOTH, "inter.broker.listener.name": "SAFE"}), Image())
    end_points = (VoterEndPoint("PLAINTEXT", "two", 1), VoterEndPoint("SAFE", "two", 2))
    addresses.voters = lambda: (Voter(2, UUID(int=2), end_points), Voter(3, UUID(int=3), end_points[:1]))
    assert addresses(2) == ("two", 2)
    assert addresses(3) == ("two", 1), "better than none"
