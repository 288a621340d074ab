"""Rolling restart: one node at a time, only while the cluster is healthy.

A node is restarted only when every node is up, every partition has a leader and every replica is in sync. Its old
process is gone when it closes a connection opened before; it is back when all of the above holds again. The
controller is restarted last, so that it moves only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from millpond.admin.errors import Refused
from millpond.admin.nodes import ClusterFacts, NodeFacts, describe_nodes
from millpond.base.errors import RemoteError
from millpond.remote.cluster import Cluster
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import ClientError
from millpond.wire import messages as m

CHECK_SECONDS: Final = 0.2
STEADY_CHECKS: Final = 3
"""Consecutive healthy checks required: the cluster notices a missing node only after a moment."""

Tell = Callable[[str], None]

_ANYTHING: Final = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)


class NotHealthy(Refused):
    """The cluster is not healthy enough to restart a node, or does not become so in time."""


def restart_order(facts: ClusterFacts, only: Collection[int] = ()) -> list[NodeFacts]:
    """All or the given nodes, the controller last."""
    nodes = [node for node in facts.nodes if not only or node.node_id in only]
    return sorted(nodes, key=lambda node: (node.is_controller, node.node_id))


def unhealthy_reason(facts: ClusterFacts, node_ids: Collection[int]) -> str | None:
    """Why no node may be restarted now, in words; None if the cluster is healthy."""
    here = {node.node_id for node in facts.nodes if node.address is not None}
    if away := sorted(set(node_ids) - here):
        return f"node {', '.join(map(str, away))} is away"
    if facts.leaderless:
        return f"{_partitions(len(facts.leaderless))} without a leader"
    behind = {node.node_id: len(node.behind) for node in facts.nodes if node.behind}
    if behind:
        return ", ".join(f"node {node_id} is behind in {_partitions(count)}" for node_id, count in behind.items())
    return None


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


def wait_until_healthy(cluster: Cluster, node_ids: Collection[int], seconds: float) -> None:
    """Wait until every node answers, every partition has a leader and every replica is in sync.

    Raises NotWell on timeout.
    """
    deadline = time.monotonic() + seconds
    checks = 0
    while True:
        why = _why_not(cluster, node_ids)
        checks = 0 if why is not None else checks + 1
        if checks >= STEADY_CHECKS:
            return
        if time.monotonic() > deadline:
            raise NotHealthy(f"The cluster is not healthy after {seconds:.0f} s: {why}.")
        time.sleep(CHECK_SECONDS)


def _why_not(cluster: Cluster, node_ids: Collection[int]) -> str | None:
    try:
        facts = describe_nodes(cluster, node_ids)
        why = unhealthy_reason(facts, node_ids)
        if why is not None:
            return why
        for node_id in node_ids:
            # A broker that was just fenced may still be listed, so ask it.
            cluster.broker(node_id).ask(_ANYTHING, m.MetadataResponse)
    except (ClientError, RemoteError, OSError) as fault:
        return str(fault)
    return None


def restart_nodes(
    cluster: Cluster,
    order: Collection[NodeFacts],
    node_ids: Collection[int],
    restart: Callable[[NodeFacts], None],
    tell: Tell,
    seconds: float,
) -> None:
    """Restart one node after the other. `restart` triggers a node's restart and need not wait for it."""
    for node in order:
        wait_until_healthy(cluster, node_ids, seconds)
        began = time.monotonic()
        with cluster.twin() as before:
            connection = before.broker(node.node_id)
            connection.ask(_ANYTHING, m.MetadataResponse)
            restart(node)
            deadline = began + seconds
            while not _has_ended(connection):
                if time.monotonic() > deadline:
                    raise NotHealthy(
                        f"Node {node.node_id} did not stop within {seconds:.0f} s: check it, then try again."
                    )
                time.sleep(CHECK_SECONDS)
        wait_until_healthy(cluster, node_ids, seconds)
        tell(f"node {node.node_id}  restarted in {time.monotonic() - began:.1f} s")


def _has_ended(connection: BrokerConnection) -> bool:
    try:
        connection.ask(_ANYTHING, m.MetadataResponse)
    except ClientError:
        return True
    return False
