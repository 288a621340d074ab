"""Administration through the most widely used client: topics, partitions, records, offsets, settings."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from millpond.base.errors import ErrorCode
from support.raw import batch


@pytest.fixture(scope="module")
def admin(node):
    return AdminClient({"bootstrap.servers": node.bootstrap})


def outcome(futures):
    """The result of the reply's only future."""
    (future,) = futures.values()
    return future.result(60)


def refusal(futures):
    """Code and text of the error that the reply's only future ends with."""
    with pytest.raises(KafkaException) as raised:
        outcome(futures)
    error = raised.value.args[0]
    return error.code(), error.str()


def described(admin, name):
    return outcome(admin.describe_topics(TopicCollection([name])))


def configs_of(admin, name, kind=ResourceType.TOPIC):
    return outcome(admin.describe_configs([ConfigResource(kind, name)]))


# Creating topics.


@pytest.mark.smoke
def test_a_created_topic_has_what_was_asked_for(admin, topic):
    outcome(admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "60000"})]))
    description = described(admin, topic)
    assert [each.id for each in description.partitions] == [0, 1, 2]
    assert all(each.leader.id == 1 and [r.id for r in each.isr] == [1] for each in description.partitions)
    assert not description.is_internal
    assert topic in admin.list_topics(timeout=60).topics
    assert configs_of(admin, topic)["retention.ms"].value == "60000"


# Adding partitions and deleting.


@pytest.mark.smoke
def test_partitions_are_added_and_can_be_written_to(admin, raw, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    raw.produce(topic, 0, batch(b"before"))
    outcome(admin.create_partitions([NewPartitions(topic, 3)]))
    assert raw.produce(topic, 2, batch(b"new")).error_code == ErrorCode.NONE
    assert [each.value for each in raw.read_all(topic, 0)] == [b"before"]
    assert len(described(admin, topic).partitions) == 3


def test_a_topic_created_again_is_another_one_and_empty(admin, raw, topic):
    outcome(admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "1234567"})]))
    first_id = described(admin, topic).topic_id
    raw.produce(topic, 0, batch(b"old"))
    outcome(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=60).topics
    assert raw.produce(topic, 0, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    description = described(admin, topic)
    assert str(description.topic_id) != str(first_id)
    assert len(description.partitions) == 1
    assert raw.read_all(topic) == []
    assert configs_of(admin, topic)["retention.ms"].value == "604800000"
    assert raw.produce(topic, 0, batch(b"new")).base_offset == 0


@pytest.mark.smoke
def test_records_are_deleted_up_to_an_offset(admin, raw, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    for number in range(10):
        raw.produce(topic, 0, batch(b"%d" % number))
    assert outcome(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    assert raw.fetch(topic, 0, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert raw.read_all(topic)[0].offset == 4
    assert outcome(admin.delete_records([TopicPartition(topic, 0, -1)])).low_watermark == 10
    assert raw.read_all(topic) == []
    assert raw.produce(topic, 0, batch(b"next")).base_offset == 10


def test_records_beyond_the_end_cannot_be_deleted(admin, raw, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    raw.produce(topic, 0, batch(b"x"))
    assert refusal(admin.delete_records([TopicPartition(topic, 0, 5)]))[0] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_records_of_a_compacted_topic_cannot_be_deleted(admin, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]))
    assert refusal(admin.delete_records([TopicPartition(topic, 0, 0)]))[0] == ErrorCode.POLICY_VIOLATION


# The cluster and its offsets.


def test_the_cluster_describes_itself(admin, node):
    description = admin.describe_cluster().result(60)
    assert description.controller.id == 1
    assert [(each.id, each.host, each.port) for each in description.nodes] == [(1, "127.0.0.1", node.port)]
    assert len(description.cluster_id) == 22
    assert admin.list_topics(timeout=60).cluster_id == description.cluster_id


def test_describe_returns_the_allowed_operations_on_request(admin, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    cluster = admin.describe_cluster(include_authorized_operations=True).result(60)
    assert {each.name for each in cluster.authorized_operations} == {
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"
    }  # fmt: skip
    of_topic = outcome(admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True))
    assert {each.name for each in of_topic.authorized_operations} == {
        "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"
    }  # fmt: skip
    assert admin.describe_cluster().result(60).authorized_operations is None


def test_offsets_by_place_and_by_time(admin, raw, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    now_ms = time.time_ns() // 1_000_000
    for number in range(10):
        raw.produce(topic, 0, batch(b"%d" % number, timestamp=now_ms + number * 100))
    raw.produce(topic, 0, batch(b"late", timestamp=now_ms))

    def offset(spec):
        wanted = {TopicPartition(topic, 0): spec}
        return outcome(admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)).offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 11
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(now_ms - 1)) == 0
    assert offset(OffsetSpec.for_timestamp(now_ms + 250)) == 3
    assert offset(OffsetSpec.for_timestamp(now_ms + 300)) == 3
    assert offset(OffsetSpec.for_timestamp(now_ms + 901)) == -1


def test_offsets_of_an_unknown_partition_are_refused(admin, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    with pytest.raises(KafkaException):
        outcome(admin.list_offsets({TopicPartition(topic, 5): OffsetSpec.latest()}, request_timeout=3))


# Settings.


def test_a_topics_settings_have_values_and_sources(admin, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1, config={"segment.bytes": "1000000"})]))
    configs = configs_of(admin, topic)
    assert configs["segment.bytes"].value == "1000000"
    assert configs["segment.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not configs["segment.bytes"].is_default
    assert configs["retention.ms"].value == "604800000"
    assert configs["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    assert configs["retention.ms"].is_default
    assert not any(each.is_read_only or each.is_sensitive for each in configs.values())
    assert list(configs["segment.bytes"].synonyms) == ["segment.bytes", "log.segment.bytes"]


def test_what_the_node_was_started_with_is_the_source_of_a_topics_default(make_node, topic):
    admin = AdminClient({"bootstrap.servers": make_node({"log.retention.ms": "777000"}).bootstrap})
    outcome(admin.create_topics([NewTopic(topic, 1, 1)]))
    config = configs_of(admin, topic)["retention.ms"]
    assert config.value == "777000"
    assert config.source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert "log.retention.ms" in config.synonyms


@pytest.mark.smoke
def test_settings_change_one_by_one(admin, raw, topic):
    outcome(admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "1000000"})]))

    def alter(name, value, operation):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return outcome(admin.incremental_alter_configs([resource]))

    alter("max.message.bytes", "500", AlterConfigOpType.SET)
    assert raw.produce(topic, 0, batch(b"x" * 600)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    configs = configs_of(admin, topic)
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].value == "1000000", "other settings stay"
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    alter("max.message.bytes", None, AlterConfigOpType.DELETE)
    configs = configs_of(admin, topic)
    assert configs["cleanup.policy"].value == "compact"
    assert configs["max.message.bytes"].source == ConfigSource.DEFAULT_CONFIG.value


def test_a_brokers_live_settings_change_and_the_others_do_not(make_node):
    node = make_node()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    configs = configs_of(admin, "1", ResourceType.BROKER)
    assert configs["data.folder"].value == str(node.data)
    assert configs["data.folder"].is_read_only
    assert configs["data.folder"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert not configs["max.connections"].is_read_only

    def alter(name, value):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])

    outcome(alter("max.connections", "123"))
    assert configs_of(admin, "1", ResourceType.BROKER)["max.connections"].value == "123"
    assert refusal(alter("data.folder", "/elsewhere"))[0] in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG)
