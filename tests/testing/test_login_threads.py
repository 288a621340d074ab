"""Users can log in whatever keeps the shared workers of a node busy."""

from __future__ import annotations

import threading

from millpond.node.workers import THREADS
from millpond.remote.cluster import Cluster
from millpond.testing import Pond
from millpond.testing.thread_node import ThreadNode


def test_users_log_in_while_all_shared_workers_are_busy() -> None:
    with Pond(mode="thread", secure=True, settings={"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"}) as pond:
        node = pond._node
        assert isinstance(node, ThreadNode)
        running = node._running
        assert running is not None
        go_on = threading.Event()
        try:
            for _ in range(THREADS):
                running.thread.call(lambda: running.workers.run(go_on.wait).then(lambda _: None))
            with Cluster(
                {**pond.client_settings(), "sasl.mechanism": "PLAIN", "default.api.timeout.ms": "20000"}
            ) as cluster:
                assert cluster.topics() == {}
        finally:
            go_on.set()
