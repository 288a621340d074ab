"""The nodes of a cluster: who is there, who leads what, who is in sync and who is behind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m


@dataclass(frozen=True, slots=True)
class NodeFacts:
    node_id: int
    address: str | None
    """None: it is not there now, but partitions have replicas on it."""
    rack: str
    is_controller: bool
    leads: int
    replicas: int
    behind: tuple[TopicPartition, ...]
    """Its replicas that are not in sync."""

    @property
    def in_sync(self) -> int:
        return self.replicas - len(self.behind)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    cluster_id: str
    nodes: tuple[NodeFacts, ...]
    leaderless: tuple[TopicPartition, ...]
    """Partitions that nobody can write or read now."""


def describe_nodes(cluster: Cluster, known: Collection[int] = ()) -> ClusterFacts:
    """All nodes in the order of their ids, with those that are `known` to be of the cluster."""
    return cluster.retrying("ask for the nodes", lambda: _facts(cluster, known))


def _facts(cluster: Cluster, known: Collection[int]) -> ClusterFacts:
    response = cluster.any().ask(m.MetadataRequest(topics=None, allow_auto_topic_creation=False), m.MetadataResponse)
    check(response.error_code, "the cluster does not describe itself")
    brokers = {each.node_id: each for each in response.brokers}
    leads: dict[int, int] = {}
    replicas: dict[int, int] = {}
    behind: dict[int, list[TopicPartition]] = {}
    leaderless = []
    for topic in response.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name or "", each.partition_index)
            leads[each.leader_id] = leads.get(each.leader_id, 0) + 1
            if each.leader_id < 0:
                leaderless.append(partition)
            for node_id in each.replica_nodes:
                replicas[node_id] = replicas.get(node_id, 0) + 1
                if node_id not in each.isr_nodes:
                    behind.setdefault(node_id, []).append(partition)
    nodes = []
    for node_id in sorted({*brokers, *replicas, *known}):
        broker = brokers.get(node_id)
        nodes.append(
            NodeFacts(
                node_id,
                None if broker is None else f"{broker.host}:{broker.port}",
                "" if broker is None else broker.rack or "",
                node_id == response.controller_id,
                leads.get(node_id, 0),
                replicas.get(node_id, 0),
                tuple(sorted(behind.get(node_id, ()))),
            )
        )
    return ClusterFacts(response.cluster_id or "", tuple(nodes), tuple(sorted(leaderless)))
