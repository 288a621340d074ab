"""Connections to the other nodes of the cluster: one to each, opened on the first request.

Responses come in the order of the requests. So requests that may take long (a fetch, a controller decision) have a
separate `Peers`: on a shared one they would delay those that must not wait, such as votes and heartbeats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from millpond.base.later import Later, failed
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import World
from millpond.base.settings import Settings
from millpond.broker.peers.requester import Requester, RequestLost
from millpond.config.listeners import ListenerSettings, listeners_of, preferred_of
from millpond.config.node import ClusterNode, cluster_nodes, controller_nodes
from millpond.metadata.image import Image
from millpond.quorum.voters import Voter
from millpond.wire.messages import Message

_CHANGE_MARK: Final = "-change-"
"""Between a node's client id and the id of a forwarded change, the same in all attempts of the forwarding node.

Every version of every request has a client id, and earlier versions of Millpond look only at how it begins.
"""
_CHANGE: Final = re.compile(_CHANGE_MARK + "([0-9a-f]{32})$")


def change_id_of(client_id: str | None) -> str | None:
    match = _CHANGE.search(client_id or "")
    return None if match is None else match[1]


Addresses = Callable[[int], tuple[str, int] | None]
"""The address of a node; None if unknown."""


class Peers:
    """Sends requests to nodes by id; `for_bulk` and others are as in `Requester`."""

    def __init__(
        self,
        world: World,
        client_id: str,
        addresses: Addresses,
        *,
        for_bulk: bool = False,
        is_shared: bool = False,
        is_exclusive: bool = False,
    ) -> None:
        self._for_bulk = for_bulk
        self._is_shared = is_shared
        self._is_exclusive = is_exclusive
        self._world = world
        self._client_id = client_id
        self._addresses = addresses
        self._requesters: dict[int, tuple[tuple[str, int], Requester]] = {}

    def ask(
        self, node_id: int, request: Message, version: int, timeout_ms: int, change_id: str | None = None
    ) -> Later[Any]:
        """The node's response, or RequestLost: the request may or may not have been served, or the node's address is
        unknown. A change id is appended to the client id."""
        address = self._addresses(node_id)
        if address is None:
            return failed(RequestLost(f"the address of node {node_id} is unknown"))
        known = self._requesters.get(node_id)
        if known is None or known[0] != address:
            if known is not None:
                known[1].disconnect()
            requester = Requester(
                self._world.network,
                self._world.clock,
                *address,
                self._client_id,
                for_bulk=self._for_bulk,
                is_shared=self._is_shared,
                is_exclusive=self._is_exclusive,
            )
            known = self._requesters[node_id] = address, requester
        client_id = self._client_id if change_id is None else self._client_id + _CHANGE_MARK + change_id
        return known[1].ask(request, version, timeout_ms, client_id)

    def close(self) -> None:
        """Abort all connections; requests in flight are lost."""
        for _, requester in list(self._requesters.values()):
            requester.disconnect()


class EndPoint(NamedTuple):
    """The address of a node's listener of this name."""

    listener: str
    host: str
    port: int


class NodeAddresses:
    """The addresses of the nodes on one listener: from the settings, the broker registrations, the voter set, or
    learned from other nodes. A node that has just started may know only the learned ones.

    A node connects to the listener with the same name as its own, as in Kafka, so that a cluster can migrate from one
    listener to another node by node.
    """

    def __init__(self, settings: Settings, image: Image, listener: ListenerSettings | None = None) -> None:
        """`listener` defaults to the inter-broker listener."""
        self._listener = listener or preferred_of(listeners_of(settings))
        written = cluster_nodes(settings) if self._listener.is_preferred else controller_nodes(settings)
        self._written = {each.node_id: (each.host, each.port) for each in written}
        self._image = image
        self._told: dict[int, tuple[str, int]] = {}
        self.voters: Callable[[], Iterable[Voter]] = tuple

    def __call__(self, node_id: int) -> tuple[str, int] | None:
        if node_id in self._written:
            return self._written[node_id]
        by_name = self._registered(node_id) or self._named(node_id, self._listener.name)
        return by_name or self._told.get(node_id) or self._as_voter(node_id)

    def by_listener(self, name: str) -> Addresses:
        """The node addresses for a client that connected to our listener of this name."""
        return self if name in ("", self._listener.name) else lambda node_id: self._named(node_id, name)

    def end_points(self, node_id: int) -> list[EndPoint]:
        """All known addresses of a node by listener; the one that this node would use is last."""
        own = self(node_id)
        broker = self._image.brokers.get(node_id)
        others = [] if broker is None else [EndPoint(each.name, each.host, each.port) for each in broker.end_points]
        known = [each for each in others if each.listener != self._listener.name]
        return known if own is None else [*known, EndPoint(self._listener.name, *own)]

    def _registered(self, node_id: int) -> tuple[str, int] | None:
        """The registered address of its listener with our name, or else of one with our security protocol."""
        broker = self._image.brokers.get(node_id)
        end_points = () if broker is None else broker.end_points
        alike = [each for each in end_points if each.name == self._listener.name] or [
            each for each in end_points if each.security_protocol == self._listener.protocol.number
        ]
        return (alike[0].host, alike[0].port) if alike else None

    def _named(self, node_id: int, listener: str) -> tuple[str, int] | None:
        """The address of its listener of this name, from its registration or the voter set."""
        broker = self._image.brokers.get(node_id)
        for registered in () if broker is None else broker.end_points:
            if registered.name == listener:
                return registered.host, registered.port
        for voter in self.voters():
            for end_point in voter.end_points if voter.node_id == node_id else ():
                if end_point.name == listener:
                    return end_point.host, end_point.port
        return None

    def _as_voter(self, node_id: int) -> tuple[str, int] | None:
        """The voter's first address on any listener, as a last resort."""
        known = (each.end_points[0] for each in self.voters() if each.node_id == node_id and each.end_points)
        return next(((each.host, each.port) for each in known), None)

    def tell(self, contacts: Iterable[ClusterNode]) -> None:
        self._told |= {each.node_id: (each.host, each.port) for each in contacts}

    def learn_leader(self, node_id: int, end_points: Iterable[Any]) -> None:
        """Store the endpoints of a node that announced itself as leader."""
        known = {each.name: (each.host, each.port) for each in end_points}
        if known:
            self._told[node_id] = known.get(self._listener.name) or list(known.values())[-1]

    def learn(self, response: Any) -> None:
        """Store the leader's address from the response of a node that is not the leader."""
        for each in getattr(response, "node_endpoints", None) or ():
            self._told[each.node_id] = each.host, each.port
