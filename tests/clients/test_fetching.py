"""Fetch frame by frame: waiting, byte limits, sessions, and offset lookups."""

from __future__ import annotations

import time

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch
from support.raw import Raw, batch, fetch_partition, fetch_request, records_of

LONGER_THAN_RAW_MS = 100_000
"""The test's connection times out before a fetch that waits this long, unless the fetch is woken."""

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


# Byte limits, and where a fetch may begin.


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
    """The partitions in a reply, with their values."""
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
