"""The network between nodes: connections use the node's own certificate or login.

Code that sends requests to other nodes sees none of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.base.ports import Link, LinkHandler, Listener, Network
    from millpond.base.tls import ClientTls, ServerTls
    from millpond.broker.peers.node_login import NodeLogin


class NodeNetwork:
    """The network port for the parts of a node that send requests to other nodes."""

    def __init__(self, network: Network, tls: ClientTls | None, login: NodeLogin | None = None) -> None:
        self._network = network
        self._tls = tls
        self._login = login

    def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[Link], LinkHandler | None],
        tls: ServerTls | None = None,
        name: str = "",
    ) -> Listener:
        return self._network.listen(host, port, accept, tls, name)

    def connect(
        self, host: str, port: int, make_handler: Callable[[Link], LinkHandler], tls: ClientTls | None = None
    ) -> Link:
        if self._login is None:
            return self._network.connect(host, port, make_handler, tls or self._tls)
        made: list[Link] = []
        self._network.connect(host, port, partial(self._login.wrap, make_handler, made), tls or self._tls)
        return made[0]
