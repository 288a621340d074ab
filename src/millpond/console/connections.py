"""Limits the connections of browsers; idle ones make room for new ones.

A connection is quiet until a complete request has arrived on it. One that has been quiet for long is closed. At the
limit, a new connection replaces the one that has been quiet longest, among those of the address with the most
connections. So clients that open connections and leave them lose them, and all others are served. If none has been
quiet for long, and one address has more than half of the connections, one of these is closed.

A connection whose client does not read its response is treated alike: the response would hold memory, a connection
and a live view indefinitely.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

CONNECTIONS_MAX: Final = 256
SHARE_MAX: Final = CONNECTIONS_MAX // 2
"""At the limit, an address with more connections than this loses one of its own."""
QUIET_SECONDS: Final = 30.0
TAKEN_BYTES_MIN: Final = 16 << 10
"""A client must read this much in that time; even the slowest connection does."""
STALLED_SECONDS: Final = 5.0
"""At the limit, a client that has read nothing for this long is disconnected."""
CHECK_SECONDS: Final = 1.0


class BrowserConnection(H11Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._quiet_since = self.loop.time()
        self._has_begun = False
        """Whether a part of the next request has arrived."""
        self._unsent = 0
        self._taken_at = self.loop.time()
        """When the client last read, and how much was left then."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether it waits for the client's next request, and the last response is sent."""
        return not self.flow.write_paused and (
            self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        )

    @property
    def waited_seconds(self) -> float:
        """How long the client has kept us waiting: for a request, or to read a response; 0 if it has not."""
        if self.flow.write_paused:
            return self.loop.time() - self._taken_at
        return self.loop.time() - self._quiet_since if self.is_quiet else 0.0

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()
        self._timer = self.loop.call_later(QUIET_SECONDS, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            # From here on the time for a complete request counts, however slowly it arrives.
            self._has_begun, self._quiet_since = True, self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._has_begun, self._quiet_since = False, self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent, self._taken_at = self.transport.get_write_buffer_size(), self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._has_begun:
            # The time for the next request starts now, however long reading the last response took.
            self._quiet_since = self.loop.time()

    def give_up(self) -> None:
        # Without waiting for unsent data: the client may never read it.
        self.connections.discard(self)
        self.transport.abort()

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, BrowserConnection) and each is not self]
        for each in others:
            each._note_taken()
        by_address = Counter(each.address for each in others)
        idle = [each for each in others if each.is_quiet or each.waited_seconds >= STALLED_SECONDS]
        # A client that reads its responses just fast enough, on every connection, must not lock out all others; nor
        # may it take their slots before they have sent a request.
        if by_address[self.address] > SHARE_MAX:
            idle = [each for each in idle if each.address == self.address or each.waited_seconds >= STALLED_SECONDS]
        elif all(each.waited_seconds < STALLED_SECONDS for each in idle):
            # Not a connection that waits for our response: its browser would repeat a request that may have been
            # carried out.
            waited_for = [each for each in others if each.is_quiet or each.flow.write_paused]
            idle = [each for each in waited_for if by_address[each.address] > SHARE_MAX] or idle
        if idle:
            max(idle, key=lambda each: (by_address[each.address], each.waited_seconds)).give_up()
        else:
            # Requests on this connection are answered 503.
            self.limit_concurrency = 0

    def _note_taken(self) -> None:
        # While writing is paused nothing is added, so a smaller buffer means that the client has read.
        unsent = self.transport.get_write_buffer_size()
        if self.flow.write_paused and unsent <= self._unsent - TAKEN_BYTES_MIN:
            self._unsent, self._taken_at = unsent, self.loop.time()

    def _check(self) -> None:
        self._note_taken()
        waited = self.waited_seconds
        if waited >= QUIET_SECONDS:
            self.give_up()
            return
        pause = CHECK_SECONDS if self.flow.write_paused or not waited else QUIET_SECONDS - waited
        self._timer = self.loop.call_later(max(CHECK_SECONDS, pause), self._check)
