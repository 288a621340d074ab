"""One request on its way through the broker: what a handler is given beside the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.broker.serving.connection import Connection

NODE_CLIENT_ID = "millpond-node-"
"""How the client ids of nodes begin when they ask each other."""


def is_of_node(client_id: str | None) -> bool:
    return (client_id or "").startswith(NODE_CLIENT_ID)


@dataclass(slots=True)
class Call:
    """One request on its way through the broker; without a connection it is this node's own."""

    _connection: Connection | None
    version: int
    client_id: str | None
    arrived_us: int = 0
    """When it came in, by the monotonic clock."""

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "what a node asks of itself comes by no connection"
        return self._connection

    @property
    def is_from_node(self) -> bool:
        """Whether a node of the cluster asks, this one or another: what it asks is not sent on to a third."""
        return self._connection is None or is_of_node(self.client_id)

    @property
    def client_host(self) -> str:
        return self.connection.link.peer.rpartition(":")[0]
