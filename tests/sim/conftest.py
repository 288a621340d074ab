"""A peer that keeps what it hears, and clients of a simulated node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.ports import Link
from millpond.sim.admin import SimAdmin
from millpond.sim.clients.client import SimClient
from millpond.sim.clients.producer import SimProducer
from millpond.sim.clients.reader import SimReader
from millpond.sim.history.records import Content, History, TopicIdPartition
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld


class Listening:
    def __init__(self, link: Link, echo: bool = False) -> None:
        self.link = link
        self.data = bytearray()
        self.pieces: list[bytes] = []
        self.closed_count = 0
        self._echo = echo
        self._room = memoryview(bytearray(65536))

    def buffer(self) -> memoryview:
        return self._room

    def received(self, count: int) -> None:
        piece = bytes(self._room[:count])
        self.data += piece
        self.pieces.append(piece)
        if self._echo:
            self.link.send([piece])

    def drained(self) -> None: ...

    def closed(self) -> None:
        self.closed_count += 1


@pytest.fixture
def make_peer() -> type[Listening]:
    return Listening


class OneNode:
    """A node with one topic of two partitions, and clients for it."""

    def __init__(self, seed: int = 5) -> None:
        self.sim = SimWorld(seed)
        self.node = SimNode(self.sim)
        self.history = History()
        assert self.node.start()
        self.admin = SimAdmin(self.client("admin"), self.sim.clock, self.history)
        self.wait_for(lambda then: self.admin.create("t", 2, {}, then))
        (topic_id,) = self.history.topics["t"].ids
        assert topic_id is not None
        self.partitions = [TopicIdPartition("t", topic_id, number) for number in range(2)]

    def client(self, name: str = "client") -> SimClient:
        return SimClient(self.sim.network, "node", 9092, name)

    def producer(self, **choices: Any) -> SimProducer:
        return SimProducer(self.client("producer"), self.sim.clock, self.history, self.sim.network.random, **choices)

    def reader(self, **choices: Any) -> SimReader:
        return SimReader(self.client("reader"), self.sim.clock, self.history, self.partitions, **choices)

    def contents(self, count: int) -> list[Content]:
        return [Content(f"tag{number}", None, b"v" * number, self.sim.clock.wall_ms()) for number in range(count)]

    def wait_for(self, operation: Callable[[Callable[[], None]], None]) -> None:
        """Begin something that tells when it is done, and let it be done."""
        done: list[int] = []
        operation(lambda: done.append(1))
        assert self.sim.run_until(lambda: bool(done))


@pytest.fixture
def one_node() -> OneNode:
    return OneNode()
