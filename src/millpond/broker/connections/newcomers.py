"""Connections that have not logged in yet: which to drop when there are too many, and which are late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.broker.requests.connection import Connection


class Newcomers:
    def __init__(self) -> None:
        self._came_ms: dict[Connection, int] = {}
        """In order of arrival."""
        self._by_host: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._came_ms)

    def add(self, connection: Connection, now_ms: int) -> None:
        self._came_ms[connection] = now_ms
        self._by_host.setdefault(_host_of(connection), {})[connection] = None

    def discard(self, connection: Connection) -> None:
        if self._came_ms.pop(connection, None) is None:
            return
        host = _host_of(connection)
        del self._by_host[host][connection]
        if not self._by_host[host]:
            del self._by_host[host]

    def superfluous(self) -> Connection:
        """The oldest connection from the address with the most of them: a genuine client logs in at once, and this
        one has had the most time."""
        crowd = max(self._by_host.values(), key=len)
        return next(iter(crowd))

    def late(self, since_ms: int) -> list[Connection]:
        """Connections that arrived before `since_ms`."""
        found = []
        for connection, came_ms in self._came_ms.items():
            if came_ms >= since_ms:
                break
            found.append(connection)
        return found


def _host_of(connection: Connection) -> str:
    return connection.link.peer.rpartition(":")[0]
