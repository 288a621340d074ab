"""The nodes of a cluster: which are up, what they lead, and which replicas are in sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m


@dataclass(frozen=True, slots=True)
class Holding:
    """How many partitions a node leads, and how many of its replicas are in sync."""

    leads: int = 0
    in_sync: int = 0
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    node_id: int
    address: str | None
    """None if it is down, but partitions have replicas on it."""
    rack: str
    is_controller: bool
    leads: int
    replicas: int
    behind: tuple[TopicPartition, ...]
    """Its replicas that are not in sync."""
    internal: Holding = field(default_factory=Holding)
    """The part of it that belongs to internal topics."""

    @property
    def in_sync(self) -> int:
        return self.replicas - len(self.behind)

    @property
    def without_internal(self) -> Holding:
        internal = self.internal
        return Holding(
            self.leads - internal.leads, self.in_sync - internal.in_sync, self.replicas - internal.replicas
        )


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    cluster_id: str
    nodes: tuple[NodeFacts, ...]
    leaderless: tuple[TopicPartition, ...]
    """Partitions without a leader."""


def describe_nodes(cluster: Cluster, expected_ids: Collection[int] = ()) -> ClusterFacts:
    """All nodes in the order of their ids, including those `known` to belong to the cluster."""
    return cluster.retrying("ask for the nodes", lambda: _facts(cluster, expected_ids))


def _facts(cluster: Cluster, expected_ids: Collection[int]) -> ClusterFacts:
    response = cluster.any().ask(m.MetadataRequest(topics=None, allow_auto_topic_creation=False), m.MetadataResponse)
    check(response.error_code, "the cluster does not describe itself")
    brokers = {each.node_id: each for each in response.brokers}
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    internal_leads: Counter[int] = Counter()
    internal_in_sync: Counter[int] = Counter()
    internal_replicas: Counter[int] = Counter()
    behind: dict[int, list[TopicPartition]] = {}
    leaderless = []
    for topic in response.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name or "", each.partition_index)
            leads[each.leader_id] += 1
            internal_leads[each.leader_id] += topic.is_internal
            if each.leader_id < 0:
                leaderless.append(partition)
            for node_id in each.replica_nodes:
                replicas[node_id] += 1
                internal_replicas[node_id] += topic.is_internal
                internal_in_sync[node_id] += topic.is_internal and node_id in each.isr_nodes
                if node_id not in each.isr_nodes:
                    behind.setdefault(node_id, []).append(partition)
    nodes = []
    for node_id in sorted({*brokers, *replicas, *expected_ids}):
        broker = brokers.get(node_id)
        nodes.append(
            NodeFacts(
                node_id,
                None if broker is None else f"{broker.host}:{broker.port}",
                "" if broker is None else broker.rack or "",
                node_id == response.controller_id,
                leads[node_id],
                replicas[node_id],
                tuple(sorted(behind.get(node_id, ()))),
                Holding(internal_leads[node_id], internal_in_sync[node_id], internal_replicas[node_id]),
            )
        )
    return ClusterFacts(response.cluster_id or "", tuple(nodes), tuple(sorted(leaderless)))
