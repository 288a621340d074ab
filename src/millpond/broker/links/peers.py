"""The way to the other nodes of the cluster: one connection to each, made when there is something to ask.

Answers come in the order of the requests. So what may wait for long (a fetch, a decision) has a `Peers` of its own:
on a shared one it would hold up what must not wait, a vote or a heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millpond.base.later import Later, failed
from millpond.base.ports import World
from millpond.base.settings import Settings
from millpond.broker.links.requester import Requester, RequestLost
from millpond.config.node import ClusterNode, cluster_nodes
from millpond.metadata.image import Image
from millpond.quorum.voters import Voter
from millpond.wire.messages import Message

Addresses = Callable[[int], tuple[str, int] | None]
"""Where a node listens; None where nobody knows."""


class Peers:
    """Asks other nodes by their ids; `for_bulk` and `is_shared` as of a `Requester`."""

    def __init__(
        self,
        world: World,
        client_id: str,
        addresses: Addresses,
        *,
        for_bulk: bool = False,
        is_shared: bool = False,
    ) -> None:
        self._for_bulk = for_bulk
        self._is_shared = is_shared
        self._world = world
        self._client_id = client_id
        self._addresses = addresses
        self._requesters: dict[int, tuple[tuple[str, int], Requester]] = {}

    def ask(self, node_id: int, request: Message, version: int, timeout_ms: int) -> Later[Any]:
        """The node's response, or RequestLost: nobody knows whether it was served, or where the node is."""
        address = self._addresses(node_id)
        if address is None:
            return failed(RequestLost(f"nobody knows where node {node_id} is"))
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
            )
            known = self._requesters[node_id] = address, requester
        return known[1].ask(request, version, timeout_ms)

    def close(self) -> None:
        """Break all connections off; what is in flight is lost."""
        for _, requester in list(self._requesters.values()):
            requester.disconnect()


class NodeAddresses:
    """Where each node is: as the operator wrote down, as it has registered itself, as the voters are named, or as
    others have told. A node that has just begun knows only the latter."""

    def __init__(self, settings: Settings, image: Image) -> None:
        self._written = {each.node_id: (each.host, each.port) for each in cluster_nodes(settings)}
        self._image = image
        self._told: dict[int, tuple[str, int]] = {}
        self.voters: Callable[[], Iterable[Voter]] = tuple

    def __call__(self, node_id: int) -> tuple[str, int] | None:
        if node_id in self._written:
            return self._written[node_id]
        broker = self._image.brokers.get(node_id)
        if broker is not None and broker.end_points:
            return broker.end_points[0].host, broker.end_points[0].port
        named = next((each for each in self.voters() if each.node_id == node_id and each.host), None)
        return self._told.get(node_id) if named is None else (named.host, named.port)

    def tell(self, contacts: Iterable[ClusterNode]) -> None:
        self._told |= {each.node_id: (each.host, each.port) for each in contacts}

    def learn_leader(self, node_id: int, end_points: Iterable[Any]) -> None:
        """A node says itself that it leads, and where it is."""
        for each in end_points:
            self._told[node_id] = each.host, each.port

    def learn(self, response: Any) -> None:
        """A node that does not lead says where the one is that does."""
        for each in getattr(response, "node_endpoints", None) or ():
            self._told[each.node_id] = each.host, each.port
