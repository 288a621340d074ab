"""The cluster over HTTP: nodes, disks, leaders, in-sync replicas and voters."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from millpond.admin.health import read_health
from millpond.admin.members import describe_members
from millpond.admin.moves import Move, drained_nodes, moves_under_way
from millpond.base.errors import RemoteError
from millpond.base.ids import TopicPartition
from millpond.console.context import context_of
from millpond.console.overview import node_shape
from millpond.console.streams import EventStream, sample_events
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError

FRESH_SECONDS: Final = 1.5
NAMES_MAX: Final = 100


def _look(cluster: Cluster) -> dict[str, Any]:
    health = read_health(cluster)
    members: dict[int, dict[str, Any]] = {}
    quorum_failure = ""
    try:
        members = {
            each.node_id: {"is_voter": each.is_voter, "is_fenced": each.is_fenced, "metadata_lag": each.metadata_lag}
            for each in describe_members(cluster).nodes
        }
    except (ClientError, RemoteError) as fault:
        # Not every Kafka cluster reports its voters.
        quorum_failure = str(fault)
    drained = set(drained_nodes(cluster))
    under_way: dict[TopicPartition, Move] = {}
    with suppress(ClientError, RemoteError):
        # Not every Kafka cluster reports its reassignments.
        under_way = moves_under_way(cluster)
    behind = [[each.node_id, partition] for each in health.nodes.nodes for partition in each.behind]
    return {
        "cluster_id": health.nodes.cluster_id,
        "nodes": [
            node_shape(health, each.node_id)
            | {"quorum": members.get(each.node_id), "is_drained": each.node_id in drained}
            for each in health.nodes.nodes
        ],
        "quorum_failure": quorum_failure,
        "moving": [
            {"partition": partition, "replicas": move.replicas, "adding": move.adding, "removing": move.removing}
            for partition, move in sorted(under_way.items())[:NAMES_MAX]
        ],
        "moving_total": len(under_way),
        "behind": behind[:NAMES_MAX],
        "behind_total": len(behind),
        "leaderless": health.leaderless[:NAMES_MAX],
        "leaderless_total": len(health.leaderless),
    }


async def live_cluster(request: Request) -> EventStream:
    context = context_of(request)
    return EventStream(context.streams, sample_events(lambda: context.pool.recent("cluster", FRESH_SECONDS, _look)))


ROUTES: Final = [Route("/api/live/cluster", live_cluster)]
