"""Subscriptions, and their partitions."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
from millpond.client.errors import UnknownTopic
from millpond.remote.cluster import Cluster, PartitionInfo, TopicInfo
from millpond.spark.options import OptionError, read_options
from millpond.spark.source.subscription import Assigned, Matching, Named, look, subscribed_in, subscription_of
from support.node import Node
from support.topics import create_topic


def subscription(**given: str) -> Named | Matching | Assigned:
    return subscription_of(read_options(given, "read"))


def info(name: str, partitions: int, *, is_internal: bool = False) -> TopicInfo:
    return TopicInfo(name, UUID(int=7), {n: PartitionInfo(1, 0) for n in range(partitions)}, is_internal)


def test_a_subscription_by_names_pattern_or_assignment() -> None:
    assert subscription(subscribe=" a, b ,,a") == Named(("a", "b"))
    assert subscription(subscribePattern="ord.*") == Matching(re.compile("ord.*"))
    expected = frozenset({TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)})
    assert subscription(assign='{"a":[0,2],"b":[1]}') == Assigned(expected)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "exactly one of subscribe, subscribePattern, assign; given: none"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "given: subscribe, assign"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "or ders"}, "may only have ASCII"),
        ({"subscribePattern": "(a"}, "not a regular expression"),
        ({"assign": "a"}, '{"orders":[0,1]'),
        ({"assign": "[1]"}, '{"orders":[0,1]'),
        ({"assign": '{"a":["0"]}'}, '{"orders":[0,1]'),
        ({"assign": '{"a":[-1]}'}, '{"orders":[0,1]'),
        ({"assign": "{}"}, '{"orders":[0,1]'),
        ({"assign": '{"a":[true]}'}, '{"orders":[0,1]'),
    ],
)
def test_an_invalid_subscription_is_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError) as raised:
        subscription(**given)
    assert reason in str(raised.value)


def test_a_pattern_matches_whole_names_of_topics_that_are_not_internal() -> None:
    topics = {each.name: each for each in (info("or", 1), info("orders", 2), info("__orders", 1, is_internal=True))}
    result = subscribed_in(Matching(re.compile(".*orders")), topics)
    assert result.partitions == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert result.ids == {"orders": UUID(int=7)}


def test_assigned_partitions_are_those_that_exist() -> None:
    expected = frozenset({TopicPartition("a", 1), TopicPartition("a", 9)})
    assert subscribed_in(Assigned(expected), {"a": info("a", 3)}).partitions == {TopicPartition("a", 1)}


def test_a_missing_topic_is_named_with_the_nearest_one(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, f"{topic}-orders", 2)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        result = look(cluster, Named((f"{topic}-orders", "nowhere")))
        assert result.partitions == {TopicPartition(f"{topic}-orders", 0), TopicPartition(f"{topic}-orders", 1)}
        with pytest.raises(UnknownTopic, match=f"no topic {topic}-order; did you mean {topic}-orders"):
            look(cluster, Named((f"{topic}-order",)), all_must_exist=True)
        with pytest.raises(UnknownTopic, match="no topic zebra; create it with `millpond topic create zebra`"):
            look(cluster, Named(("zebra",)), all_must_exist=True)
        beyond = Assigned(frozenset({TopicPartition(f"{topic}-orders", 5)}))
        with pytest.raises(UnknownTopic, match=f"{topic}-orders has no partition 5: it has 2"):
            look(cluster, beyond, all_must_exist=True)
        assert look(cluster, Matching(re.compile("no-such-.*")), all_must_exist=True).partitions == frozenset()
