"""One request on its way through the broker: what a handler is given beside the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.broker.connection import Connection


@dataclass(slots=True)
class Call:
    """One request on its way through the broker."""

    connection: Connection
    version: int
    client_id: str | None

    @property
    def client_host(self) -> str:
        return self.connection.link.peer.rpartition(":")[0]
