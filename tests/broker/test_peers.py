"""A node asks others by their ids: where they are is looked up each time, and who is unknown is lost at once."""

from __future__ import annotations

from typing import Any

from millpond.broker.links.peers import NodeAddresses, Peers
from millpond.broker.links.requester import RequestLost
from millpond.config.node import node_settings
from millpond.metadata.image import Image
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m


class Desk:
    """Two nodes that are alone, and one who asks them."""

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
    desk = Desk()
    for node_id in (1, 2, 1):
        assert isinstance(desk.ask(node_id), m.ApiVersionsResponse)
    assert [len(node.broker.connections) for node in desk.nodes] == [1, 1]


def test_a_node_that_nobody_knows_is_lost_at_once() -> None:
    lost = Desk().ask(7)
    assert isinstance(lost, RequestLost)
    assert not lost.is_cut


def test_a_node_that_moved_is_asked_where_it_is_now() -> None:
    desk = Desk()
    desk.ask(1)
    desk.addresses[1] = ("b", 9092)
    assert isinstance(desk.ask(1), m.ApiVersionsResponse)
    assert [len(node.broker.connections) for node in desk.nodes] == [0, 1]


def test_a_killed_node_is_told_from_a_silent_one() -> None:
    desk = Desk()
    desk.nodes[0].kill()
    desk.sim.pause("b")
    assert desk.ask(1).is_cut
    assert not desk.ask(2).is_cut


def test_what_the_operator_wrote_goes_before_what_a_node_says(make_desk: Any) -> None:
    image: Image = make_desk().broker.image
    alone = NodeAddresses(node_settings({}), image)
    assert alone(1) == ("node", 9092)
    assert alone(2) is None
    several = NodeAddresses(node_settings({"cluster.nodes": "1@10.0.0.1:7,2@10.0.0.2:8"}), image)
    assert [several(1), several(2), several(3)] == [("10.0.0.1", 7), ("10.0.0.2", 8), None]
