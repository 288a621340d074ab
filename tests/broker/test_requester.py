"""A node sends requests to another one: responses in order, a deadline for each, and a lost link reported once."""

from __future__ import annotations

from struct import Struct
from typing import Any

import pytest

from millpond.base.ports import Link
from millpond.broker.peers.requester import Requester, RequestLost
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

TIMEOUT_MS = 2_000


class NodeAndCaller:
    """A node, and a caller on another host."""

    def __init__(self) -> None:
        self.sim = SimWorld(3)
        self.node = SimNode(self.sim)
        assert self.node.start()
        asker = self.sim.start("asker")
        self.requester = Requester(asker.network, asker.clock, "node", self.node.port, "asker")
        self.heard: list[Any] = []

    def ask(self) -> None:
        self.requester.ask(m.ApiVersionsRequest(), 0, TIMEOUT_MS).then(self.heard.append, self.heard.append)

    def heard_all(self, count: int, within_ms: int = 10_000) -> bool:
        return self.sim.run_until(lambda: len(self.heard) == count, within_ms=within_ms)


@pytest.fixture
def pair() -> NodeAndCaller:
    return NodeAndCaller()


def test_each_request_gets_its_answer_over_one_connection(pair: NodeAndCaller) -> None:
    for _ in range(5):
        pair.ask()
    assert pair.requester.in_flight == 5
    assert pair.heard_all(5)
    assert all(isinstance(each, m.ApiVersionsResponse) for each in pair.heard)
    assert (pair.requester.in_flight, pair.requester.connections_made) == (0, 1)


def test_an_overdue_answer_is_lost_and_the_next_request_connects_anew(pair: NodeAndCaller) -> None:
    pair.sim.pause("node")
    pair.ask()
    pair.sim.run_for(TIMEOUT_MS - 10)
    assert pair.heard == []
    assert pair.heard_all(1, within_ms=20)
    assert isinstance(pair.heard[0], RequestLost)
    pair.sim.resume("node")
    pair.ask()
    assert pair.heard_all(2)
    assert isinstance(pair.heard[1], m.ApiVersionsResponse)
    assert pair.requester.connections_made == 2


def test_an_exclusive_request_supersedes_the_one_before_it_on_a_connection_of_its_own(pair: NodeAndCaller) -> None:
    """A leader takes two fetches on one connection as proof that its first response has arrived."""
    asker = pair.sim.start("other")
    pair.requester = Requester(asker.network, asker.clock, "node", pair.node.port, "other", is_exclusive=True)
    pair.sim.pause("node")
    pair.ask()
    pair.sim.run_for(100)
    pair.ask()
    assert pair.heard_all(1, within_ms=1)
    assert isinstance(pair.heard[0], RequestLost)
    assert not pair.heard[0].is_cut, "the node has not refused anything"
    pair.sim.resume("node")
    assert pair.heard_all(2)
    assert isinstance(pair.heard[1], m.ApiVersionsResponse)
    assert pair.requester.connections_made == 2
    pair.ask()
    assert pair.heard_all(3)
    assert pair.requester.connections_made == 2


def test_a_broken_connection_is_told_to_all_that_wait_once(pair: NodeAndCaller) -> None:
    pair.ask()
    pair.ask()
    pair.node.kill()
    assert pair.heard_all(2, within_ms=100)
    assert all(isinstance(each, RequestLost) for each in pair.heard)
    pair.sim.run_for(10_000)
    assert len(pair.heard) == 2


def test_one_who_gives_up_costs_no_other_its_answer_where_many_ask(pair: NodeAndCaller) -> None:
    pair.requester.is_shared = True
    pair.sim.pause("node")
    pair.ask()
    pair.requester.ask(m.ApiVersionsRequest(), 0, 100).then(pair.heard.append, pair.heard.append)
    assert pair.heard_all(1, within_ms=200)
    assert isinstance(pair.heard[0], RequestLost)
    pair.sim.resume("node")
    assert pair.heard_all(2)
    assert isinstance(pair.heard[1], m.ApiVersionsResponse)
    pair.ask()
    assert pair.heard_all(3)
    assert isinstance(pair.heard[2], m.ApiVersionsResponse)
    assert pair.requester.connections_made == 2
    pair.sim.run_for(100)
    assert len(pair.node.broker.connections) == 1, "the first connection has no pending request left"


def test_abandoned_requests_are_dropped_when_many_are_pending(pair: NodeAndCaller) -> None:
    pair.requester.is_shared = True
    pair.sim.pause("node")
    pair.ask()
    pair.ask()
    assert pair.heard_all(2, within_ms=TIMEOUT_MS + 10)
    assert all(isinstance(each, RequestLost) for each in pair.heard)
    pair.sim.resume("node")
    pair.sim.run_for(1_000)
    assert len(pair.node.broker.connections) == 0


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\7", b"\0\0\0\1\0\0"], ids=["empty", "wrong number", "cut short"])
def test_a_peer_that_answers_nonsense_is_left(frame: bytes) -> None:
    sim = SimWorld(1)
    asker, peer = sim.start("asker"), sim.start("peer")

    class Nonsense:
        def __init__(self, link: Link) -> None:
            self._link = link
            self._room = memoryview(bytearray(1 << 16))

        def buffer(self) -> memoryview:
            return self._room

        def received(self, count: int) -> None:
            self._link.send([Struct(">i").pack(len(frame)) + frame])

        def drained(self) -> None: ...

        def closed(self) -> None: ...

    peer.network.listen("", 9092, Nonsense)
    replies: list[Any] = []
    requester = Requester(asker.network, asker.clock, "peer", 9092, "asker")
    requester.ask(m.ApiVersionsRequest(), 0, TIMEOUT_MS).then(replies.append, replies.append)
    assert sim.run_until(lambda: bool(replies), within_ms=TIMEOUT_MS - 100)
    assert isinstance(replies[0], RequestLost)
    assert sim.network.faults


@pytest.mark.parametrize("for_bulk", [True, False])
def test_only_bulk_may_be_large_and_slow(for_bulk: bool) -> None:
    sim = SimWorld(3)
    asker, peer = sim.start("asker"), sim.start("peer")
    links: list[Link] = []

    class Slow:
        def __init__(self, link: Link) -> None:
            links.append(link)

        def buffer(self) -> memoryview:
            return memoryview(bytearray(1_000))

        def received(self, count: int) -> None:
            links[0].send([Struct(">i").pack(70 << 20)])

        def drained(self) -> None: ...

        def closed(self) -> None: ...

    peer.network.listen("", 9092, Slow)
    replies: list[Any] = []
    requester = Requester(asker.network, asker.clock, "peer", 9092, "asker", for_bulk=for_bulk)
    requester.ask(m.ApiVersionsRequest(), 0, TIMEOUT_MS).then(replies.append, replies.append)
    for _ in range(5):
        sim.run_for(TIMEOUT_MS - 100)
        if not replies:
            links[0].send([b"some of it"])
    assert bool(replies) is not for_bulk
    sim.run_for(2 * TIMEOUT_MS)
    assert isinstance(replies[0], RequestLost), "nothing came any more"
