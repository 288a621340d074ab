"""The records of `__consumer_offsets`, byte for byte in Kafka's format, so that existing tools can read the topic.

A key begins with its version, which is also the kind of record; a value begins with its version. The kinds of the new
group protocol (3 to 8) are in `consumer`. One kind is our own: a deleted topic whose offsets are being removed. Other
programs skip it, like every kind they do not know.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, TypeVar
from uuid import UUID

from millpond.base.errors import MalformedMessage
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.shard import CoordinatorRecord
from millpond.wire.messages import (
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    Message,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_KEY_VERSIONS: Final = (0, 1)
GROUP_KEY_VERSION: Final = 2
DELETED_TOPIC_KEY_VERSION: Final = 0x7FFE

_OFFSET_KEY_WRITTEN: Final = 1
_OFFSET_VALUE_WRITTEN: Final = 3
_OFFSET_VALUE_WITH_TOPIC_ID: Final = 4
"""As Kafka has written it since 4.1: the topic id is a tagged field, which older programs skip."""
_OFFSET_VALUE_WITH_EXPIRY: Final = 1
"""The only version with an expiry time for the offset."""
_GROUP_VALUE_WRITTEN: Final = 3

_VERSION = struct.Struct(">h")

# Offsets are by far the most frequent records: they are written and read without a message, to the same bytes.
_KEY_TAIL = struct.Struct(">i")
_KEY_HEAD = struct.Struct(">hh")
_LENGTH = struct.Struct(">h")
_VALUE_HEAD = struct.Struct(">hqih")
_VALUE_TAIL = struct.Struct(">q")
_FLEXIBLE_VALUE_HEAD = struct.Struct(">hqi")
_TOPIC_ID_TAG: Final = bytes([1, 0, 16])
"""One tagged field: tag 0, 16 bytes."""
_ID_BYTES: Final = 16
_SHORT_VARINT_MAX: Final = 127
_TOPIC_IDS_CACHED: Final = 10_000

_BYTES_LENGTH: Final = 4
"""The length prefix of bytes."""

M = TypeVar("M", bound=Message)


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


def key_version(key: bytes) -> int:
    """The kind of record of this key."""
    if len(key) < _VERSION.size:
        raise MalformedMessage("a coordinator's key of less than two bytes")
    version: int = _VERSION.unpack_from(key)[0]
    return version


def offset_record(key: OffsetKey, value: OffsetCommitValue | None) -> CoordinatorRecord:
    """A committed offset; without a value, its tombstone."""
    if value is None:
        return CoordinatorRecord(_offset_key(key.group_id, key.topic, key.partition), None)
    if value.expire_timestamp >= 0:
        written = _offset_key(key.group_id, key.topic, key.partition)
        return CoordinatorRecord(written, versioned(value, _OFFSET_VALUE_WITH_EXPIRY))
    return plain_offset_record(
        *key, value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.topic_id
    )


def plain_offset_record(
    group_id: str,
    topic: str,
    partition: int,
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_ms: int,
    topic_id: UUID = NO_TOPIC_ID,
) -> CoordinatorRecord:
    """The same for an offset with the default retention."""
    key = _offset_key(group_id, topic, partition)
    note = metadata.encode()
    tail = _VALUE_TAIL.pack(commit_ms)
    if topic_id == NO_TOPIC_ID:
        head = _VALUE_HEAD.pack(_OFFSET_VALUE_WRITTEN, offset, leader_epoch, len(note))
        return CoordinatorRecord(key, head + note + tail)
    if len(note) >= _SHORT_VARINT_MAX:
        value = OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp=commit_ms,
            topic_id=topic_id,
        )
        return CoordinatorRecord(key, versioned(value, _OFFSET_VALUE_WITH_TOPIC_ID))
    head = _FLEXIBLE_VALUE_HEAD.pack(_OFFSET_VALUE_WITH_TOPIC_ID, offset, leader_epoch)
    return CoordinatorRecord(
        key, b"".join((head, bytes((len(note) + 1,)), note, tail, _TOPIC_ID_TAG, topic_id.bytes))
    )


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    head = _KEY_HEAD.pack(_OFFSET_KEY_WRITTEN, len(group))
    return b"".join((head, group, _LENGTH.pack(len(name)), name, _KEY_TAIL.pack(partition)))


def group_record(group_id: str, value: GroupMetadataValue | None) -> CoordinatorRecord:
    """A generation of a classic group; without a value, the group's tombstone."""
    key = versioned(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)
    return CoordinatorRecord(key, None if value is None else versioned(value, _GROUP_VALUE_WRITTEN))


def deleted_topic_record(topic: str, last_offset: int | None) -> CoordinatorRecord:
    """Up to this record, offsets of the topic belong to a deleted one; without it, all of them are removed."""
    key = _VERSION.pack(DELETED_TOPIC_KEY_VERSION) + topic.encode()
    return CoordinatorRecord(key, None if last_offset is None else _VALUE_TAIL.pack(last_offset))


def decode_deleted_topic(key: bytes, value: bytes | None) -> tuple[str, int | None]:
    if value is not None and len(value) != _VALUE_TAIL.size:
        raise MalformedMessage("a deleted topic's record that is not eight bytes")
    return _text(key[_VERSION.size :]), None if value is None else _VALUE_TAIL.unpack(value)[0]


def decode_offset_key(key: bytes) -> OffsetKey:
    if len(key) >= _KEY_HEAD.size:
        version, length = _KEY_HEAD.unpack_from(key)
        topic_at = _KEY_HEAD.size + length + _LENGTH.size
        if version in OFFSET_KEY_VERSIONS and length >= 0 and topic_at <= len(key) - _KEY_TAIL.size:
            end = topic_at + _LENGTH.unpack_from(key, topic_at - _LENGTH.size)[0]
            if topic_at <= end == len(key) - _KEY_TAIL.size:
                group, topic = key[_KEY_HEAD.size : topic_at - _LENGTH.size], key[topic_at:end]
                return OffsetKey(_text(group), _text(topic), _KEY_TAIL.unpack_from(key, end)[0])
    # Reports what is wrong with it.
    message = unversioned(OffsetCommitKey, key)
    return OffsetKey(message.group, message.topic, message.partition)


def decode_offset_value(value: bytes) -> OffsetCommitValue:
    if len(value) >= _VALUE_HEAD.size:
        version, offset, leader_epoch, length = _VALUE_HEAD.unpack_from(value)
        end = _VALUE_HEAD.size + length
        if version == _OFFSET_VALUE_WRITTEN and length >= 0 and end == len(value) - _VALUE_TAIL.size:
            return OffsetCommitValue(
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=_text(value[_VALUE_HEAD.size : end]),
                commit_timestamp=_VALUE_TAIL.unpack_from(value, end)[0],
            )
        if version == _OFFSET_VALUE_WITH_TOPIC_ID:
            return _decode_with_topic_id(value)
    return unversioned(OffsetCommitValue, value)


def _decode_with_topic_id(value: bytes) -> OffsetCommitValue:
    text_at = _FLEXIBLE_VALUE_HEAD.size + 1
    length = value[text_at - 1]
    tail_at = text_at + length - 1
    tag_at = tail_at + _VALUE_TAIL.size
    id_at = tag_at + len(_TOPIC_ID_TAG)
    is_short = 0 < length <= _SHORT_VARINT_MAX and len(value) == id_at + _ID_BYTES
    if not is_short or value[tag_at:id_at] != _TOPIC_ID_TAG:
        message = unversioned(OffsetCommitValue, value)
        message.topic_id = _topic_id(message.topic_id.bytes)
        return message
    _, offset, leader_epoch = _FLEXIBLE_VALUE_HEAD.unpack_from(value)
    return OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=_text(value[text_at:tail_at]),
        commit_timestamp=_VALUE_TAIL.unpack_from(value, tail_at)[0],
        topic_id=_topic_id(value[id_at:]),
    )


@lru_cache(_TOPIC_IDS_CACHED)
def _topic_id(data: bytes) -> UUID:
    """One object for all offsets of a topic."""
    return UUID(bytes=data)


def _text(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"an offset's record: {error}") from None


def decode_group_key(key: bytes) -> str:
    return unversioned(GroupMetadataKey, key).group


def decode_group_value(value: bytes) -> GroupMetadataValue:
    return unversioned(GroupMetadataValue, value)


EMBEDDED_ITEMS_MAX = 50_000
"""The most topics and partitions in a member's subscription or assignment that are parsed."""


def versioned(message: Message, version: int) -> bytes:
    return _VERSION.pack(version) + message.encode(version)


def unversioned(kind: type[M], data: bytes) -> M:
    """The message in these bytes, in the version that they begin with."""
    message, end = kind.decode(data, key_version(data), _VERSION.size)
    if end != len(data):
        raise MalformedMessage(f"{kind.__name__} has {len(data) - end} bytes too many")
    return message


def prefix_of(kind: type[M], data: bytes) -> M:
    """The same for a format that only grows at its end: of a newer version, the known part.

    It is opaque bytes inside a client's request, so its lists are limited here.
    """
    message, _ = kind.decode(data, min(key_version(data), kind.VERSIONS[1]), _VERSION.size, EMBEDDED_ITEMS_MAX)
    return message


def subscribed_topics(data: bytes, names_max: int) -> tuple[list[str], bytes]:
    """The topics of a consumer's subscription, and its bytes up to there; the rest is ignored."""
    kind = ConsumerProtocolSubscription
    oldest = min(key_version(data), kind.VERSIONS[0])
    message, end = kind.decode(data, oldest, _VERSION.size, names_max)
    return message.topics, data[: end - _BYTES_LENGTH - len(message.user_data or b"")]
