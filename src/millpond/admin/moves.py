"""Moves of partitions to other replicas, and their progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from millpond.admin.nodes import describe_nodes
from millpond.admin.placement import PartitionPlacement, Placement, PlannedMove
from millpond.admin.settings import Subject, describe_configs
from millpond.admin.topics import partition_sizes
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, by_topic
from millpond.remote.errors import Answered, ClusterError, check
from millpond.wire import messages as m

AT_ONCE: Final = 1_000
"""Partitions per request."""

DRAINED: Final = "broker.drained"


@dataclass(frozen=True, slots=True)
class Move:
    """A moving partition: all its replicas, those being added and those being removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def try_moves(
    cluster: Cluster, targets: Mapping[TopicPartition, tuple[int, ...] | None]
) -> dict[TopicPartition, Answered]:
    """Starts moves to these targets, or cancels them (None); returns the refusals."""
    left = iter(targets.items())
    refusals: dict[TopicPartition, Answered] = {}
    while some := dict(islice(left, AT_ONCE)):
        refusals |= cluster.retrying("move partitions", partial(_ask, cluster, some))
    for partition in targets:
        cluster.forget(partition.topic)
    return refusals


def _ask(
    cluster: Cluster, targets: Mapping[TopicPartition, tuple[int, ...] | None]
) -> dict[TopicPartition, Answered]:
    kind = m.AlterPartitionReassignmentsRequest
    topics = by_topic(
        (
            name,
            kind.ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas)),
        )
        for (name, index), replicas in targets.items()
    )
    request = kind(
        topics=[kind.ReassignableTopic(name=name, partitions=each) for name, each in topics.items()],
        timeout_ms=cluster.patience_ms,
    )
    response = cluster.any().ask(request, m.AlterPartitionReassignmentsResponse)
    check(response.error_code, "No partition was moved", response.error_message)
    refusals = {}
    for topic in response.responses:
        for each in topic.partitions:
            if each.error_code:
                what = f"{topic.name}-{each.partition_index} was not moved"
                partition = TopicPartition(topic.name, each.partition_index)
                refusals[partition] = Answered(what, each.error_code, each.error_message)
    return refusals


def moves_under_way(cluster: Cluster) -> dict[TopicPartition, Move]:
    """Every moving partition."""
    request = m.ListPartitionReassignmentsRequest(topics=None)

    def attempt() -> dict[TopicPartition, Move]:
        response = cluster.any().ask(request, m.ListPartitionReassignmentsResponse)
        check(response.error_code, "The cluster does not report its reassignments", response.error_message)
        return {
            TopicPartition(topic.name, each.partition_index): Move(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return cluster.retrying("ask for the moves", attempt)


def elect_first(cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
    """Elects the first replica of each. If it cannot lead now, the leader stays, which is not an error."""
    kind = m.ElectLeadersRequest
    left = iter(partitions)
    while some := list(islice(left, AT_ONCE)):
        topics = by_topic(some)
        request = kind(
            topic_partitions=[kind.TopicPartitions(topic=name, partitions=each) for name, each in topics.items()],
            timeout_ms=cluster.patience_ms,
        )

        def attempt(request: m.ElectLeadersRequest = request) -> None:
            response = cluster.controller().ask(request, m.ElectLeadersResponse)
            check(response.error_code, "No leader is elected")

        cluster.retrying("elect leaders", attempt)


def read_placement(cluster: Cluster) -> Placement:
    """The current placement, with sizes."""
    sizes = partition_sizes(cluster)
    under_way = moves_under_way(cluster)
    topics = cluster.topics()
    facts = describe_nodes(cluster)
    racks = {each.node_id: each.rack for each in facts.nodes if each.address is not None}
    partitions = {}
    for name, topic in topics.items():
        for index, each in topic.partitions.items():
            partition = TopicPartition(name, index)
            move = under_way.get(partition)
            partitions[partition] = PartitionPlacement(
                each.replicas if move is None else move.replicas,
                each.in_sync,
                each.leader,
                max((sizes.get((node, partition), 0) for node in each.replicas), default=0),
                () if move is None else move.adding,
                () if move is None else move.removing,
            )
    return Placement(racks, partitions, frozenset(drained_nodes(cluster)))


def drained_nodes(cluster: Cluster) -> list[int]:
    """The drained nodes; each answers for itself, and Kafka's have no such mark."""
    drained = []
    for node in cluster.addresses():
        try:
            (result,) = describe_configs(cluster.broker(node), [Subject("node", str(node))], [DRAINED])
        except ClusterError:
            continue
        if any(each.name == DRAINED and each.value == "true" for each in result.configs):
            drained.append(node)
    return drained


def copied_bytes(cluster: Cluster, moves: Iterable[PlannedMove]) -> int:
    """How many bytes of these moves have been copied."""
    sizes = partition_sizes(cluster)
    return sum(min(sizes.get((node, move.partition), 0), move.size_bytes) for move in moves for node in move.adding)
