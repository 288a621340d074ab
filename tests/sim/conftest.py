"""A peer that keeps what it hears."""

from __future__ import annotations

import pytest

from millpond.base.ports import Link


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
