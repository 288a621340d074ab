"""Fetch frame by frame: waiting, limits of bytes, sessions, and looking for offsets."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch
from support.raw import Raw, batch, fetch_partition, fetch_request, produce_request, records_of

NOBODY = UUID(int=12345)
LONGER_THAN_RAW_MS = 100_000
"""A fetch that waits so long and is not woken is given up by the connection of the test."""

# Waiting.


@pytest.mark.smoke
def test_a_fetch_waits_for_data_and_comes_back_with_it(node, raw, topic):
    raw.create_topic(topic)
    raw.send(fetch_request(topic, wait_ms=LONGER_THAN_RAW_MS), 12)
    time.sleep(0.1)
    with Raw(node.port) as other:
        other.produce(topic, 0, batch(b"at last"))
    reply = raw.receive(1, 12)[1].responses[0].partitions[0]
    assert records_of(reply.records)[0].value == b"at last"
    assert reply.high_watermark == 1


def test_a_fetch_comes_back_empty_when_its_time_is_over(raw, topic):
    raw.create_topic(topic)
    began = time.monotonic()
    reply = raw.fetch(topic, wait_ms=300)
    assert time.monotonic() - began >= 0.29
    assert (reply.error_code, bytes(reply.records), reply.high_watermark) == (0, b"", 0)


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(node, raw, topic):
    raw.create_topic(topic)
    one = batch(b"x" * 1000)
    raw.send(fetch_request(topic, wait_ms=LONGER_THAN_RAW_MS, bytes_min=len(one) * 3), 12)
    with Raw(node.port) as other:
        for _ in range(3):
            time.sleep(0.05)
            other.produce(topic, 0, one)
    reply = raw.receive(1, 12)[1].responses[0].partitions[0]
    assert len(reply.records) == len(one) * 3


def test_a_fetch_that_wants_no_bytes_or_no_wait_comes_back_at_once(raw, topic):
    raw.create_topic(topic)
    assert raw.fetch(topic, wait_ms=LONGER_THAN_RAW_MS, bytes_min=0).error_code == 0
    assert raw.fetch(topic, wait_ms=0, bytes_min=1000).error_code == 0


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


@pytest.mark.smoke
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
    records = [Record(index, now_ms + index * 10, None, b"x") for index in range(100)]
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
