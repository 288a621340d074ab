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

LOOK_SECONDS: Final = 0.2
STEADY_LOOKS: Final = 3
"""Consecutive healthy checks required: the cluster notices a missing node only after a moment."""

Tell = Callable[[str], None]

_ANYTHING: Final = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)


class NotWell(Refused):
    """The cluster is not healthy enough to restart a node, or does not become so in time."""


def restart_order(facts: ClusterFacts, only: Collection[int] = ()) -> list[NodeFacts]:
    """All or the given nodes, the controller last."""
    wanted = [node for node in facts.nodes if not only or node.node_id in only]
    return sorted(wanted, key=lambda node: (node.is_controller, node.node_id))


def ailment(facts: ClusterFacts, known: Collection[int]) -> str | None:
    """Why no node may be restarted now, in words; None if the cluster is healthy."""
    here = {node.node_id for node in facts.nodes if node.address is not None}
    if away := sorted(set(known) - here):
        return f"node {', '.join(map(str, away))} is away"
    if facts.leaderless:
        return f"{_partitions(len(facts.leaderless))} without a leader"
    behind = {node.node_id: len(node.behind) for node in facts.nodes if node.behind}
    if behind:
        return ", ".join(f"node {node_id} is behind in {_partitions(count)}" for node_id, count in behind.items())
    return None


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


def wait_until_well(cluster: Cluster, known: Collection[int], seconds: float) -> None:
    """Wait until every node answers, every partition has a leader and every replica is in sync.

    Raises NotWell on timeout.
    """
    deadline = time.monotonic() + seconds
    looks = 0
    while True:
        why = _why_not(cluster, known)
        looks = 0 if why is not None else looks + 1
        if looks >= STEADY_LOOKS:
            return
        if time.monotonic() > deadline:
            raise NotWell(f"The cluster is not well after {seconds:.0f} s: {why}.")
        time.sleep(LOOK_SECONDS)


def _why_not(cluster: Cluster, known: Collection[int]) -> str | None:
    try:
        facts = describe_nodes(cluster, known)
        why = ailment(facts, known)
        if why is not None:
            return why
        for node_id in known:
            # A broker that was just fenced may still be listed, so ask it.
            cluster.broker(node_id).ask(_ANYTHING, m.MetadataResponse)
    except (ClientError, RemoteError, OSError) as fault:
        return str(fault)
    return None


def restart_nodes(
    cluster: Cluster,
    order: Collection[NodeFacts],
    known: Collection[int],
    restart: Callable[[NodeFacts], None],
    tell: Tell,
    seconds: float,
) -> None:
    """Restart one node after the other. `restart` triggers a node's restart and need not wait for it."""
    for node in order:
        wait_until_well(cluster, known, seconds)
        began = time.monotonic()
        with cluster.twin() as before:
            old_life = before.broker(node.node_id)
            old_life.ask(_ANYTHING, m.MetadataResponse)
            restart(node)
            deadline = began + seconds
            while not _has_ended(old_life):
                if time.monotonic() > deadline:
                    raise NotWell(
                        f"Node {node.node_id} did not stop within {seconds:.0f} s: check it, then try again."
                    )
                time.sleep(LOOK_SECONDS)
        wait_until_well(cluster, known, seconds)
        tell(f"node {node.node_id}  restarted in {time.monotonic() - began:.1f} s")


def _has_ended(connection: BrokerConnection) -> bool:
    try:
        connection.ask(_ANYTHING, m.MetadataResponse)
    except ClientError:
        return True
    return False
