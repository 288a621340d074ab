"""Connections of browsers: there are only so many, and whoever says nothing on one has to make room.

A connection is quiet while no whole request has come on it. One that has been quiet for long is closed; and where all
places are taken, a new connection takes that of the one that has been quiet for longest, among those of the address
that has most. So whoever opens connections and leaves them has them taken away, and everybody else is served. Where
none is quiet for long, and one address has more than half of the places, one of these has to go.

One whose reader does not take what it has asked for is treated alike: what waits for it would hold memory, a place
and one of the live views for as long as it likes.
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
"""An address that has more of them when all are taken gives from its own."""
QUIET_SECONDS: Final = 30.0
TAKEN_BYTES_MIN: Final = 16 << 10
"""So much has to be taken in that time of what waits to be sent; the slowest line does that."""
STALLED_SECONDS: Final = 5.0
"""A reader that has taken nothing for so long has to go where all places are taken."""
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
        """Whether a part of the next request is there."""
        self._unsent = 0
        self._taken_at = self.loop.time()
        """When the reader had last taken a part of what waited for it, and what was left then."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether it is the other side that has something to say, and has got all that it asked for."""
        return not self.flow.write_paused and (
            self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        )

    @property
    def waited_seconds(self) -> float:
        """For how long the other side has let us wait: for a request, or to take what is sent; 0 if it has not."""
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
            # From here on it has its time for the whole of a request, however slowly it says it.
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
            # It has its time for the next request from now on, however long it took to read the last response.
            self._quiet_since = self.loop.time()

    def give_up(self) -> None:
        # Without waiting for what is still to be sent: the other side may be one that takes nothing.
        self.connections.discard(self)
        self.transport.abort()

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, BrowserConnection) and each is not self]
        for each in others:
            each._note_taken()
        by_address = Counter(each.address for each in others)
        idle = [each for each in others if each.is_quiet or each.waited_seconds >= STALLED_SECONDS]
        # Whoever takes what it has asked for just fast enough, on every place, must not lock out all others; nor
        # may it take their places before they have said what they want.
        if by_address[self.address] > SHARE_MAX:
            idle = [each for each in idle if each.address == self.address or each.waited_seconds >= STALLED_SECONDS]
        elif all(each.waited_seconds < STALLED_SECONDS for each in idle):
            # Not one that waits for us: its browser would ask again for what may have been done.
            waited_for = [each for each in others if each.is_quiet or each.flow.write_paused]
            idle = [each for each in waited_for if by_address[each.address] > SHARE_MAX] or idle
        if idle:
            max(idle, key=lambda each: (by_address[each.address], each.waited_seconds)).give_up()
        else:
            # What is asked here is told to come later.
            self.limit_concurrency = 0

    def _note_taken(self) -> None:
        # While writing is paused nothing is added, so that less means that something was taken.
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
