"""What most consumers ask most of the time, read without building a message: Fetch of one partition, or of what their
session knows already.

Anything of another shape gives None and goes the general way; so does anything malformed, which the general way then
names. `_small.pyx` has the compiled twin.
"""

from __future__ import annotations

from struct import Struct, error

SMALL_BYTES_MAX = 1024
"""No request of these shapes has more."""

_KEY = 1
_OLDEST, _NEWEST = 12, 18
_TOPIC_IDS_FROM = 13
_REPLICA_STATE_FROM = 15

_HEADER = Struct(">hhih")
_INT32 = Struct(">i")
_ASKED = Struct(">iiibii")
_PARTITION = Struct(">iiqiqi")
_NO_TAGS = b"\0\0"
_NONE_FORGOTTEN_NO_RACK_NO_TAGS = b"\1\1\0"

_REPLY_HEAD = Struct(">iiBihiB")
_FOUND = Struct(">ihqqqB")
_NO_OTHER_REPLICA = b"\xff\xff\xff\xff"

REPLY_TAIL = b"\0\0\0"
"""What stands behind the records: partition, topic and all have no tags."""


class ShortFetch:
    """A consumer's fetch of one partition by name or id, or of whatever its session has."""

    __slots__ = (
        "bytes_max",
        "client_id",
        "correlation_id",
        "fetch_offset",
        "isolation_level",
        "key",
        "leader_epoch",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "session_epoch",
        "session_id",
        "version",
    )

    version: int
    correlation_id: int
    client_id: bytes | None
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    key: bytes | None
    """The topic's name, or from version 13 on its id, then the partition in four bytes. None where none is named:
    then the fields below say nothing."""
    leader_epoch: int
    fetch_offset: int
    bytes_max: int
    """Of this partition."""

    def reply(
        self,
        topic: bytes,
        partition: int,
        high_watermark: int,
        stable_offset: int,
        start_offset: int,
        size: int,
    ) -> bytes:
        """The frame of the reply up to its records, of which there are `size` bytes. `REPLY_TAIL` comes last."""
        name = topic if self.version >= _TOPIC_IDS_FROM else _unsigned(len(topic) + 1) + topic
        # A reader of committed records is told which transactions were aborted: none.
        aborted = 1 if self.isolation_level == 1 else 0
        found = _FOUND.pack(partition, 0, high_watermark, stable_offset, start_offset, aborted)
        body = name + b"\2" + found + _NO_OTHER_REPLICA + _unsigned(size + 1)
        length = _REPLY_HEAD.size - 4 + len(body) + size + len(REPLY_TAIL)
        return _REPLY_HEAD.pack(length, self.correlation_id, 0, 0, 0, self.session_id, 2) + body

    def reply_nothing(self) -> bytes:
        """The whole frame of the reply, where there is nothing new."""
        return _REPLY_HEAD.pack(_REPLY_HEAD.size - 3, self.correlation_id, 0, 0, 0, self.session_id, 1) + b"\0"


def short_fetch(frame: memoryview) -> ShortFetch | None:
    """A whole Fetch request as above; None for any other, and for any other API."""
    if not _HEADER.size <= len(frame) <= SMALL_BYTES_MAX:
        return None
    try:
        return _read(bytes(frame))
    except (error, IndexError):
        return None


def _read(frame: bytes) -> ShortFetch | None:
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    at = _HEADER.size + max(length, 0)
    if api_key != _KEY or not _OLDEST <= version <= _NEWEST or length < -1 or frame[at]:
        return None
    at += 1
    short = ShortFetch()
    short.version, short.correlation_id = version, correlation_id
    short.client_id = None if length < 0 else frame[_HEADER.size : at - 1]
    if short.client_id is not None and not short.client_id.isascii():
        return None
    if version < _REPLICA_STATE_FROM:
        if _INT32.unpack_from(frame, at)[0] != -1:
            return None
        at += _INT32.size
    (
        short.max_wait_ms,
        short.min_bytes,
        short.max_bytes,
        short.isolation_level,
        short.session_id,
        short.session_epoch,
    ) = _ASKED.unpack_from(frame, at)
    at += _ASKED.size
    topics = frame[at]
    at += 1
    short.key, short.leader_epoch, short.fetch_offset, short.bytes_max = None, -1, 0, 0
    if topics == 2:
        at = _read_partition(short, frame, at)
    elif topics != 1:
        return None
    return short if at >= 0 and frame[at:] == _NONE_FORGOTTEN_NO_RACK_NO_TAGS else None


def _read_partition(short: ShortFetch, frame: bytes, at: int) -> int:
    """Where the only topic ends, which has one partition; -1 for any other."""
    length = 16
    if short.version < _TOPIC_IDS_FROM:
        length = frame[at] - 1
        at += 1
        if not 0 <= length < 127:
            return -1
    end = at + length
    if frame[end] != 2:
        return -1
    partition, short.leader_epoch, short.fetch_offset, _, _, short.bytes_max = _PARTITION.unpack_from(frame, end + 1)
    short.key = frame[at:end] + _INT32.pack(partition)
    end += 1 + _PARTITION.size
    return end + 2 if frame[end : end + 2] == _NO_TAGS else -1


def _unsigned(value: int) -> bytes:
    """A varint without a sign."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
