"""A peer that keeps what it hears, and clients of a simulated node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.base.ports import Link
from millpond.sim.admin import SimAdmin
from millpond.sim.client import SimClient
from millpond.sim.history import History
from millpond.sim.world import SimWorld


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


@pytest.fixture
def make_client() -> Callable[[SimWorld, str], SimClient]:
    """A client of the node that every simulated world calls `node`."""
    return lambda sim, name: SimClient(sim.network, "node", 9092, name)


@pytest.fixture
def make_admin() -> Callable[[SimWorld, History], SimAdmin]:
    return lambda sim, history: SimAdmin(SimClient(sim.network, "node", 9092, "admin"), sim.clock, history)
