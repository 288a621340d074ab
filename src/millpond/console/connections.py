"""Connections of browsers: there are only so many, and whoever says nothing on one has to make room.

A connection is quiet while no whole request has come on it. One that has been quiet for long is closed; and where all
places are taken, a new connection takes that of the one that has been quiet for longest, among those of the address
that has most. So whoever opens connections and leaves them has them taken away, and everybody else is served.
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
QUIET_SECONDS: Final = 30.0


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
        """Whether a part of the next request is there."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether it is the other side that has something to say."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

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
            # From here on it has its time for the whole of a request, however slowly it says it.
            self._has_begun, self._quiet_since = True, self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._has_begun, self._quiet_since = False, self.loop.time()
        super().on_response_complete()

    def give_up(self) -> None:
        # Without waiting for what is still to be sent: the other side may be one that takes nothing.
        self.connections.discard(self)
        self.transport.abort()

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, BrowserConnection) and each is not self]
        by_address = Counter(each.address for each in others)
        quiet = [each for each in others if each.is_quiet]
        if quiet:
            min(quiet, key=lambda each: (-by_address[each.address], each._quiet_since)).give_up()
        else:
            # What is asked here is told to come later.
            self.limit_concurrency = 0

    def _check(self) -> None:
        spent = self.loop.time() - self._quiet_since
        if self.is_quiet and spent >= QUIET_SECONDS:
            self.give_up()
            return
        self._timer = self.loop.call_later(max(1.0, QUIET_SECONDS - spent), self._check)
