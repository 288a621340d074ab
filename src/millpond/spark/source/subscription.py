"""What a query subscribes to (topics, a pattern or partitions) and the partitions it has now."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from millpond.base.ids import TopicPartition, topic_name_fault
from millpond.client.errors import UnknownTopic
from millpond.spark.options import ASSIGN, SUBSCRIBE, SUBSCRIBE_PATTERN, OptionError, Options, nearest

if TYPE_CHECKING:
    from millpond.remote.cluster import Cluster, TopicInfo


@dataclass(frozen=True, slots=True)
class Named:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: frozenset[TopicPartition]


Subscription: TypeAlias = Named | Matching | Assigned


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The partitions of a subscription at one moment."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, UUID] = field(default_factory=dict)
    """Distinguishes a topic from a recreated one with the same name."""


def subscription_of(options: Options) -> Subscription:
    """The option that was given."""
    ways = (SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN)
    given = [way.name for way in ways if options.get(way) is not None]
    if len(given) != 1:
        names = ", ".join(way.name for way in ways)
        raise OptionError(f"give exactly one of {names}; given: {', '.join(given) or 'none'}")
    if (topics := options.get(SUBSCRIBE)) is not None:
        return _named(topics)
    if (pattern := options.get(SUBSCRIBE_PATTERN)) is not None:
        try:
            return Matching(re.compile(pattern))
        except re.error as fault:
            raise OptionError(f"option subscribePattern is not a regular expression: {pattern!r}: {fault}") from None
    return _assigned(options.get(ASSIGN) or "")


def look(cluster: Cluster, subscription: Subscription, *, all_must_exist: bool = False) -> Subscribed:
    """The current partitions."""
    topics = cluster.topics(_names(subscription))
    if all_must_exist:
        _check_all_exist(cluster, subscription, topics)
    return subscribed_in(subscription, topics)


def subscribed_in(subscription: Subscription, topics: Mapping[str, TopicInfo]) -> Subscribed:
    """The subscribed partitions of these topics."""
    match subscription:
        case Matching(pattern):
            # As in Kafka's consumers, a pattern does not match internal topics.
            chosen = [info for info in topics.values() if not info.is_internal and pattern.fullmatch(info.name)]
        case _:
            chosen = list(topics.values())
    partitions = frozenset(TopicPartition(info.name, number) for info in chosen for number in info.partitions)
    if isinstance(subscription, Assigned):
        partitions &= subscription.partitions
    return Subscribed(partitions, {info.name: info.topic_id for info in chosen})


def _names(subscription: Subscription) -> Collection[str] | None:
    match subscription:
        case Named(topics):
            return topics
        case Assigned(partitions):
            return {partition.topic for partition in partitions}
        case Matching():
            return None


def _check_all_exist(cluster: Cluster, subscription: Subscription, topics: Mapping[str, TopicInfo]) -> None:
    for name in sorted(_names(subscription) or ()):
        if name not in topics:
            near = nearest(name, list(cluster.topics(None)))
            hint = f"did you mean {near}?" if near else f"create it with `millpond topic create {name}`"
            raise UnknownTopic(f"there is no topic {name}; {hint}")
    if isinstance(subscription, Assigned):
        for partition in sorted(subscription.partitions):
            count = len(topics[partition.topic].partitions)
            if partition.partition not in topics[partition.topic].partitions:
                raise UnknownTopic(f"topic {partition.topic} has no partition {partition.partition}: it has {count}")


def _named(given: str) -> Named:
    topics = tuple(dict.fromkeys(filter(None, (each.strip() for each in given.split(",")))))
    if not topics:
        raise OptionError(f"option subscribe names no topic: {given!r}")
    for topic in topics:
        _check_name("subscribe", topic)
    return Named(topics)


def _assigned(given: str) -> Assigned:
    try:
        by_topic = json.loads(given)
        partitions = frozenset(
            TopicPartition(topic, number) for topic, numbers in by_topic.items() for number in numbers
        )
    except (ValueError, AttributeError, TypeError):
        partitions = frozenset()
    if not partitions or not all(
        type(partition.partition) is int and partition.partition >= 0 for partition in partitions
    ):
        raise OptionError(f'option assign is written {{"orders":[0,1],"clicks":[0]}}, not {given!r}')
    for partition in sorted(partitions):
        _check_name("assign", partition.topic)
    return Assigned(partitions)


def _check_name(option: str, topic: str) -> None:
    fault = topic_name_fault(topic)
    if fault is not None:
        raise OptionError(f"option {option}: {fault}")
