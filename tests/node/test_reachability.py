"""What a node says while it waits for others."""

from __future__ import annotations

import queue
import socket

import pytest

from millpond.config.node import ClusterNode
from millpond.node import reachability
from millpond.node.reachability import Reachability


def test_those_that_cannot_be_reached_are_named_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(reachability, "AGAIN_SECONDS", 0.01)
    told: queue.Queue[str] = queue.Queue()

    def journal(event: str, **facts: object) -> None:
        assert "waiting for the other nodes" in event
        told.put(str(facts["cannot_be_reached"]))

    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        port, free = there.getsockname()[1], gone.getsockname()[1]
        gone.close()
        nodes = [ClusterNode(1, "127.0.0.1", port), ClusterNode(2, "127.0.0.1", free)]
        looking = Reachability(nodes, 1, journal)
        looking.start()
        assert told.get(timeout=60) == told.get(timeout=60) == f"node 2 at 127.0.0.1:{free} (connection refused)"
        looking.stop()
        told = queue.Queue()
        looking = Reachability(nodes[:1], 1, journal)
        looking.start()
        assert told.get(timeout=60) == "none; this node is not registered yet"
        looking.stop()
