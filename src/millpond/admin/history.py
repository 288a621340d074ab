"""The rebalances of a group, as the brokers recorded them.

A Millpond cluster records every finished rebalance in an internal topic: the key is the group, the value the
rebalance as JSON. Other clusters do not.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millpond.admin.offsets import Since, bounds_of, resolve
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.reader import read_records

TOPIC: Final = "__group_history"


@dataclass(frozen=True, slots=True)
class RebalanceCause:
    why: str
    """One of the sentences of `coordinators.groups.history.Why`."""
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that moved between members; None means no member."""

    partition: TopicPartition
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class GroupRebalance:
    started_ms: int
    generation: int | None
    protocol: str
    members: int
    paused_ms: int | None
    """How long reading paused; None while the rebalance is unfinished."""
    causes: tuple[RebalanceCause, ...]
    moves: tuple[Move, ...]
    """Limited by the broker; `moves_total` counts all, or is -1."""
    moves_total: int
    written: Mapping[str, Any]
    """The broker's JSON, unchanged."""


def read_history(
    cluster: Cluster, group: str, *, limit: int = 10, since_ms: int | None = None, topic: str = TOPIC
) -> list[GroupRebalance] | None:
    """The last rebalances of the group, oldest first; None if the cluster has no history."""
    topics = cluster.topics([topic])
    if topic not in topics:
        return None
    bounds = bounds_of(cluster, [TopicPartition(topic, index) for index in topics[topic].partitions])
    starts = {each: bound.start for each, bound in bounds.items()}
    if since_ms is not None:
        starts = resolve(cluster, bounds, Since(since_ms))
    last: deque[GroupRebalance] = deque(maxlen=limit)
    for partition, bound in bounds.items():
        for record in read_records(cluster, partition, starts[partition], bound.end):
            if record.key == group.encode() and record.value is not None:
                rebalance = read_rebalance(record.value)
                if rebalance is not None:
                    last.append(rebalance)
    return sorted(last, key=lambda each: each.started_ms)


def read_rebalance(value: bytes) -> GroupRebalance | None:
    """None for a record of an unknown format, which is skipped."""
    try:
        written = json.loads(value)
        return GroupRebalance(
            written["started_ms"],
            written["generation"],
            written.get("protocol") or "",
            written["members"],
            written["paused_ms"],
            tuple(_cause(each) for each in written["causes"]),
            tuple(
                Move(TopicPartition(each["topic"], each["partition"]), each["before"], each["after"])
                for each in written["moves"]
            ),
            written["moves_total"],
            written,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _cause(written: Mapping[str, Any]) -> RebalanceCause:
    return RebalanceCause(
        str(written["why"]),
        written["member_id"] or "",
        written.get("client_id") or "",
        written.get("client_host") or "",
        written.get("instance_id"),
        written.get("detail") or "",
    )
