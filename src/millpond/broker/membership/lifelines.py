"""Idle connections from the controller to every broker, which reveal a killed process at once.

A session takes seconds to expire; a connection closes the moment its process dies. A closed connection is reopened,
and a broker that refuses to reopen it is presumed dead. Each connection carries one ApiVersions request, which tells
a connection that was established and broke from one that was never accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from millpond.wire import messages as m
from millpond.wire.header import encode_request_header

if TYPE_CHECKING:
    from millpond.base.ports import Link, World
    from millpond.broker.peers.peers import Addresses

AGAIN_MS: Final = 50
AGAIN_MS_MAX: Final = 1_000
REFUSALS: Final = 2
"""A single refusal may come from a peer that is starting or briefly overloaded; this many in a row do not."""

SCRATCH_BYTES: Final = 4096
_LENGTH = Struct(">i")


class Lifelines:
    def __init__(
        self,
        world: World,
        client_id: str,
        addresses: Addresses,
        on_broken: Callable[[int], None],
        on_refused: Callable[[int], None],
    ) -> None:
        """Call `on_broken` when an established connection closes, and `on_refused` after each refused attempt."""
        self._world = world
        self._client_id = client_id
        self._addresses = addresses
        self._report_broken = on_broken
        self._on_refused = on_refused
        self._lines: dict[int, _Line] = {}
        self._refusals: dict[int, int] = {}

    def keep(self, node_ids: Iterable[int]) -> None:
        """Keep a connection to each of these brokers and to no others."""
        brokers = set(node_ids)
        for node_id in self._lines.keys() - brokers:
            self._lines.pop(node_id).abort()
        for node_id in brokers - self._lines.keys():
            self._refusals[node_id] = 0
            self._connect(node_id)

    def _connect(self, node_id: int) -> None:
        address = self._addresses(node_id)
        if address is None:
            return
        line = self._lines[node_id] = _Line(partial(self._on_broken, node_id))
        link = self._world.network.connect(*address, line.begin)
        body = encode_request_header(18, 0, 0, self._client_id) + m.ApiVersionsRequest().encode(0)
        link.send([_LENGTH.pack(len(body)), body])

    def _on_broken(self, node_id: int, line: _Line) -> None:
        if self._lines.get(node_id) is not line:
            return
        if line.was_answered:
            self._report_broken(node_id)
        self._refusals[node_id] = 0 if line.was_answered else self._refusals[node_id] + 1
        refusals = self._refusals[node_id]
        if refusals >= REFUSALS:
            self._on_refused(node_id)
        wait_ms = min(AGAIN_MS << min(refusals, 10), AGAIN_MS_MAX) if refusals else 0
        self._world.clock.call_later(wait_ms, partial(self._again, node_id, line))

    def _again(self, node_id: int, line: _Line) -> None:
        if self._lines.get(node_id) is line:
            self._connect(node_id)


class _Line:
    """One connection. The content of the response does not matter, only that it arrives."""

    def __init__(self, on_broken: Callable[[_Line], None]) -> None:
        self.was_answered = False
        self._on_broken: Callable[[_Line], None] | None = on_broken
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._link: Link | None = None

    def begin(self, link: Link) -> _Line:
        self._link = link
        return self

    def abort(self) -> None:
        self._on_broken = None
        if self._link is not None:
            self._link.abort()

    def buffer(self) -> memoryview:
        return self._scratch

    def received(self, count: int) -> None:
        self.was_answered = True

    def drained(self) -> None: ...

    def closed(self) -> None:
        if self._on_broken is not None:
            self._on_broken(self)
