"""Administration through kafka-python, which uses newer versions of the admin APIs, and through aiokafka."""

from __future__ import annotations

import asyncio
import time

import pytest
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import ConfigResourceType
from kafka.admin import OffsetSpec as PythonOffsetSpec
from kafka.errors import KafkaError as PythonKafkaError

from millpond.base.errors import ErrorCode
from support.raw import batch


@pytest.fixture
def python_admin(node):
    client = KafkaAdminClient(bootstrap_servers=node.bootstrap)
    yield client
    client.close()


@pytest.mark.smoke
def test_kafka_python_creates_describes_grows_and_deletes(python_admin, topic):
    python_admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "99000"}}})
    (description,) = python_admin.describe_topics([topic])
    assert description["name"] == topic
    assert len(description["partitions"]) == 2
    python_admin.create_partitions({topic: 4})
    (description,) = python_admin.describe_topics([topic])
    assert sorted(each["partition_index"] for each in description["partitions"]) == [0, 1, 2, 3]
    paged = python_admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert "next_cursor" in str(paged)
    python_admin.delete_topics([topic])
    assert topic not in python_admin.list_topics()


def test_kafka_python_hears_the_errors(python_admin, topic):
    for wanted, code in (
        ({topic: {"num_partitions": 1, "replication_factor": 3}}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"a b": {}}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({topic: {"configs": {"nothing": "1"}}}, ErrorCode.INVALID_CONFIG),
    ):
        with pytest.raises(PythonKafkaError) as raised:
            python_admin.create_topics(wanted)
        assert raised.value.errno == code


def test_kafka_python_describes_cluster_and_quorum(python_admin, node):
    cluster = python_admin.describe_cluster()
    assert cluster["controller_id"] == 1
    assert [each["port"] for each in cluster["brokers"]] == [node.port]
    quorum = python_admin.describe_metadata_quorum()
    assert "'leader_id': 1" in str(quorum)


def test_kafka_python_describes_settings_with_documentation_and_synonyms(python_admin, topic):
    python_admin.create_topics({topic: {"configs": {"retention.ms": "99000"}}})
    resource = PythonConfigResource(ConfigResourceType.TOPIC, topic)
    text = str(python_admin.describe_configs([resource], include_synonyms=True, config_filter="all"))
    assert "99000" in text
    assert "log.retention.ms" in text
    modified = python_admin.describe_configs([resource])
    assert "segment.bytes" not in str(modified)


def test_kafka_python_alters_settings(python_admin, topic):
    python_admin.create_topics({topic: {}})
    resource = PythonConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "55000"})
    python_admin.alter_configs([resource])
    description = python_admin.describe_configs([PythonConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "55000" in str(description)


GROUP, METRICS = ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS
LOGGER, BROKER = ConfigResourceType.BROKER_LOGGER, ConfigResourceType.BROKER


def settings_of(admin, kind, name, **options):
    description = admin.describe_configs([PythonConfigResource(kind, name)], config_filter="all", **options)
    (of_kind,) = description.values()
    return of_kind[name]


@pytest.mark.parametrize(
    ("kind", "name", "setting", "default", "value"),
    [
        (GROUP, "readers", "consumer.session.timeout.ms", "45000", "50000"),
        (GROUP, "readers", "share.record.lock.duration.ms", "30000", "10000"),
        (METRICS, "watch", "interval.ms", "300000", "60000"),
        (LOGGER, "1", "root", "INFO", "DEBUG"),
    ],
)
def test_kafka_python_alters_what_groups_metrics_and_loggers_have(python_admin, kind, name, setting, default, value):
    assert settings_of(python_admin, kind, name)[setting]["value"] == default
    python_admin.alter_configs([PythonConfigResource(kind, name, configs={setting: value})])
    assert settings_of(python_admin, kind, name)[setting]["value"] == value
    assert name in str(python_admin.list_config_resources())
    if kind == LOGGER:
        python_admin.alter_configs([PythonConfigResource(kind, name, configs={setting: "INFO"})])


def test_a_brokers_settings_under_kafkas_names(python_admin, node):
    settings = settings_of(python_admin, BROKER, "1")
    assert settings["listeners"]["value"] == f"PLAINTEXT://{node.bootstrap}"
    assert settings["advertised.listeners"]["value"] == f"PLAINTEXT://{node.bootstrap}"
    assert settings["log.dirs"]["value"] == str(node.data)
    assert settings["broker.id"]["value"] == "1"
    assert settings["num.io.threads"]["value"] == "1"
    assert settings["log.retention.hours"]["value"] == "168"


def test_kafka_python_lists_offsets_and_deletes_records(python_admin, raw, topic):
    python_admin.create_topics({topic: {}})
    now_ms = time.time_ns() // 1_000_000
    raw.produce(topic, 0, batch(b"a", b"b", b"c", timestamp=now_ms))
    topic_partition = PythonTopicPartition(topic, 0)

    def offset(spec):
        return python_admin.list_partition_offsets({topic_partition: spec})[topic_partition].offset

    assert offset(PythonOffsetSpec.EARLIEST) == 0
    assert offset(PythonOffsetSpec.LATEST) == 3
    assert offset(PythonOffsetSpec.MAX_TIMESTAMP) == 0
    python_admin.delete_records({topic_partition: 2})
    assert offset(PythonOffsetSpec.EARLIEST) == 2


def test_kafka_python_sees_how_large_partitions_are(python_admin, node, raw, topic):
    python_admin.create_topics({topic: {}})
    raw.produce(topic, 0, batch(b"x" * 5000))
    text = str(python_admin.describe_log_dirs())
    assert str(node.data) in text
    size = (node.data / f"{topic}-0" / "00000000000000000000.log").stat().st_size
    assert size > 5000
    assert f"'partition_size': {size}" in text


# aiokafka.


@pytest.mark.smoke
def test_aiokafka_administers_topics(node, raw, topic):
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
    from aiokafka.admin import NewPartitions as AioNewPartitions
    from aiokafka.admin import NewTopic as AioNewTopic
    from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
    from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
    from aiokafka.structs import TopicPartition as AioTopicPartition

    async def act():
        client = AIOKafkaAdminClient(bootstrap_servers=node.bootstrap)
        await client.start()
        try:
            created = await client.create_topics([AioNewTopic(topic, 1, 1)])
            assert created.topic_errors[0][1] == 0
            again = await client.create_topics([AioNewTopic(topic, 1, 1)])
            assert again.topic_errors[0][1] == ErrorCode.TOPIC_ALREADY_EXISTS
            await client.create_partitions({topic: AioNewPartitions(2)})
            (description,) = await client.describe_topics([topic])
            assert len(description["partitions"]) == 2
            assert (await client.describe_cluster())["controller_id"] == 1
            resource = AioConfigResource(AioConfigResourceType.TOPIC, topic, {"retention.ms": "66000"})
            await client.alter_configs([resource])
            (configs,) = await client.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic)])
            assert "66000" in str(configs)
            raw.produce(topic, 1, batch(b"a", b"b"))
            topic_partition = AioTopicPartition(topic, 1)
            assert (await client.delete_records({topic_partition: RecordsToDelete(before_offset=1)}))[
                topic_partition
            ] == 1
            await client.delete_topics([topic])
            assert topic not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(act())
