"""Moves: partitions that go to other replicas, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from millpond.admin.nodes import describe_nodes
from millpond.admin.placement import Held, Load, Planned
from millpond.admin.topics import partition_sizes
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, by_topic
from millpond.remote.errors import Answered, check
from millpond.wire import messages as m

AT_ONCE: Final = 1_000
"""How many partitions one request names."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition on its way: all its replicas meanwhile, those that come and those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.removing)


def begin_moves(cluster: Cluster, targets: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
    """Let each partition move to its target, or call its move off (None). The first that is refused is told."""
    left = iter(targets.items())
    while some := dict(islice(left, AT_ONCE)):
        _begin(cluster, some)


def _begin(cluster: Cluster, targets: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
    kind = m.AlterPartitionReassignmentsRequest
    topics = by_topic(
        (name, kind.ReassignablePartition(partition_index=index, replicas=None if wanted is None else list(wanted)))
        for (name, index), wanted in targets.items()
    )
    request = kind(
        topics=[kind.ReassignableTopic(name=name, partitions=each) for name, each in topics.items()],
        timeout_ms=cluster.patience_ms,
    )

    def attempt() -> None:
        response = cluster.any().ask(request, m.AlterPartitionReassignmentsResponse)
        check(response.error_code, "No partition moves", response.error_message)
        for topic in response.responses:
            for each in topic.partitions:
                check(each.error_code, f"{topic.name}-{each.partition_index} does not move", each.error_message)

    cluster.retrying("move partitions", attempt)
    for name in topics:
        cluster.forget(name)


def moves_under_way(cluster: Cluster) -> dict[TopicPartition, Move]:
    """Every partition that moves now."""
    request = m.ListPartitionReassignmentsRequest(topics=None)

    def attempt() -> dict[TopicPartition, Move]:
        response = cluster.any().ask(request, m.ListPartitionReassignmentsResponse)
        check(response.error_code, "The cluster does not say what moves", response.error_message)
        return {
            TopicPartition(topic.name, each.partition_index): Move(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return cluster.retrying("ask for the moves", attempt)


def call_off(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Call off the moves of these partitions; those whose move has ended, or cannot be called off now."""
    left = []
    for partition in partitions:
        try:
            begin_moves(cluster, {partition: None})
        except Answered:
            left.append(partition)
    return left


def look(cluster: Cluster) -> Load:
    """Where everything is now, and how large."""
    sizes = partition_sizes(cluster)
    topics = cluster.topics()
    facts = describe_nodes(cluster)
    return Load(
        racks={each.node_id: each.rack for each in facts.nodes if each.address is not None},
        partitions={
            TopicPartition(name, index): Held(
                each.replicas,
                each.in_sync,
                each.leader,
                max((sizes.get((node, TopicPartition(name, index)), 0) for node in each.replicas), default=0),
            )
            for name, topic in topics.items()
            for index, each in topic.partitions.items()
        },
    )


def copied_bytes(cluster: Cluster, moves: Iterable[Planned]) -> int:
    """How much of what these moves have to copy is there."""
    sizes = partition_sizes(cluster)
    return sum(min(sizes.get((node, move.partition), 0), move.size_bytes) for move in moves for node in move.adding)
