"""The records of `__consumer_offsets`, byte for byte."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.coordinators.groups.records import (
    DELETED_TOPIC_KEY_VERSION,
    OffsetKey,
    decode_deleted_topic,
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    decode_offset_value,
    deleted_topic_record,
    group_record,
    key_version,
    offset_record,
    prefix_of,
    unversioned,
)
from millpond.wire.messages import ConsumerProtocolSubscription, GroupMetadataValue, OffsetCommitValue

TEXT = st.text(max_size=30)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_offset_record_as_kafka_writes_it() -> None:
    value = OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=99)
    record = offset_record(OffsetKey("g", "t", 3), value)
    assert record.key == struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 3)
    assert record.value == struct.pack(">hqi", 3, 42, 7) + text("m") + struct.pack(">q", 99)


TOPIC_ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)


def test_an_offset_with_its_topic_id_is_written_as_kafka_has_done_since_4_1() -> None:
    value = OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=99, topic_id=TOPIC_ID)
    record = offset_record(OffsetKey("g", "t", 3), value)
    assert (
        record.value == struct.pack(">hqi", 4, 42, 7) + b"\2m" + struct.pack(">q", 99) + b"\1\0\x10" + TOPIC_ID.bytes
    )
    assert record.value == struct.pack(">h", 4) + value.encode(4)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 4096])
def test_an_offset_with_its_topic_id_comes_back(size: int) -> None:
    value = OffsetCommitValue(
        offset=1 << 40,
        leader_epoch=3,
        metadata="ü" * (size // 2) + "m" * (size % 2),
        commit_timestamp=5,
        topic_id=TOPIC_ID,
    )
    record = offset_record(OffsetKey("g", "t", 0), value)
    assert record.value == struct.pack(">h", 4) + value.encode(4)
    assert decode_offset_value(record.value) == value


def test_a_value_of_that_version_without_a_topic_id_or_with_other_tags_is_read() -> None:
    value = OffsetCommitValue(offset=1, metadata="m", commit_timestamp=2)
    data = struct.pack(">h", 4) + value.encode(4)
    assert decode_offset_value(data) == value
    assert decode_offset_value(data[:-1] + b"\1\5\x10" + bytes(16)) == value
    for end in range(2, len(data)):
        with pytest.raises(MalformedMessage):
            decode_offset_value(data[:end])


def test_offset_that_asks_to_be_forgotten_is_written_in_the_version_that_can_say_so() -> None:
    value = OffsetCommitValue(offset=42, metadata="m", commit_timestamp=99, expire_timestamp=100)
    record = offset_record(OffsetKey("g", "t", 3), value)
    assert record.value == struct.pack(">hq", 1, 42) + text("m") + struct.pack(">qq", 99, 100)
    assert decode_offset_value(record.value).expire_timestamp == 100


def test_deleted_topics_come_back() -> None:
    record = deleted_topic_record("größe", 42)
    assert key_version(record.key) == DELETED_TOPIC_KEY_VERSION
    assert decode_deleted_topic(record.key, record.value) == ("größe", 42)
    assert deleted_topic_record("größe", None) == (record.key, None)
    assert decode_deleted_topic(record.key, None) == ("größe", None)
    with pytest.raises(MalformedMessage):
        decode_deleted_topic(record.key, b"1234567")


def test_group_record_as_kafka_writes_it() -> None:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=5,
        protocol="range",
        leader="m",
        current_state_timestamp=9,
        members=[member],
    )
    record = group_record("g", value)
    assert record.key == struct.pack(">h", 2) + text("g")
    assert record.value == b"".join(
        [
            struct.pack(">h", 3),
            text("consumer"),
            struct.pack(">i", 5),
            text("range"),
            text("m"),
            struct.pack(">q", 9),
            struct.pack(">i", 1),
            text("m"),
            struct.pack(">h", -1),
            text("c"),
            text("/h"),
            struct.pack(">ii", 1, 2),
            struct.pack(">i", 1) + b"s",
            struct.pack(">i", 1) + b"a",
        ]
    )


@given(TEXT, TEXT, st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), TEXT)
def test_offsets_come_back(group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
    key = OffsetKey(group, topic, partition)
    value = OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=1)
    record = offset_record(key, value)
    assert record.value is not None
    assert (decode_offset_key(record.key), decode_offset_value(record.value)) == (key, value)
    assert offset_record(key, None) == (record.key, None)


@given(TEXT)
def test_group_ids_come_back(group: str) -> None:
    record = group_record(group, None)
    assert (key_version(record.key), decode_group_key(record.key), record.value) == (2, group, None)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol=None, leader=None)
    data = struct.pack(">h", version) + value.encode(version)
    assert decode_group_value(data).generation == 1


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01", b"\x00\x63\x00\x00"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_offset_key(data)


def test_bytes_left_over_are_refused_where_nothing_may_follow() -> None:
    data = struct.pack(">h", 0) + ConsumerProtocolSubscription(topics=["t"]).encode(0) + b"?"
    with pytest.raises(MalformedMessage):
        unversioned(ConsumerProtocolSubscription, data)
    assert prefix_of(ConsumerProtocolSubscription, data).topics == ["t"]
