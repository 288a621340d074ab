"""The protocol frame by frame, beyond what client libraries expose: versions, the order of replies, metadata."""

from __future__ import annotations

from uuid import uuid4

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header
from support.node import eventually
from support.raw import LENGTH, Raw, batch
from support.raw_groups import consumer_heartbeat

# Allow groups short intervals.
SETTINGS = {"group.consumer.min.heartbeat.interval.ms": "100", "group.consumer.min.session.timeout.ms": "500"}


def api_versions(raw, version=0):
    return {each.api_key: each for each in raw.call(m.ApiVersionsRequest(), version).api_keys}


# Versions.


def test_an_api_that_is_not_served_is_no_fault_of_the_clients(make_node):
    node = make_node()
    with Raw(node.port) as other:
        body = encode_request_header(73, 0, 1, "asks")
        other.send_bytes(LENGTH.pack(len(body)) + body)
        assert other.is_closed()
    journal = node.wait_for_word("a request could not be answered  peer=")
    assert "AssignReplicasToDirs (API key 73)" in journal
    assert "protocol error" not in journal


def test_telemetry_is_not_advertised_and_refused_in_words(raw):
    assert not api_versions(raw).keys() & {71, 72}
    instance_id = uuid4()
    subscriptions = raw.call(m.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)
    assert subscriptions.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert subscriptions.client_instance_id == instance_id
    push = m.PushTelemetryRequest(client_instance_id=instance_id, subscription_id=1, metrics=b"x")
    assert raw.call(push, 0).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("name", "version", "is_fine"),
    [
        ("apache-kafka-java", "4.1.0-SNAPSHOT", True),
        ("a", "1", True),
        ("", "1", False),
        ("client", "", False),
        ("-client", "1", False),
        ("client", "1.", False),
        ("two words", "1", False),
        ("na\u00efve", "1", False),
        ("line\n", "1", False),
    ],
)
@pytest.mark.parametrize("api_version", [3, 4])
def test_a_clients_software_has_a_name_and_a_version(raw, name, version, is_fine, api_version):
    request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version)
    reply = raw.call(request, api_version)
    assert reply.error_code == (ErrorCode.NONE if is_fine else ErrorCode.INVALID_REQUEST)
    assert bool(reply.api_keys) is is_fine
    assert raw.call(m.ApiVersionsRequest(), 2).error_code == ErrorCode.NONE


# Topics that are created on first use.


def asked_for(raw, name, version=12, allow=True):
    topic = m.MetadataRequest.MetadataRequestTopic(name=name)
    request = m.MetadataRequest(topics=[topic], allow_auto_topic_creation=allow)
    return raw.call(request, version).topics[0]


def test_asking_creates_only_where_client_and_node_allow_it(raw, topic):
    assert asked_for(raw, topic, allow=False).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert asked_for(raw, topic).error_code == ErrorCode.NONE
    assert asked_for(raw, topic, allow=False).error_code == ErrorCode.NONE
    assert asked_for(raw, "bad name").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    old = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=f"{topic}-old")])
    assert raw.call(old, 1).topics[0].error_code == ErrorCode.NONE


def test_creation_by_asking_can_be_switched_off(make_node, topic):
    with Raw(make_node({"auto.create.topics.enable": "false"}).port) as raw:
        assert asked_for(raw, topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert raw.produce(topic, 0, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_all_topics_or_none_by_the_rules_of_each_version(raw, topic):
    raw.create_topic(topic)
    assert topic in [each.name for each in raw.call(m.MetadataRequest(topics=[]), 0).topics]
    assert raw.call(m.MetadataRequest(topics=[]), 1).topics == []
    assert topic in [each.name for each in raw.call(m.MetadataRequest(topics=None), 12).topics]


# Describing.


def describe_page(raw, names, limit, cursor=None):
    kind = m.DescribeTopicPartitionsRequest
    topics = [kind.TopicRequest(name=name) for name in names]
    return raw.call(kind(topics=topics, response_partition_limit=limit, cursor=cursor), 0)


def test_topics_are_described_page_by_page(raw, topic):
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-c"]
    for name, count in zip(names, (3, 1, 4), strict=True):
        raw.create_topic(name, count)
    seen, cursor, pages = [], None, 0
    while True:
        page = describe_page(raw, names, 2, cursor)
        result = [(each.name, part.partition_index) for each in page.topics for part in each.partitions]
        assert 1 <= len(result) <= 2
        seen += result
        pages += 1
        if page.next_cursor is None:
            break
        cursor = m.DescribeTopicPartitionsRequest.Cursor(
            topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index
        )
    counts = zip(names, (3, 1, 4), strict=True)
    assert seen == [(name, index) for name, count in counts for index in range(count)]
    assert pages == 4
    unknown = describe_page(raw, ["nowhere"], 10).topics[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_cursor_must_stand_in_what_is_asked_for(raw, topic):
    raw.create_topic(topic, 3)
    cursor = m.DescribeTopicPartitionsRequest.Cursor
    for wrong in (cursor(topic_name=f"{topic}-x", partition_index=0), cursor(topic_name=topic, partition_index=-1)):
        (found,) = describe_page(raw, [topic], 10, wrong).topics
        assert (found.name, found.error_code, found.partitions) == (topic, ErrorCode.INVALID_REQUEST, [])
        assert describe_page(raw, [topic], 10, wrong).next_cursor is None
    assert describe_page(raw, [], 10, cursor(topic_name=topic, partition_index=-1)).topics == []
    (rest,) = describe_page(raw, [topic], 10, cursor(topic_name=topic, partition_index=2)).topics
    assert [part.partition_index for part in rest.partitions] == [2]


ON_TOPIC, ON_GROUP, ON_CLUSTER = 0b1101_1111_1000, 0b1101_0100_1000, 0b1_1111_1010_0000
NOT_ASKED_FOR = -(1 << 31)


@pytest.mark.parametrize("asked", [True, False])
def test_without_an_authorizer_everything_is_allowed(raw, topic, asked):
    raw.create_topic(topic)
    wanted = m.MetadataRequest.MetadataRequestTopic(name=topic)
    for version in (8, 9, 10, 11, 12, 13):
        cluster = {"include_cluster_authorized_operations": asked} if version < 11 else {}
        request = m.MetadataRequest(topics=[wanted], include_topic_authorized_operations=asked, **cluster)
        response = raw.call(request, version)
        assert response.topics[0].topic_authorized_operations == (ON_TOPIC if asked else NOT_ASKED_FOR)
        if version < 11:
            assert response.cluster_authorized_operations == (ON_CLUSTER if asked else NOT_ASKED_FOR)
    response = raw.call(m.DescribeClusterRequest(include_cluster_authorized_operations=asked), 1)
    assert response.cluster_authorized_operations == (ON_CLUSTER if asked else NOT_ASKED_FOR)
    assert describe_page(raw, [topic], 10).topics[0].topic_authorized_operations == ON_TOPIC


def test_the_coordinators_message_is_as_kafka_says_it(raw):
    for version in (1, 2, 3):
        assert raw.call(m.FindCoordinatorRequest(key="g"), version).error_message == "NONE"
    for version in (4, 5, 6):
        (coordinator,) = raw.call(m.FindCoordinatorRequest(coordinator_keys=["g"]), version).coordinators
        assert (coordinator.error_code, coordinator.error_message) == (0, "")


BROKER, LOGGER, METRICS, GROUP = 4, 8, 16, 32
SET, DELETE = 0, 1


def change(raw, kind, name, setting, value, operation=SET):
    request = m.IncrementalAlterConfigsRequest
    one = request.AlterableConfig(name=setting, config_operation=operation, value=value)
    resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[one])
    (response,) = raw.call(request(resources=[resource]), 1).responses
    return response.error_code, response.error_message


def describe(raw, kind, name, setting):
    request = m.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[setting])
    (result,) = raw.call(request(resources=[resource], include_documentation=True), 4).results
    assert not result.error_code, result
    (config,) = result.configs
    return config


def test_what_is_set_for_a_group_counts_at_its_next_heartbeat(raw, topic):
    raw.create_topic(topic)
    raw.call(m.FindCoordinatorRequest(coordinator_keys=[topic]), 4)
    joined = consumer_heartbeat(raw, topic, str(uuid4()), 0, subscribed_topic_names=[topic], topic_partitions=[])
    assert (joined.error_code, joined.heartbeat_interval_ms) == (0, 5000)
    for name, value in (("consumer.heartbeat.interval.ms", "200"), ("consumer.session.timeout.ms", "700")):
        assert change(raw, GROUP, topic, name, value) == (0, None)
    source = describe(raw, GROUP, topic, "consumer.session.timeout.ms")
    assert (source.value, source.config_source) == ("700", 8)
    again = consumer_heartbeat(raw, topic, joined.member_id, joined.member_epoch)
    assert (again.error_code, again.heartbeat_interval_ms) == (0, 200)
    described = m.ConsumerGroupDescribeRequest(group_ids=[topic])
    assert eventually(lambda: not raw.call(described, 0).groups[0].members)
    gone = consumer_heartbeat(raw, topic, joined.member_id, joined.member_epoch)
    assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID, "its session was the group's own"
    other = consumer_heartbeat(
        raw, f"{topic}-2", str(uuid4()), 0, subscribed_topic_names=[topic], topic_partitions=[]
    )
    assert other.heartbeat_interval_ms == 5000


def test_a_logger_that_is_set_to_debug_tells_who_connects(make_node):
    node = make_node()
    with Raw(node.port) as raw:
        hello = m.ApiVersionsRequest(client_software_name="rod", client_software_version="7.2")
        raw.call(hello, 3)
        assert change(raw, LOGGER, "1", "root", "DEBUG") == (0, None)
        assert describe(raw, LOGGER, "1", "root").value == "DEBUG"
        assert "rod 7.2" not in node.journal()
        raw.call(hello, 3)
        assert "rod 7.2" in node.wait_for_word("a client connects")
        raw.create_topic("pond")
        out_of_order = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        for records in (out_of_order, batch(b"b", producer_id=7, producer_epoch=0, base_sequence=5)):
            raw.produce("pond", 0, records)
        told = node.wait_for_word("batch refused")
        assert "partition=pond-0" in told
        assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in told
        assert "sequence=5" in told
        for name, level, operation, code in (
            ("root", "LOUD", SET, ErrorCode.INVALID_CONFIG),
            ("kafka.server", "INFO", SET, ErrorCode.INVALID_CONFIG),
            ("root", None, DELETE, ErrorCode.INVALID_REQUEST),
        ):
            assert change(raw, LOGGER, "1", name, level, operation)[0] == code
        assert change(raw, LOGGER, "2", "root", "INFO")[0] == ErrorCode.INVALID_REQUEST


def test_unknown_broker_settings_are_stored_and_never_shown(make_node):
    node = make_node()
    with Raw(node.port) as raw:
        assert change(raw, BROKER, "1", "my.plugin.password", "hunter2") == (0, None)
        assert change(raw, BROKER, "1", "num.io.threads", "8")[0] == ErrorCode.INVALID_REQUEST
    node.restart()
    with Raw(node.port) as raw:
        description = describe(raw, BROKER, "1", "my.plugin.password")
        assert (description.value, description.is_sensitive, description.config_source) == (None, True, 2)
        assert "without effect" in description.documentation
        assert change(raw, BROKER, "1", "my.plugin.password", None, DELETE) == (0, None)


def test_the_quorum_is_this_node(node, raw, topic):
    def ask():
        wanted = m.DescribeQuorumRequest.PartitionData(partition_index=0)
        topics = [m.DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[wanted])]
        return raw.call(m.DescribeQuorumRequest(topics=topics), 2)

    before = ask()
    partition = before.topics[0].partitions[0]
    assert partition.leader_id == 1
    assert [each.replica_id for each in partition.current_voters] == [1]
    assert before.nodes[0].listeners[0].port == node.port
    raw.create_topic(topic)
    assert ask().topics[0].partitions[0].high_watermark > partition.high_watermark
