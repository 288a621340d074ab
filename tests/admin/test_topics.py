"""Topics as a program sees and changes them."""

from __future__ import annotations

import pytest

from millpond.admin.errors import Refused
from millpond.admin.topics import (
    TopicSetting,
    alter_topic,
    delete_records,
    delete_topics,
    describe_topics,
    find_topic,
    grow_topic,
    own_settings,
)
from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered
from millpond.remote.topics import TopicExists, create_topic
from millpond.testing import Pond


def test_a_topic_from_its_creation_to_its_end(cluster: Cluster, pond: Pond) -> None:
    create_topic(cluster, "whole-life", 2, settings={"retention.ms": "60000", "cleanup.policy": "compact"})
    with pytest.raises(TopicExists, match="whole-life exists already"):
        create_topic(cluster, "whole-life")
    pond.produce("whole-life", *((f"k{number}", "v") for number in range(5)), partition=1)
    grow_topic(cluster, "whole-life", 3)
    alter_topic(cluster, "whole-life", {"segment.bytes": "1048576"}, unset=["cleanup.policy"])
    (facts,) = describe_topics(cluster, ["whole-life"])
    assert [(each.partition, each.start, each.end) for each in facts.partitions] == [(0, 0, 0), (1, 0, 5), (2, 0, 0)]
    leader = facts.partitions[1].leader
    assert (facts.partitions[1].replicas, facts.partitions[1].in_sync) == ((leader,), (leader,))
    assert (facts.partitions[1].size_bytes or 0) > (facts.partitions[0].size_bytes or 0)
    assert [each for each in facts.settings if each.source == "topic"] == [
        TopicSetting("retention.ms", "60000", "topic"),
        TopicSetting("segment.bytes", "1048576", "topic"),
    ]
    delete_topics(cluster, ["whole-life"])
    with pytest.raises(Refused, match="There is no topic whole-life"):
        find_topic(cluster, "whole-life")


def test_what_cannot_be_is_refused_with_the_brokers_own_words(cluster: Cluster, topic: str) -> None:
    with pytest.raises(Answered, match=r"Topic odd was not created: .*no\.such\.setting") as refusal:
        create_topic(cluster, "odd", 1, settings={"no.such.setting": "1"})
    assert refusal.value.code == ErrorCode.INVALID_CONFIG
    with pytest.raises(Answered, match=f"Topic {topic} keeps its settings"):
        alter_topic(cluster, topic, {"retention.ms": "soon"})
    with pytest.raises(Refused, match="has 2 partitions, and a topic cannot lose partitions"):
        grow_topic(cluster, topic, 1)
    grow_topic(cluster, topic, 2)
    # The node of the tests was started so; its defaults are not named.
    assert own_settings(cluster, [topic]) == {topic: (TopicSetting("flush.ack", "never", "broker, set at start"),)}


def test_nothing_is_deleted_unless_all_are_there(cluster: Cluster, topic: str) -> None:
    with pytest.raises(Refused, match="did you mean"):
        delete_topics(cluster, [topic, f"{topic}x"])
    assert topic in cluster.topics()


def test_records_are_cut_from_the_beginning(cluster: Cluster, pond: Pond, topic: str) -> None:
    pond.produce(topic, *"abcde", partition=0)
    delete_records(cluster, {TopicPartition(topic, 0): 3})
    (facts,) = describe_topics(cluster, [topic])
    assert (facts.partitions[0].start, facts.partitions[0].end) == (3, 5)
    with pytest.raises(Answered, match="were not deleted"):
        delete_records(cluster, {TopicPartition(topic, 0): 99})
