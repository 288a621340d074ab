"""An event-driven client of the wire protocol: sends requests, and reports responses or their loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from millpond.broker.peers.requester import Requester, RequestLost
from millpond.sim.world.network import SimNetwork
from millpond.wire.messages import Message

OnReply = Callable[[Any], None]
"""Gets the response, or None when it is lost and the request may have been served."""


class Client(Protocol):
    """Sends requests to one node or to a cluster."""

    name: str
    timeout_ms: int

    @property
    def connections_made(self) -> int: ...

    def send(self, request: Message, version: int, on_reply: OnReply, *, is_answered: bool = True) -> None: ...

    def disconnect(self) -> None: ...


class SimClient:
    """Requests to one node, from the client's own host. A malformed response fails the run."""

    def __init__(
        self, network: SimNetwork, host: str, port: int, name: str = "client", *, timeout_ms: int = 5_000
    ) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self._network = network
        self._requester = Requester(network.at(name), network.clock, host, port, name)

    @property
    def connections_made(self) -> int:
        return self._requester.connections_made

    @property
    def in_flight(self) -> int:
        return self._requester.in_flight

    def send(self, request: Message, version: int, on_reply: OnReply, *, is_answered: bool = True) -> None:
        """Send; `on_reply` is called once, with the response or with None, in the order of requests.

        A request that is not answered (produce with acks=0) is forgotten as soon as it is sent.
        """
        if is_answered:
            response = self._requester.ask(request, version, self.timeout_ms)
            response.then(on_reply, lambda failure: self._lose(failure, on_reply))
        else:
            self._requester.tell(request, version)

    def disconnect(self) -> None:
        """Close the connection; responses in flight are lost."""
        self._requester.disconnect()

    def _lose(self, failure: Exception, on_reply: OnReply) -> None:
        assert isinstance(failure, RequestLost), failure
        at_clients = [error for link, error in self._network.faults if link.local_host == self.name]
        assert not at_clients, at_clients
        on_reply(None)
