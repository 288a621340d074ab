"""The health of a cluster: nodes, disks, partitions, coordinators, groups and queues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millpond.admin.groups import SHARE, list_groups
from millpond.admin.lag import GroupLag, LagWatch
from millpond.admin.nodes import ClusterFacts, describe_nodes
from millpond.admin.queues.queue import Queue
from millpond.admin.queues.watch import QueueWatch
from millpond.base.errors import ErrorCode, MalformedMessage, RemoteError
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, ClusterError
from millpond.wire import messages as m

GROUPS_MAX: Final = 200
"""At most this many groups are examined: each costs a few requests."""

UNKNOWN_BYTES: Final = -1


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk of a node's data folder, as the node reports it."""

    node_id: int
    folder: str
    total_bytes: int | None
    free_bytes: int | None
    is_failed: bool
    """Whether the node cannot use it."""


@dataclass(frozen=True, slots=True)
class Health:
    nodes: ClusterFacts
    disks: tuple[DiskFacts, ...]
    groups: tuple[GroupLag, ...]
    groups_left_out: int
    """Groups that were not examined, because there are too many."""
    coordinators_failure: str
    """Why the coordinators do not answer; "" when they do."""
    queues: tuple[Queue, ...] = ()

    @property
    def leaderless(self) -> tuple[TopicPartition, ...]:
        return self.nodes.leaderless

    def late_groups(self, behind_ms: int) -> Iterator[GroupLag]:
        """Groups whose oldest unread record is older than this."""
        return (each for each in self.groups if (each.behind_ms or 0) > behind_ms)


def read_health(cluster: Cluster) -> Health:
    nodes = describe_nodes(cluster)
    disks = tuple(disk for node in nodes.nodes if node.address is not None for disk in _disks(cluster, node.node_id))
    groups: list[GroupLag] = []
    queues: tuple[Queue, ...] = ()
    left_out, failure = 0, ""
    try:
        listed = list_groups(cluster, with_share=True)
        names = sorted(each.group for each in listed if each.type != SHARE)
        left_out = max(len(names) - GROUPS_MAX, 0)
        if names:
            groups = LagWatch(cluster, names[:GROUPS_MAX], sample_seconds=0).look()
        shared = [each.group for each in listed if each.type == SHARE]
        if shared:
            found = QueueWatch(cluster, shared, dead_seconds=0).look()
            queues, left_out = found.queues, left_out + found.groups_left_out
    except (ClientError, RemoteError) as fault:
        failure = str(fault)
    return Health(nodes, disks, tuple(groups), left_out, failure, queues)


def _disks(cluster: Cluster, node_id: int) -> Iterator[DiskFacts]:
    """None for an old broker, or one that does not answer."""
    try:
        # The sizes of partitions are not needed, and there may be many.
        request = m.DescribeLogDirsRequest(topics=[])
        response = cluster.broker(node_id).ask(request, m.DescribeLogDirsResponse)
    except (ClusterError, MalformedMessage):
        return
    for result in response.results:
        yield DiskFacts(
            node_id,
            result.log_dir,
            None if result.total_bytes == UNKNOWN_BYTES else result.total_bytes,
            None if result.usable_bytes == UNKNOWN_BYTES else result.usable_bytes,
            result.error_code == ErrorCode.KAFKA_STORAGE_ERROR,
        )
