"""The protocol frame by frame, beyond what client libraries expose: versions, the order of replies, metadata."""

from __future__ import annotations

import struct
from uuid import uuid4

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header
from support.node import eventually
from support.raw import LENGTH, Raw, batch, fetch_partition, fetch_request, records_of
from support.raw_groups import consumer_heartbeat

# Allow groups short intervals.
SETTINGS = {"group.consumer.min.heartbeat.interval.ms": "100", "group.consumer.min.session.timeout.ms": "500"}


def api_versions(raw, version=0):
    return {each.api_key: each for each in raw.call(m.ApiVersionsRequest(), version).api_keys}


# Versions.


def test_produce_is_advertised_from_0_and_fetch_up_to_date(raw):
    found = api_versions(raw)
    assert (found[0].min_version, found[0].max_version) == (0, 13)
    assert (found[1].min_version, found[1].max_version) == (4, 18)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_in_a_new_request_are_refused(raw, topic, magic):
    raw.create_topic(topic)
    message = struct.pack(">IbbiI", 0, magic, 0, -1, 3) + b"old"
    reply = raw.produce(topic, 0, struct.pack(">qi", 0, len(message)) + message + bytes(40))
    assert reply.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert reply.base_offset == -1
    assert raw.read_all(topic) == []


def test_an_api_that_is_not_served_is_no_fault_of_the_clients(make_node):
    node = make_node()
    with Raw(node.port) as other:
        body = encode_request_header(73, 0, 1, "asks")
        other.send_bytes(LENGTH.pack(len(body)) + body)
        assert other.is_closed()
    journal = node.wait_for_word("unsupported request  peer=")
    assert "AssignReplicasToDirs (API key 73)" in journal
    assert "protocol error" not in journal


def test_telemetry_is_not_advertised_and_refused_in_words(raw):
    assert not api_versions(raw).keys() & {71, 72}
    asked = uuid4()
    subscriptions = raw.call(m.GetTelemetrySubscriptionsRequest(client_instance_id=asked), 0)
    assert subscriptions.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert subscriptions.client_instance_id == asked
    push = m.PushTelemetryRequest(client_instance_id=asked, subscription_id=1, metrics=b"x")
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


def small_requests(raw, topic):
    """For each key a harmless request that is not empty."""
    topic_id = raw.topic_id(topic)

    def produce(version):
        data = m.ProduceRequest.PartitionProduceData(index=0, records=batch(b"v%d" % version))
        wanted = m.ProduceRequest.TopicProduceData(partition_data=[data])
        if version >= 13:
            wanted.topic_id = topic_id
        else:
            wanted.name = topic
        return m.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[wanted])

    def fetch(version):
        wanted = m.FetchRequest.FetchTopic(partitions=[fetch_partition(0, 0)])
        if version >= 13:
            wanted.topic_id = topic_id
        else:
            wanted.topic = topic
        return m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[wanted], forgotten_topics_data=[])

    def list_offsets(version):
        wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
        topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
        return m.ListOffsetsRequest(replica_id=-1, topics=topics)

    def metadata(version):
        return m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)])

    def create_topics(version):
        wanted = m.CreateTopicsRequest.CreatableTopic(
            name=f"{topic}-v{version}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        return m.CreateTopicsRequest(topics=[wanted], timeout_ms=1000)

    def delete_topics(version):
        if version >= 6:
            return m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="no")], timeout_ms=9)
        return m.DeleteTopicsRequest(topic_names=["no"], timeout_ms=9)

    def delete_records(version):
        wanted = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
        topics = [m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])]
        return m.DeleteRecordsRequest(topics=topics, timeout_ms=1000)

    def init_producer_id(version):
        return m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

    def end_of_epoch(version):
        wanted = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        topics = [m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
        return m.OffsetForLeaderEpochRequest(topics=topics)

    def describe_configs(version):
        kind = m.DescribeConfigsRequest.DescribeConfigsResource
        wanted = [
            kind(resource_type=2, resource_name=topic, configuration_keys=None),
            kind(resource_type=4, resource_name="1", configuration_keys=["node.id"]),
        ]
        return m.DescribeConfigsRequest(resources=wanted, include_synonyms=True)

    def describe_log_dirs(version):
        return m.DescribeLogDirsRequest(topics=None)

    def create_partitions(version):
        wanted = m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=1, assignments=None)
        return m.CreatePartitionsRequest(topics=[wanted], timeout_ms=1000, validate_only=True)

    def describe_quorum(version):
        wanted = m.DescribeQuorumRequest.PartitionData(partition_index=0)
        topics = [m.DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[wanted])]
        return m.DescribeQuorumRequest(topics=topics)

    def api_versions_request(version):
        return m.ApiVersionsRequest(client_software_name="raw", client_software_version="1")

    def describe_topic_partitions(version):
        wanted = m.DescribeTopicPartitionsRequest.TopicRequest(name=topic)
        return m.DescribeTopicPartitionsRequest(topics=[wanted], cursor=None)

    return {
        0: produce,
        1: fetch,
        2: list_offsets,
        3: metadata,
        18: api_versions_request,
        19: create_topics,
        20: delete_topics,
        21: delete_records,
        22: init_producer_id,
        23: end_of_epoch,
        32: describe_configs,
        35: describe_log_dirs,
        37: create_partitions,
        55: describe_quorum,
        75: describe_topic_partitions,
    }


@pytest.mark.smoke
def test_every_advertised_version_of_every_api_is_answered_with_something_that_decodes(node, raw, topic):
    raw.create_topic(topic)
    requests = small_requests(raw, topic)
    answered = 0
    for key, advertised in api_versions(raw).items():
        first = 3 if key == 0 else advertised.min_version
        for version in range(first, advertised.max_version + 1):
            make = requests.get(key)
            request = make(version) if make else m.request_class(key)()
            with Raw(node.port) as fresh:
                try:
                    reply = fresh.call(request, version)
                except Exception as fault:
                    raise AssertionError(f"{type(request).__name__} version {version}: {fault!r}") from fault
            assert not getattr(reply, "error_code", 0) or make is None, (version, reply)
            answered += 1
    assert answered > 80
    assert "our own fault" not in node.journal()


def test_one_request_per_version_is_really_in_the_answer(raw, topic):
    """The loop above would accept empty replies; this one inspects Produce and Fetch."""
    raw.create_topic(topic)
    requests = small_requests(raw, topic)
    for number, version in enumerate(range(3, 14)):
        reply = raw.call(requests[0](version), version).responses[0].partition_responses[0]
        assert (reply.error_code, reply.base_offset) == (0, number), version
    for version in range(4, 19):
        reply = raw.call(requests[1](version), version).responses[0].partitions[0]
        assert (reply.error_code, reply.high_watermark) == (0, 11), version
        assert [each.value for each in records_of(reply.records)] == [b"v%d" % each for each in range(3, 14)]


# The order of replies.


@pytest.mark.smoke
def test_replies_leave_in_the_order_of_requests_even_behind_a_parked_fetch(node, raw, topic):
    raw.create_topic(topic)
    # Longer than any connection of the test waits: only the record wakes it.
    fetch_id = raw.send(fetch_request(topic, wait_ms=100_000), 12)
    other_ids = [raw.send(m.ApiVersionsRequest(), 0) for _ in range(5)]
    with Raw(node.port) as quick:
        quick.call(m.ApiVersionsRequest(), 0)
        assert raw.is_quiet(0.2), "all wait behind the fetch"
        quick.produce(topic, 0, batch(b"at last"))
    assert raw.receive(1, 12)[0] == fetch_id
    assert [raw.receive(18, 0)[0] for _ in range(5)] == other_ids


# Topics that are created on first use.


def asked_for(raw, name, version=12, allow=True):
    wanted = m.MetadataRequest.MetadataRequestTopic(name=name)
    request = m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=allow)
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
    wanted = [kind.TopicRequest(name=name) for name in names]
    return raw.call(kind(topics=wanted, response_partition_limit=limit, cursor=cursor), 0)


def test_topics_are_described_page_by_page(raw, topic):
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-c"]
    for name, count in zip(names, (3, 1, 4), strict=True):
        raw.create_topic(name, count)
    seen, cursor, pages = [], None, 0
    while True:
        page = describe_page(raw, names, 2, cursor)
        found = [(each.name, part.partition_index) for each in page.topics for part in each.partitions]
        assert 1 <= len(found) <= 2
        seen += found
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
        found = raw.call(request, version)
        assert found.topics[0].topic_authorized_operations == (ON_TOPIC if asked else NOT_ASKED_FOR)
        if version < 11:
            assert found.cluster_authorized_operations == (ON_CLUSTER if asked else NOT_ASKED_FOR)
    found = raw.call(m.DescribeClusterRequest(include_cluster_authorized_operations=asked), 1)
    assert found.cluster_authorized_operations == (ON_CLUSTER if asked else NOT_ASKED_FOR)
    assert describe_page(raw, [topic], 10).topics[0].topic_authorized_operations == ON_TOPIC


def test_the_coordinators_message_is_as_kafka_says_it(raw):
    for version in (1, 2, 3):
        assert raw.call(m.FindCoordinatorRequest(key="g"), version).error_message == "NONE"
    for version in (4, 5, 6):
        (found,) = raw.call(m.FindCoordinatorRequest(coordinator_keys=["g"]), version).coordinators
        assert (found.error_code, found.error_message) == (0, "")


BROKER, LOGGER, METRICS, GROUP = 4, 8, 16, 32
SET, DELETE = 0, 1


def change(raw, kind, name, setting, value, operation=SET):
    request = m.IncrementalAlterConfigsRequest
    one = request.AlterableConfig(name=setting, config_operation=operation, value=value)
    resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[one])
    (found,) = raw.call(request(resources=[resource]), 1).responses
    return found.error_code, found.error_message


def describe(raw, kind, name, setting):
    request = m.DescribeConfigsRequest
    wanted = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[setting])
    (found,) = raw.call(request(resources=[wanted], include_documentation=True), 4).results
    assert not found.error_code, found
    (config,) = found.configs
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


def test_a_broker_takes_what_nobody_knows_and_shows_it_to_nobody(make_node):
    node = make_node()
    with Raw(node.port) as raw:
        assert change(raw, BROKER, "1", "my.plugin.password", "hunter2") == (0, None)
        assert change(raw, BROKER, "1", "num.io.threads", "8")[0] == ErrorCode.INVALID_REQUEST
    node.restart()
    with Raw(node.port) as raw:
        found = describe(raw, BROKER, "1", "my.plugin.password")
        assert (found.value, found.is_sensitive, found.config_source) == (None, True, 2)
        assert "without effect" in found.documentation
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
