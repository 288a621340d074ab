"""The most common request by far, read without building a message: Produce for one partition of one topic.

Both functions return None for any other request, including malformed ones, and the general path handles those.
`single_produce` has a compiled twin in `_fast.pyx`. `short_produce` goes further with small requests, and reads and
checks the whole frame. It exists only compiled: without the kernel it always returns None.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Protocol

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ACKS_TIMEOUT_COUNT_NAME = Struct(">hiih")
_COUNT_INDEX_SIZE = Struct(">iii")
_ACKS_TIMEOUT = Struct(">hi")
_NULL = b"\xff\xff"
_NO_TAGS = b"\0\0\0"


class SingleProduce(NamedTuple):
    acks: int
    timeout_ms: int
    topic: bytes
    """The topic's name as the frame has it; from version 13 on the 16 bytes of its id."""
    partition: int
    records_begin: int
    records_end: int


def single_produce(frame: Buffer, position: int, version: int) -> SingleProduce | None:
    """The parts of a non-transactional request for a single partition; None for any other."""
    try:
        if version < FLEXIBLE_FROM:
            return _inflexible(frame, position)
        return _flexible(frame, position, version)
    except (error, IndexError):
        return None


def _inflexible(frame: Buffer, position: int) -> SingleProduce | None:
    if frame[position : position + 2] != _NULL:
        return None
    acks, timeout_ms, topics, length = _ACKS_TIMEOUT_COUNT_NAME.unpack_from(frame, position + 2)
    if topics != 1 or length < 0:
        return None
    name_end = position + 14 + length
    partitions, index, size = _COUNT_INDEX_SIZE.unpack_from(frame, name_end)
    begin = name_end + 12
    if partitions != 1 or size < 0 or begin + size != len(frame):
        return None
    return SingleProduce(acks, timeout_ms, bytes(frame[position + 14 : name_end]), index, begin, begin + size)


def _flexible(frame: Buffer, position: int, version: int) -> SingleProduce | None:
    # A compact null, then counts and lengths as unsigned varints plus one.
    if frame[position] != 0 or frame[position + 7] != 2:
        return None
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position + 1)
    begin = position + 8
    if version >= TOPIC_IDS_FROM:
        name_end = begin + 16
    else:
        length = frame[begin] - 1
        if not 0 <= length < 127:
            return None
        begin += 1
        name_end = begin + length
    if frame[name_end] != 2:
        return None
    (index,) = _INT32.unpack_from(frame, name_end + 1)
    size, records_begin = _varint(frame, name_end + 5)
    records_end = records_begin + size - 1
    if size < 1 or frame[records_end:] != _NO_TAGS:
        return None
    return SingleProduce(acks, timeout_ms, bytes(frame[begin:name_end]), index, records_begin, records_end)


def _varint(frame: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, position


_RESULT_3 = Struct(">ihqq")
_RESULT_5 = Struct(">ihqqq")
_RESULT_8 = Struct(">ihqqqihi")
_RESULT_9 = Struct(">ihqqqHHiB")
_HEAD = Struct(">ii")
_HEAD_TAGGED = Struct(">iiB")


def single_produce_reply(
    version: int, correlation_id: int, topic: bytes, index: int, offset: int, append_time_ms: int, start_offset: int
) -> bytes:
    """The whole response frame for such a request, without an error."""
    if version < FLEXIBLE_FROM:
        head = b"\0\0\0\1" + _INT16.pack(len(topic)) + topic + b"\0\0\0\1"
        if version >= 8:
            body = head + _RESULT_8.pack(index, 0, offset, append_time_ms, start_offset, 0, -1, 0)
        elif version >= 5:
            body = head + _RESULT_5.pack(index, 0, offset, append_time_ms, start_offset) + b"\0\0\0\0"
        else:
            body = head + _RESULT_3.pack(index, 0, offset, append_time_ms) + b"\0\0\0\0"
        return _HEAD.pack(len(body) + 4, correlation_id) + body
    name = topic if version >= TOPIC_IDS_FROM else bytes((len(topic) + 1,)) + topic
    # No record errors, no message, no tags of partition and topic; then the throttle time and no tags.
    body = b"\2" + name + b"\2" + _RESULT_9.pack(index, 0, offset, append_time_ms, start_offset, 0x0100, 0, 0, 0)
    return _HEAD_TAGGED.pack(len(body) + 5, correlation_id, 0) + body


class ShortProduce(Protocol):
    """A Produce request with one small, valid batch for one partition, with acks 1 or -1.

    Valid means: the batch is whole and alone, its CRC and counts are right, its codec is allowed in this version, and
    it is not transactional. Whether the topic and its log accept it is not known yet.
    """

    version: int
    correlation_id: int
    client_id: bytes | None
    acks: int
    timeout_ms: int
    key: bytes
    """The topic as in `SingleProduce`, then the partition in four bytes."""
    records: memoryview
    """The batch, in the frame."""
    size: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int

    def stamp(self, offset: int, leader_epoch: int) -> None:
        """Write the base offset and the leader epoch into the batch."""

    def reply(self, offset: int, append_time_ms: int, start_offset: int) -> bytes:
        """The whole response frame, without an error."""
        ...


def short_produce(frame: memoryview) -> ShortProduce | None:
    """A whole Produce request as above; None for any other request."""
    return None
