"""While a node waits for its cluster, it logs which nodes it cannot reach: usually a name, a port or a firewall is
wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Final

from millpond.broker.loop.journal import Journal
from millpond.config.node import ClusterNode

FIRST_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 30.0
CONNECT_SECONDS_MAX: Final = 3.0


class Reachability:
    """Tries the addresses of all nodes on its own thread, repeatedly until it is stopped.

    The node's own address is tried, too: if it cannot reach that, neither can the others.
    """

    def __init__(self, nodes: Sequence[ClusterNode], own_id: int, journal: Journal) -> None:
        self._nodes = nodes
        self._own_id = own_id
        self._journal = journal
        self._is_over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="millpond-reachability", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        seconds = FIRST_SECONDS
        while not self._is_over.wait(seconds):
            away = [told for node in self._nodes if (told := self._away(node))]
            if self._is_over.is_set():
                return
            self._journal(
                "not ready: waiting for the other nodes of the cluster (a majority; all of them at the first start)",
                cannot_be_reached=", ".join(away) or "none; this node is not registered yet",
            )
            seconds = AGAIN_SECONDS

    def _away(self, node: ClusterNode) -> str:
        """Why a connection cannot be made; empty if it can."""
        try:
            socket.create_connection((node.host, node.port), CONNECT_SECONDS_MAX).close()
        except TimeoutError:
            cause = "no answer"
        except OSError as error:
            cause = (error.strerror or str(error)).lower()
        else:
            return ""
        who = "this node itself" if node.node_id == self._own_id else f"node {node.node_id}"
        return f"{who} at {node.host}:{node.port} ({cause})"
