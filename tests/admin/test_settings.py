"""Settings of topics, nodes and groups, asked of a real node."""

from __future__ import annotations

import pytest

from millpond.admin.errors import Refused
from millpond.admin.settings import Change, Subject, change_settings, find_settings, read_settings
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered
from millpond.testing import Pond


def test_a_topic_says_what_it_is_set_to_and_what_that_means(cluster: Cluster, topic: str) -> None:
    subject = Subject("topic", topic)
    assert change_settings(cluster, subject, {"retention.ms": "60000"}) == [
        Change("retention.ms", "604800000", "60000")
    ]
    own, other = find_settings(cluster, subject, ["retention.ms", "segment.bytes"])
    assert (own.value, own.source, own.is_own, own.otherwise) == ("60000", "topic", True, "604800000")
    assert "older than this" in own.meaning
    assert (other.is_default, other.is_own, other.kind) == (True, False, "whole number")
    assert change_settings(cluster, subject, {}, ["retention.ms"]) == [Change("retention.ms", "60000", "604800000")]
    assert find_settings(cluster, subject, ["retention.ms"])[0].is_default


def test_all_are_changed_or_none(cluster: Cluster, topic: str) -> None:
    subject = Subject("topic", topic)
    with pytest.raises(Refused, match=r"no setting of topics retention\.m; did you mean retention\.ms\?"):
        change_settings(cluster, subject, {"segment.bytes": "20000", "retention.m": "1"})
    with pytest.raises(Answered, match="must be a whole number"):
        change_settings(cluster, subject, {"segment.bytes": "20000", "retention.ms": "soon"})
    change_settings(cluster, subject, {"segment.bytes": "20000"}, dry=True)
    assert find_settings(cluster, subject, ["segment.bytes"])[0].is_default


def test_dynamic_settings_of_one_node_and_of_all(cluster: Cluster) -> None:
    every, one = Subject("node", "all"), Subject("node", "1")
    try:
        change_settings(cluster, every, {"log.retention.ms": "70000"})
        assert [(each.name, each.value) for each in read_settings(cluster, every)] == [("log.retention.ms", "70000")]
        change_settings(cluster, one, {"log.retention.ms": "80000"})
        (facts,) = find_settings(cluster, one, ["log.retention.ms"])
        assert (facts.value, facts.is_own, facts.otherwise) == ("80000", True, "70000")
    finally:
        change_settings(cluster, one, {}, ["log.retention.ms"])
        change_settings(cluster, every, {}, ["log.retention.ms"])
    assert read_settings(cluster, every) == []
    with pytest.raises(Refused, match=r"num\.partitions can only be set when a node starts"):
        change_settings(cluster, one, {"num.partitions": "3"})
    # A broker would take and remember it: it might be a plugin's.
    with pytest.raises(Refused, match=r"did you mean log\.retention\.ms"):
        change_settings(cluster, every, {"log.retenton.ms": "3"})
    with pytest.raises(Refused, match="was not set for all nodes"):
        find_settings(cluster, every, ["log.retention.ms"])
    with pytest.raises(Refused, match="There is no node 7 now: there are 1, or all"):
        read_settings(cluster, Subject("node", "7"))


def test_a_group_has_settings_before_it_exists(cluster: Cluster, pond: Pond) -> None:
    subject = Subject("group", "settings-of-a-group")
    change_settings(cluster, subject, {"consumer.heartbeat.interval.ms": "6000"})
    (facts,) = (each for each in read_settings(cluster, subject) if not each.is_default)
    assert (facts.name, facts.value, facts.source, facts.otherwise) == (
        "consumer.heartbeat.interval.ms",
        "6000",
        "group",
        "5000",
    )
