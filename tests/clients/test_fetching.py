"""Offset lookups: the special times of ListOffsets, and where a leader epoch ended."""

from __future__ import annotations

import time

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from support.raw import Raw, batch

# Offsets.


def list_offset(raw, topic, timestamp, version=11, leader_epoch=-1):
    partition = m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=leader_epoch
    )
    topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])]
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


def end_of_epoch(raw, topic, epoch, current=-1):
    partition = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    topics = [m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    return raw.call(m.OffsetForLeaderEpochRequest(topics=topics), 4).topics[0].partitions[0]


def test_where_an_epoch_ended(make_node, topic):
    node = make_node()
    with Raw(node.port) as raw:
        raw.create_topic(topic)
        raw.produce(topic, 0, batch(b"a", b"b"))
        epoch_end = end_of_epoch(raw, topic, 0)
        assert (epoch_end.error_code, epoch_end.leader_epoch, epoch_end.end_offset) == (0, 0, 2)
        assert end_of_epoch(raw, topic, 0, current=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert end_of_epoch(raw, "nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.restart(crash=True)
    with Raw(node.port) as raw:
        raw.produce(topic, 0, batch(b"c"))
        epoch_end = end_of_epoch(raw, topic, 0)
        assert (epoch_end.leader_epoch, epoch_end.end_offset) == (0, 2), "the old epoch ended where the crash was"
        assert end_of_epoch(raw, topic, 1).end_offset == 3
        assert raw.fetch(topic, leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
