"""Replication throttles for partition moves, set and removed as Kafka's own tools do.

A topic lists its throttled replicas, a node has its rates. The lists are set before the rates and removed after them,
so that leftovers of a killed command can be found by the lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from millpond.admin.moves import AT_ONCE, Move, moves_under_way
from millpond.admin.placement import PlannedMove
from millpond.admin.settings import Subject, alter_request, alter_settings, describe_configs
from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.errors import Answered, Unreachable, check
from millpond.wire import messages as m

LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
ALL: Final = "*"
"""Throttles every replica. Our tools never write this, so they never remove it."""
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

_CHANGED_TOPIC: Final = 1
_CHANGED_BROKER: Final = 2

Rates = Mapping[int, Mapping[str, str]]
"""The dynamic rate settings of each node."""


def set_throttle(cluster: Cluster, moves: Sequence[PlannedMove], rate: int) -> Rates:
    """Limit each node to `rate` bytes per second for these moves; returns the previous rates."""
    named: dict[str, tuple[set[str], set[str]]] = {}
    nodes: set[int] = set()
    for move in moves:
        if not move.adding:
            continue
        topic, index = move.partition
        leaders, followers = named.setdefault(topic, (set(), set()))
        leaders |= {f"{index}:{node}" for node in move.before}
        followers |= {f"{index}:{node}" for node in move.adding}
        nodes |= {*move.before, *move.adding}
    for topic, current in _lists(cluster, list(named)).items():
        changed = {
            name: ",".join(sorted(entries | added))
            for name, entries, added in zip(LISTS, current, named[topic], strict=True)
            if ALL not in entries and not added <= entries
        }
        if changed:
            alter_settings(cluster, Subject("topic", topic), changed)
    before = _rates(cluster, nodes)
    new_rates = dict.fromkeys(RATES, str(rate))
    for node, rates in before.items():
        if rates != new_rates:
            _alter_node(cluster, node, new_rates)
    return before


def clear_throttle(cluster: Cluster, free: Collection[TopicPartition] = (), before: Rates | None = None) -> bool:
    """Remove throttles that are no longer needed, including leftovers; returns whether none remain.

    Replicas of a partition that is moving or under-replicated stay throttled, except partitions in `free`. `before`
    holds the rates to restore.
    """
    topics = cluster.topics()
    under_way = moves_under_way(cluster)
    dropped: dict[str, dict[str, str]] = {}
    needed: set[str] = set()
    for topic, lists in _lists(cluster, list(topics)).items():
        for name, entries in zip(LISTS, lists, strict=True):
            kept = {each for each in entries if _is_needed(each, topics[topic], under_way, free)}
            needed |= kept
            if kept != entries:
                dropped.setdefault(topic, {})[name] = ",".join(sorted(kept))
    if dropped and not needed:
        for node, rates in _rates(cluster, cluster.addresses()).items():
            if rates:
                _alter_node(cluster, node, {name: (before or {}).get(node, {}).get(name) for name in RATES})
    for topic, changed in dropped.items():
        settings = {name: text for name, text in changed.items() if text}
        try:
            unset = [name for name, text in changed.items() if not text]
            alter_settings(cluster, Subject("topic", topic), settings, unset)
        except Answered as refusal:
            if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return not needed - {ALL}


def _is_needed(
    entry: str, topic: TopicInfo, under_way: Mapping[TopicPartition, Move], free: Collection[TopicPartition]
) -> bool:
    index, colon, _ = entry.partition(":")
    if not colon or not index.isdecimal():
        return True
    partition = TopicPartition(topic.name, int(index))
    info = topic.partitions.get(partition.partition)
    if partition in free or info is None:
        return False
    return partition in under_way or not set(info.replicas) <= set(info.in_sync)


def _lists(cluster: Cluster, topics: Sequence[str]) -> dict[str, list[set[str]]]:
    """The throttled replicas of each existing topic."""
    lists: dict[str, list[set[str]]] = {}

    def attempt(names: Sequence[str]) -> None:
        for each in describe_configs(cluster.any(), [Subject("topic", name) for name in names], LISTS):
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            check(each.error_code, f"The settings of {each.resource_name} are not known", each.error_message)
            texts = {entry.name: entry.value or "" for entry in each.configs if entry.config_source == _CHANGED_TOPIC}
            lists[each.resource_name] = [
                {entry.strip() for entry in texts.get(name, "").split(",") if entry.strip()} for name in LISTS
            ]

    for at in range(0, len(topics), AT_ONCE):
        cluster.retrying("ask for the settings of topics", partial(attempt, topics[at : at + AT_ONCE]))
    return lists


def _rates(cluster: Cluster, nodes: Iterable[int]) -> dict[int, dict[str, str]]:
    """Ask each node for its own rates; a node that is down copies nothing."""
    rates: dict[int, dict[str, str]] = {}
    there = cluster.addresses()
    for node in sorted(each for each in nodes if each in there):
        try:
            (result,) = describe_configs(cluster.broker(node), [Subject("node", str(node))], RATES)
        except Unreachable:
            continue
        check(result.error_code, f"The settings of node {node} are not known", result.error_message)
        rates[node] = {
            each.name: each.value or ""
            for each in result.configs
            if each.name in RATES and each.config_source == _CHANGED_BROKER
        }
    return rates


def _alter_node(cluster: Cluster, node: int, settings: Mapping[str, str | None]) -> None:
    """Change a node's settings; None removes the dynamic value."""
    request = alter_request(Subject("node", str(node)), settings)

    def attempt() -> None:
        if node not in cluster.addresses():
            return
        try:
            connection = cluster.broker(node)
        except Unreachable:
            # A node that is down copies nothing, and a rate without a list has no effect.
            return
        (result,) = connection.ask(request, m.IncrementalAlterConfigsResponse).responses
        check(result.error_code, f"Node {node} keeps its settings", result.error_message)

    cluster.retrying(f"change the settings of node {node}", attempt)
