"""All connections: how many there may be, who has been silent too long, and the end of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

from millpond.base.ports import Clock, Link, LinkHandler
from millpond.base.settings import Settings
from millpond.broker.serving.connection import Connection, Dispatch
from millpond.broker.serving.request_memory import RequestMemory
from millpond.config.node import (
    CONNECTIONS_MAX_IDLE_MS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_INFLIGHT_REQUESTS_PER_CONNECTION,
    QUEUED_MAX_REQUEST_BYTES,
    SOCKET_REQUEST_MAX_BYTES,
)
from millpond.wire.frames import FrameReader, SpareRoom

SCRATCH_BYTES = 64 * 1024
SPARE_BYTES_MAX = 8 << 20
"""How much of the memory of large requests is kept for the next ones."""
"""One buffer that all connections read into; what is left of a frame in it moves to a buffer of its own."""

UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""A client that leaves this much unread is not read from until it has caught up."""


class Connections:
    def __init__(self, dispatcher: Dispatch, clock: Clock, settings: Callable[[], Settings]) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._settings = settings
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._spare_room = SpareRoom(SPARE_BYTES_MAX)
        self._open: dict[Connection, str] = {}
        self._numbers = count()
        self._per_host: Counter[str] = Counter()
        self._memory = RequestMemory(settings()[QUEUED_MAX_REQUEST_BYTES])
        self.turned_away_total = 0
        self._closing = False

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, link: Link) -> LinkHandler | None:
        """Take a new peer, or None when it is one too many."""
        settings = self._settings()
        host = link.peer.rpartition(":")[0]
        if (
            self._closing
            or len(self._open) >= settings[MAX_CONNECTIONS]
            or self._per_host[host] >= settings[MAX_CONNECTIONS_PER_IP]
        ):
            self.turned_away_total += 1
            return None
        connection = Connection(
            link,
            self._dispatcher,
            FrameReader(self._scratch, settings[SOCKET_REQUEST_MAX_BYTES], self._spare_room),
            self._memory,
            in_flight_max=settings[MAX_INFLIGHT_REQUESTS_PER_CONNECTION],
            unsent_bytes_max=UNSENT_BYTES_MAX,
            on_closed=self._forget,
        )
        connection.number = next(self._numbers)
        connection.last_active_ms = self._clock.monotonic_ms()
        self._open[connection] = host
        self._per_host[host] += 1
        return connection

    def _forget(self, connection: Connection) -> None:
        host = self._open.pop(connection)
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def drop_idle(self) -> None:
        """Close those on which nothing has moved for too long, whether they are silent or do not read, and those that
        hold memory for a large request and do not send it."""
        now_ms = self._clock.monotonic_ms()
        idle_since = now_ms - self._settings()[CONNECTIONS_MAX_IDLE_MS]
        others_wait = self._memory.is_short
        for connection in list(self._open):
            if connection.last_active_ms < idle_since or connection.is_too_slow(now_ms, others_wait=others_wait):
                connection.drop()

    def begin_closing(self) -> None:
        """Take nobody new; close every connection that is not owed an answer."""
        self._closing = True
        for connection in list(self._open):
            if not connection.is_waiting():
                connection.link.close()

    def count_waiting(self) -> int:
        return sum(connection.is_waiting() for connection in self._open)

    def drop_all(self) -> None:
        for connection in list(self._open):
            connection.drop()
