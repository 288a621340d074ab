"""A connection to every other broker, on which nothing is said: when a process ends, its connections end with it.

Silence takes long to judge; this finds a broker that was killed at once. A line that breaks is made anew, and where
that cannot be had either, the broker is thought gone. The peer answers one small question on each line, so that one
which is refused can be told from one that was there and broke.
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
"""So many in a row make sure that it is not a peer which starts or is crowded for a moment."""

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
        """`on_broken` hears of a broker whose line was there and has ended.

        `on_refused` hears of one to which no line can be had, again and again while that is so.
        """
        self._world = world
        self._client_id = client_id
        self._addresses = addresses
        self._tell_broken = on_broken
        self._on_refused = on_refused
        self._lines: dict[int, _Line] = {}
        self._refusals: dict[int, int] = {}

    def keep(self, node_ids: Iterable[int]) -> None:
        """Have a line to each of these brokers and to nobody else."""
        wanted = set(node_ids)
        for node_id in self._lines.keys() - wanted:
            self._lines.pop(node_id).let_go()
        for node_id in wanted - self._lines.keys():
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
            self._tell_broken(node_id)
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
    """One connection. What the peer says is not read: that it says anything is enough."""

    def __init__(self, on_broken: Callable[[_Line], None]) -> None:
        self.was_answered = False
        self._on_broken: Callable[[_Line], None] | None = on_broken
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._link: Link | None = None

    def begin(self, link: Link) -> _Line:
        self._link = link
        return self

    def let_go(self) -> None:
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
