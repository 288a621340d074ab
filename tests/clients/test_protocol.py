"""The protocol frame by frame, as no client library lets one say it."""

from __future__ import annotations

import struct
import threading
import time
from uuid import UUID, uuid4

import pytest
from support.raw import LENGTH, Raw, batch, fetch_partition, fetch_request, produce_request, records_of

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.header import encode_request_header
from millpond.wire.records import Record, encode_batch

NOBODY = UUID(int=12345)


def api_versions(raw, version=0):
    return {each.api_key: each for each in raw.call(m.ApiVersionsRequest(), version).api_keys}


# Versions.


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(raw):
    body = encode_request_header(18, 3, 77, "new").replace(struct.pack(">hh", 18, 3), struct.pack(">hh", 18, 99), 1)
    raw.send_bytes(LENGTH.pack(len(body) + 3) + body + b"\x02x\x00")
    correlation_id, reply = raw.receive(18, 0)
    assert correlation_id == 77
    assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert 18 in {each.api_key for each in reply.api_keys}
    assert raw.call(m.ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3).error_code == 0


def test_produce_is_advertised_from_0_and_fetch_up_to_date(raw):
    found = api_versions(raw)
    assert (found[0].min_version, found[0].max_version) == (0, 13)
    assert (found[1].min_version, found[1].max_version) == (4, 18)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_formats_of_the_past_are_refused_by_name(raw, topic, version):
    raw.create_topic(topic)
    name = topic.encode()
    old = struct.pack(">hiih", 1, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, 5) + b"older"
    body = encode_request_header(0, version, 5, "old") + old
    raw.send_bytes(LENGTH.pack(len(body)) + body)
    reply = raw.receive_frame()
    wanted = struct.pack(">iih", 5, 1, len(name)) + name
    wanted += struct.pack(">iihq", 1, 0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1)
    wanted += struct.pack(">q", -1) if version >= 2 else b""
    wanted += struct.pack(">i", 0) if version >= 1 else b""
    assert reply == wanted


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_in_a_new_request_are_refused(raw, topic, magic):
    raw.create_topic(topic)
    message = struct.pack(">IbbiI", 0, magic, 0, -1, 3) + b"old"
    reply = raw.produce(topic, 0, struct.pack(">qi", 0, len(message)) + message + bytes(40))
    assert reply.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert reply.base_offset == -1
    assert raw.read_all(topic) == []


def test_a_key_that_was_never_advertised_ends_the_connection_only(node, raw):
    with Raw(node.port) as other:
        other.send_bytes(LENGTH.pack(10) + struct.pack(">hhih", 4321, 0, 1, -1))
        assert other.is_closed()
    assert raw.call(m.ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def small_requests(raw, topic):
    """For each key a request with something in it, that does no harm."""
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
    """The loop above would be content with empty replies; produce and fetch are looked into."""
    raw.create_topic(topic)
    requests = small_requests(raw, topic)
    for number, version in enumerate(range(3, 14)):
        reply = raw.call(requests[0](version), version).responses[0].partition_responses[0]
        assert (reply.error_code, reply.base_offset) == (0, number), version
    for version in range(4, 19):
        reply = raw.call(requests[1](version), version).responses[0].partitions[0]
        assert (reply.error_code, reply.high_watermark) == (0, 11), version
        assert [each.value for each in records_of(reply.records)] == [b"v%d" % each for each in range(3, 14)]


# The order of replies, and waiting.


def test_replies_leave_in_the_order_of_requests_even_behind_a_parked_fetch(node, raw, topic):
    raw.create_topic(topic)
    began = time.monotonic()
    fetch_id = raw.send(fetch_request(topic, wait_ms=400), 12)
    other_ids = [raw.send(m.ApiVersionsRequest(), 0) for _ in range(5)]
    with Raw(node.port) as quick:
        quick.call(m.ApiVersionsRequest(), 0)
        assert time.monotonic() - began < 0.4, "another connection does not wait"
    assert raw.receive(1, 12)[0] == fetch_id
    assert time.monotonic() - began >= 0.39
    assert [raw.receive(18, 0)[0] for _ in range(5)] == other_ids


def test_several_parked_fetches_on_one_connection_are_answered_in_order(node, raw, topic):
    raw.create_topic(topic, 3)
    sent = [raw.send(fetch_request(topic, index, wait_ms=10_000), 12) for index in range(3)]
    with Raw(node.port) as other:
        for index in (2, 1, 0):
            other.produce(topic, index, batch(b"%d" % index))
    for index, correlation_id in enumerate(sent):
        received, reply = raw.receive(1, 12)
        assert received == correlation_id
        assert records_of(reply.responses[0].partitions[0].records)[0].value == b"%d" % index


def test_many_pipelined_writes_are_answered_in_order(raw, topic):
    raw.create_topic(topic)
    sent = [raw.send(produce_request(topic, 0, batch(b"%d" % number)), 9) for number in range(300)]
    for number, correlation_id in enumerate(sent):
        received, reply = raw.receive(0, 9)
        assert received == correlation_id
        assert reply.responses[0].partition_responses[0].base_offset == number


def test_a_fetch_waits_for_data_and_comes_back_with_it(node, raw, topic):
    raw.create_topic(topic)
    raw.send(fetch_request(topic, wait_ms=20_000), 12)
    time.sleep(0.1)
    began = time.monotonic()
    with Raw(node.port) as other:
        other.produce(topic, 0, batch(b"at last"))
    reply = raw.receive(1, 12)[1].responses[0].partitions[0]
    assert time.monotonic() - began < 5
    assert records_of(reply.records)[0].value == b"at last"
    assert reply.high_watermark == 1


def test_a_fetch_comes_back_empty_when_its_time_is_over(raw, topic):
    raw.create_topic(topic)
    began = time.monotonic()
    reply = raw.fetch(topic, wait_ms=300)
    assert 0.29 <= time.monotonic() - began < 5
    assert (reply.error_code, bytes(reply.records), reply.high_watermark) == (0, b"", 0)


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(node, raw, topic):
    raw.create_topic(topic)
    one = batch(b"x" * 1000)
    raw.send(fetch_request(topic, wait_ms=20_000, bytes_min=len(one) * 3), 12)
    with Raw(node.port) as other:
        for _ in range(3):
            time.sleep(0.05)
            other.produce(topic, 0, one)
    reply = raw.receive(1, 12)[1].responses[0].partitions[0]
    assert len(reply.records) == len(one) * 3


def test_a_fetch_that_wants_no_bytes_or_no_wait_comes_back_at_once(raw, topic):
    raw.create_topic(topic)
    began = time.monotonic()
    assert raw.fetch(topic, wait_ms=10_000, bytes_min=0).error_code == 0
    assert raw.fetch(topic, wait_ms=0, bytes_min=1000).error_code == 0
    assert time.monotonic() - began < 5


def test_a_waiting_fetch_hears_that_its_topic_is_gone(node, raw, topic):
    raw.create_topic(topic)
    raw.send(fetch_request(topic, wait_ms=20_000), 12)
    with Raw(node.port) as other:
        other.call(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 5)
    reply = raw.receive(1, 12)[1].responses[0].partitions[0]
    assert reply.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Limits of bytes, and where a fetch may begin.


def test_the_first_batch_comes_whole_even_if_it_is_larger_than_asked_for(raw, topic):
    raw.create_topic(topic)
    large = batch(b"x" * 50_000)
    raw.produce(topic, 0, large)
    raw.produce(topic, 0, large)
    for wanted in ({"bytes_max": 10}, {"partition_bytes_max": 10}, {"bytes_max": 0, "partition_bytes_max": 0}):
        reply = raw.fetch(topic, **wanted)
        assert len(reply.records) == len(large), wanted
    assert len(raw.fetch(topic, partition_bytes_max=len(large) * 2).records) == len(large) * 2


def test_the_whole_reply_keeps_to_its_limit_and_later_partitions_stay_empty(raw, topic):
    raw.create_topic(topic, 2)
    one = batch(b"x" * 1000)
    for index in (0, 1):
        for _ in range(5):
            raw.produce(topic, index, one)
    request = fetch_request(topic, bytes_max=len(one) * 2)
    request.topics[0].partitions = [fetch_partition(0, 0), fetch_partition(1, 0)]
    first, second = raw.call(request, 12).responses[0].partitions
    assert len(records_of(first.records)) == 2
    assert records_of(second.records) == []


@pytest.mark.parametrize("offset", [-1, 3, 1 << 40])
def test_an_offset_outside_the_log_is_named_so(raw, topic, offset):
    raw.create_topic(topic)
    raw.produce(topic, 0, batch(b"a", b"b"))
    assert raw.fetch(topic, offset=2, wait_ms=0).error_code == ErrorCode.NONE
    reply = raw.fetch(topic, offset=offset, wait_ms=10_000)
    assert reply.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert bytes(reply.records) == b""


def test_a_fetch_knows_newer_and_older_leaders(raw, topic):
    raw.create_topic(topic)
    assert raw.fetch(topic, leader_epoch=0, wait_ms=0).error_code == ErrorCode.NONE
    assert raw.fetch(topic, leader_epoch=9, wait_ms=0).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_unknown_topics_partitions_and_ids_are_named_so(raw, topic):
    raw.create_topic(topic)
    assert raw.fetch("nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.fetch(topic, 7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = fetch_request("")
    request.topics[0].topic_id = NOBODY
    assert raw.call(request, 13).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert raw.produce("nowhere", 0, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    produce = produce_request("", 0, batch(b"x"))
    produce.topic_data[0].topic_id = NOBODY
    assert raw.call(produce, 13).responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    asked = m.MetadataRequest.MetadataRequestTopic(name=None, topic_id=NOBODY)
    assert raw.call(m.MetadataRequest(topics=[asked]), 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# Fetch sessions (KIP-227).


def session_request(session_id, epoch, topic="", partitions=(), forgotten=()):
    request = fetch_request(topic, wait_ms=0, session=(session_id, epoch))
    request.topics = []
    if partitions:
        wanted = [fetch_partition(index, offset) for index, offset in partitions]
        request.topics = [m.FetchRequest.FetchTopic(topic=topic, partitions=wanted)]
    if forgotten:
        request.forgotten_topics_data = [m.FetchRequest.ForgottenTopic(topic=topic, partitions=list(forgotten))]
    return request


def told(reply):
    """The partitions that a reply speaks of, with the values in it."""
    return {
        each.partition_index: [record.value for record in records_of(each.records)]
        for one in reply.responses
        for each in one.partitions
    }


def test_a_session_tells_only_what_changes(raw, topic):
    raw.create_topic(topic, 3)
    first = raw.call(session_request(0, 0, topic, [(0, 0), (1, 0), (2, 0)]), 12)
    assert first.session_id > 0
    assert told(first) == {0: [], 1: [], 2: []}
    again = raw.call(session_request(first.session_id, 1), 12)
    assert (again.session_id, again.error_code, told(again)) == (first.session_id, 0, {})
    raw.produce(topic, 1, batch(b"new"))
    assert told(raw.call(session_request(first.session_id, 2), 12)) == {1: [b"new"]}
    moved = raw.call(session_request(first.session_id, 3, topic, [(1, 1)]), 12)
    assert told(moved) == {}
    raw.produce(topic, 0, batch(b"zero"))
    raw.produce(topic, 2, batch(b"two"))
    forgot = raw.call(session_request(first.session_id, 4, topic, forgotten=[0]), 12)
    assert told(forgot) == {2: [b"two"]}


def test_a_session_waits_for_its_partitions_too(node, raw, topic):
    raw.create_topic(topic, 2)
    session_id = raw.call(session_request(0, 0, topic, [(0, 0), (1, 0)]), 12).session_id
    request = session_request(session_id, 1)
    request.max_wait_ms = 20_000
    raw.send(request, 12)
    with Raw(node.port) as other:
        other.produce(topic, 1, batch(b"news"))
    assert told(raw.receive(1, 12)[1]) == {1: [b"news"]}


def test_a_wrong_epoch_and_an_unknown_session_are_named_so(raw, topic):
    raw.create_topic(topic)
    session_id = raw.call(session_request(0, 0, topic, [(0, 0)]), 12).session_id
    assert raw.call(session_request(session_id, 5), 12).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = session_id % 1000 + 1
    assert raw.call(session_request(unknown, 1), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert raw.call(session_request(session_id, 1), 12).error_code == ErrorCode.NONE, "an error costs no epoch"


def test_a_closed_session_is_gone(raw, topic):
    raw.create_topic(topic)
    session_id = raw.call(session_request(0, 0, topic, [(0, 0)]), 12).session_id
    assert raw.call(session_request(session_id, -1), 12).session_id == 0
    assert raw.call(session_request(session_id, 1), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_repeats_an_error_until_it_is_over(raw, topic):
    raw.create_topic(topic)
    session_id = raw.call(session_request(0, 0, topic, [(0, 0), (9, 0)]), 12).session_id
    for epoch in (1, 2):
        reply = raw.call(session_request(session_id, epoch), 12)
        (partition,) = reply.responses[0].partitions
        assert (partition.partition_index, partition.error_code) == (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


# Offsets.


def list_offset(raw, topic, timestamp, version=11, leader_epoch=-1):
    wanted = m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=leader_epoch
    )
    topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
    return raw.call(m.ListOffsetsRequest(replica_id=-1, topics=topics), version).topics[0].partitions[0]


def test_the_special_times_of_list_offsets(raw, topic):
    raw.create_topic(topic)
    now_ms = time.time_ns() // 1_000_000
    assert list_offset(raw, topic, -3).offset == -1, "an empty log has no newest record"
    for stamp in (now_ms, now_ms + 50, now_ms + 20):
        raw.produce(topic, 0, batch(b"x", timestamp=stamp))
    assert list_offset(raw, topic, -1).offset == 3
    assert list_offset(raw, topic, -2).offset == 0
    assert (list_offset(raw, topic, -3).offset, list_offset(raw, topic, -3).timestamp) == (1, now_ms + 50)
    assert list_offset(raw, topic, -4).offset == 0
    assert list_offset(raw, topic, -5).offset == -1
    assert list_offset(raw, topic, now_ms + 1).offset == 1
    assert list_offset(raw, topic, now_ms + 51).offset == -1
    assert list_offset(raw, topic, -1, leader_epoch=4).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert list_offset(raw, "nowhere", -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_time_is_found_inside_a_batch(raw, topic):
    raw.create_topic(topic)
    now_ms = time.time_ns() // 1_000_000
    records = [Record(place, now_ms + place * 10, None, b"x") for place in range(100)]
    raw.produce(topic, 0, encode_batch(records, codec=1))
    found = list_offset(raw, topic, now_ms + 401)
    assert (found.offset, found.timestamp) == (41, now_ms + 410)


def end_of_epoch(raw, topic, epoch, current=-1):
    wanted = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    topics = [m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    return raw.call(m.OffsetForLeaderEpochRequest(topics=topics), 4).topics[0].partitions[0]


def test_where_an_epoch_ended(make_node, topic):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic(topic)
        raw.produce(topic, 0, batch(b"a", b"b"))
        found = end_of_epoch(raw, topic, 0)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 2)
        assert end_of_epoch(raw, topic, 0, current=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert end_of_epoch(raw, "nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.restart(crash=True)
    with Raw(node.port) as raw:
        raw.produce(topic, 0, batch(b"c"))
        found = end_of_epoch(raw, topic, 0)
        assert (found.leader_epoch, found.end_offset) == (0, 2), "the old epoch ended where the crash was"
        assert end_of_epoch(raw, topic, 1).end_offset == 3
        assert raw.fetch(topic, leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH


# Topics that come into being by being asked for.


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


# Idempotence.


def producer_id(raw):
    reply = raw.call(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert reply.error_code == ErrorCode.NONE
    return reply.producer_id


def numbered(producer, sequence, *values, epoch=0):
    return batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_sent_twice_is_stored_once_and_answered_with_its_first_offset(raw, topic):
    raw.create_topic(topic)
    raw.produce(topic, 0, batch(b"other"))
    producer = producer_id(raw)
    first = numbered(producer, 0, b"a", b"b")
    assert raw.produce(topic, 0, first).base_offset == 1
    assert raw.produce(topic, 0, numbered(producer, 2, b"c")).base_offset == 3
    again = raw.produce(topic, 0, first)
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 1)
    assert [each.value for each in raw.read_all(topic)] == [b"other", b"a", b"b", b"c"]


def test_a_gap_and_an_old_epoch_are_refused_and_leave_nothing(raw, topic):
    raw.create_topic(topic)
    producer = producer_id(raw)
    raw.produce(topic, 0, numbered(producer, 0, b"a", epoch=3))
    gap = raw.produce(topic, 0, numbered(producer, 2, b"c", epoch=3))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = raw.produce(topic, 0, numbered(producer, 1, b"b", epoch=2))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    leap = raw.produce(topic, 0, numbered(producer, 1, b"b", epoch=4))
    assert leap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert raw.produce(topic, 0, numbered(producer, 0, b"new", epoch=4)).error_code == ErrorCode.NONE
    assert [each.value for each in raw.read_all(topic)] == [b"a", b"new"]


def test_sequences_start_again_after_the_last_one(raw, topic):
    raw.create_topic(topic)
    producer = producer_id(raw)
    last = (1 << 31) - 2
    assert raw.produce(topic, 0, numbered(producer, last, b"a", b"b")).error_code == ErrorCode.NONE
    assert raw.produce(topic, 0, numbered(producer, 0, b"c")).error_code == ErrorCode.NONE


def test_producer_ids_are_all_different_also_over_restarts(make_node):
    node = make_node()
    seen = []
    for crash in (False, True, True):
        with Raw(node.port) as raw:
            seen += [producer_id(raw) for _ in range(5)]
        node.restart(crash=crash)
    assert len(set(seen)) == 15


# Refusals of writes.


def test_acks_0_is_not_answered_and_an_error_closes_the_connection(node, raw, topic):
    raw.create_topic(topic)
    with Raw(node.port) as silent:
        silent.send(produce_request(topic, 0, batch(b"unheard"), acks=0), 9)
        assert silent.call(m.ApiVersionsRequest(), 0).error_code == 0, "the next reply is for the next request"
        silent.send(produce_request("nowhere", 0, batch(b"x"), acks=0), 9)
        assert silent.is_closed()
    assert [each.value for each in raw.read_all(topic)] == [b"unheard"]


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_cannot_be_are_refused(raw, topic, acks):
    raw.create_topic(topic)
    assert raw.produce(topic, 0, batch(b"x"), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert raw.read_all(topic) == []


def test_damaged_batches_are_refused_and_leave_nothing(raw, topic):
    raw.create_topic(topic)
    good = batch(b"hello")
    flipped = bytearray(good)
    flipped[-2] ^= 1
    assert raw.produce(topic, 0, bytes(flipped)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, 0, good[:-3]).error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, 0, good + b"tail").error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, 0, b"").error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert raw.read_all(topic) == []
    assert raw.produce(topic, 0, good).base_offset == 0


def test_one_bad_partition_does_not_spoil_the_others(raw, topic):
    raw.create_topic(topic, 2)
    request = produce_request(topic, 0, batch(b"good"))
    data = m.ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data += [data(index=9, records=batch(b"x")), data(index=1, records=b"junk" * 30)]
    replies = raw.call(request, 9).responses[0].partition_responses
    assert [each.error_code for each in replies][:2] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert replies[2].error_code != 0
    assert [each.value for each in raw.read_all(topic, 0)] == [b"good"]


def test_a_compacted_topic_wants_keys(raw, topic):
    raw.create_topic(topic, cleanup_policy="compact")
    assert raw.produce(topic, 0, batch(b"no key")).error_code == ErrorCode.INVALID_RECORD


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


def test_writers_and_readers_at_the_same_time_agree(node, topic):
    """Eight connections at once: every write is answered with an offset of its own, and all are read."""
    with Raw(node.port) as raw:
        raw.create_topic(topic)
        offsets, faults = [], []

        def write(number):
            try:
                with Raw(node.port) as own:
                    offsets.extend(own.produce(topic, 0, batch(uuid4().bytes), acks=1).base_offset for _ in range(50))
            except Exception as fault:
                faults.append(fault)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert sorted(offsets) == list(range(400))
        assert [each.offset for each in raw.read_all(topic)] == list(range(400))
