"""`millpond dlq list`: the dead-letter topics of a cluster, by their names or by what is in them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millpond.cli.connect import Cluster, topics_of
from millpond.cli.dlq_progress import SUFFIX, Redriven, read_redriven
from millpond.cli.dlq_read import committed_bounds, messages_between
from millpond.cli.offsets import Bounds, Partition
from millpond.cli.times import show_span
from millpond.client.dead_letters import TOPIC

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import TopicMetadata

ENDING: Final = ".dlq"
OFFSETS_READ_MAX: Final = 100_000
"""A topic with more than that is not read to be counted: its offsets say about how many records it has."""
PARTITIONS_PEEKED_MAX: Final = 500
"""So many partitions of topics with other names are looked into."""


@dataclass(slots=True)
class Box:
    """One dead-letter topic."""

    topic: str
    partitions: int
    records: int = 0
    is_estimate: bool = False
    waiting: int = 0
    """Letters that have not been redriven."""
    oldest_ms: int | None = None
    newest_ms: int | None = None
    """Times since 1970."""


def find_boxes(cluster: Cluster) -> tuple[list[Box], int]:
    """The dead-letter topics, and how many partitions of other topics there were too many to look into."""
    admin = cluster.admin()
    topics = topics_of(admin)
    by_name = [name for name in topics if name.endswith(ENDING)]
    others = [name for name in topics if _may_hold_letters(name)]
    peeked, left_out = _peek(cluster, admin, topics, others)
    return [_look_into(cluster, admin, topics[name]) for name in sorted([*by_name, *peeked])], left_out


def _may_hold_letters(name: str) -> bool:
    return not name.endswith((ENDING, SUFFIX)) and not name.startswith("__")


def _peek(
    cluster: Cluster, admin: AdminClient, topics: Mapping[str, TopicMetadata], names: list[str]
) -> tuple[set[str], int]:
    """Those of the topics whose first record is a dead letter."""
    places = [(name, index) for name in sorted(names) for index in topics[name].partitions]
    asked = places[:PARTITIONS_PEEKED_MAX]
    bounds = committed_bounds(admin, asked) if asked else {}
    found = set()
    for message in messages_between(cluster, {each: _first(bound) for each, bound in bounds.items()}, few=True):
        if message.header(TOPIC) is not None:
            found.add(message.topic)
    return found, len(places) - len(asked)


def _first(bound: Bounds) -> Bounds:
    return Bounds(bound.start, min(bound.start + 1, bound.end))


def _last(bound: Bounds) -> Bounds:
    return Bounds(max(bound.start, bound.end - 1), bound.end)


def _look_into(cluster: Cluster, admin: AdminClient, topic: TopicMetadata) -> Box:
    name = str(topic.topic)
    bounds = committed_bounds(admin, [(name, index) for index in topic.partitions])
    redriven = read_redriven(cluster, admin, name)
    offsets = sum(bound.end - bound.start for bound in bounds.values())
    box = Box(name, len(bounds))
    if offsets <= OFFSETS_READ_MAX:
        _count(cluster, box, bounds, redriven)
        return box
    for edge in (_first, _last):
        # Of a large topic only the ends are read, for their times.
        _count(cluster, box, {each: edge(bound) for each, bound in bounds.items()}, redriven, few=True)
    box.records, box.is_estimate, box.waiting = offsets, True, max(0, offsets - len(redriven))
    return box


def _count(
    cluster: Cluster, box: Box, bounds: Mapping[Partition, Bounds], redriven: Redriven, *, few: bool = False
) -> None:
    for message in messages_between(cluster, bounds, few=few):
        box.records += 1
        box.waiting += (message.partition, message.offset) not in redriven
        if message.timestamp_ms >= 0:
            box.oldest_ms = min(message.timestamp_ms, box.oldest_ms or message.timestamp_ms)
            box.newest_ms = max(message.timestamp_ms, box.newest_ms or message.timestamp_ms)


def show_age(moment_ms: int | None) -> str:
    return "-" if moment_ms is None else show_span(max(0, time.time_ns() // 1_000_000 - moment_ms))
