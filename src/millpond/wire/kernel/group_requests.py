"""What members of groups send while nothing changes, read without building a message: signs of life, and how far one
of them has read one partition.

Anything of another shape gives None and goes the general way; so does anything malformed, which the general way then
names. `_small.pyx` has the compiled twin.
"""

from __future__ import annotations

from struct import Struct, error

from millpond.wire.kernel.fetch import SMALL_BYTES_MAX

_HEARTBEAT, _CONSUMER_HEARTBEAT, _COMMIT = 12, 68, 8
_STATIC_FROM = {_HEARTBEAT: 3, _COMMIT: 7}
_NEWEST = {_HEARTBEAT: 4, _COMMIT: 9}
_FLEXIBLE_FROM = {_HEARTBEAT: 4, _COMMIT: 8}
_REGEX_FROM = 1

_HEADER = Struct(">hhih")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_COMMITTED = Struct(">iqi")
_BEAT_REPLY = Struct(">iiih")
_BEAT_REPLY_TAGGED = Struct(">iiBihB")
_CONSUMER_REPLY_HEAD = Struct(">iiBihB")
_CONSUMER_REPLY_TAIL = Struct(">iibB")
_COMMIT_REPLY_HEAD = Struct(">iii")
_COMMIT_REPLY_HEAD_TAGGED = Struct(">iiBi")
_COMMIT_RESULT = Struct(">ih")

_UNCHANGED = b"\0\0\xff\xff\xff\xff\0"
"""No instance id, no rack, no timeout, no names of topics: the member says nothing new."""


class _Unusual(Exception):
    """It is left to the general way."""


class _Cursor:
    """The next bytes of a request, whose strings are short and plain."""

    __slots__ = ("at", "frame", "is_flexible")

    def __init__(self, frame: bytes, at: int, *, is_flexible: bool) -> None:
        self.frame = frame
        self.at = at
        self.is_flexible = is_flexible

    def string(self) -> str:
        text = self.string_or_none()
        if text is None:
            raise _Unusual
        return text

    def string_or_none(self) -> str | None:
        if self.is_flexible:
            length = self.frame[self.at] - 1
            self.at += 1
            if length >= 127:
                raise _Unusual
        else:
            (length,) = _INT16.unpack_from(self.frame, self.at)
            self.at += _INT16.size
        if length < 0:
            if length != -1:
                raise _Unusual
            return None
        data = self.frame[self.at : self.at + length]
        if len(data) < length or not data.isascii():
            raise _Unusual
        self.at += length
        return data.decode()

    def is_next(self, expected: bytes) -> bool:
        """Whether these bytes come next; then they are read."""
        begin = self.at
        self.at += len(expected)
        return self.frame[begin : self.at] == expected

    def int32(self) -> int:
        (value,) = _INT32.unpack_from(self.frame, self.at)
        self.at += _INT32.size
        return int(value)

    def one(self) -> bytes:
        """How a list says that it has one item."""
        return b"\2" if self.is_flexible else b"\0\0\0\1"

    def is_at_end(self, tags: bytes) -> bool:
        """Whether nothing is left but that nothing has tags."""
        return self.frame[self.at :] == (tags if self.is_flexible else b"")


class _Short:
    __slots__ = ("client_id", "correlation_id", "group_id", "member_id", "version")

    version: int
    correlation_id: int
    client_id: str
    """Empty where there is none, as coordinators have it."""
    group_id: str
    member_id: str


class ShortHeartbeat(_Short):
    """A member of a classic group that is not a static one is alive."""

    __slots__ = ("generation",)

    generation: int

    def reply(self) -> bytes:
        """The whole frame of the reply: go on."""
        if self.version >= _FLEXIBLE_FROM[_HEARTBEAT]:
            return _BEAT_REPLY_TAGGED.pack(_BEAT_REPLY_TAGGED.size - 4, self.correlation_id, 0, 0, 0, 0)
        return _BEAT_REPLY.pack(_BEAT_REPLY.size - 4, self.correlation_id, 0, 0)


class ShortConsumerHeartbeat(_Short):
    """A member of a group of the new protocol is alive and has nothing else to say."""

    __slots__ = ("epoch",)

    epoch: int

    def reply(self, interval_ms: int) -> bytes:
        """The whole frame of the reply: nothing is new."""
        member = self.member_id.encode()
        tail = _CONSUMER_REPLY_TAIL.pack(self.epoch, interval_ms, -1, 0)
        length = _CONSUMER_REPLY_HEAD.size - 4 + 1 + len(member) + len(tail)
        head = _CONSUMER_REPLY_HEAD.pack(length, self.correlation_id, 0, 0, 0, 0)
        return head + bytes((len(member) + 1,)) + member + tail


class ShortCommit(_Short):
    """A member that is not a static one, or nobody, has read one partition so far."""

    __slots__ = ("generation", "leader_epoch", "metadata", "offset", "partition", "topic")

    generation: int
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None

    def reply(self) -> bytes:
        """The whole frame of the reply, if all went well."""
        topic = self.topic.encode()
        result = _COMMIT_RESULT.pack(self.partition, 0)
        if self.version >= _FLEXIBLE_FROM[_COMMIT]:
            body = b"\2" + bytes((len(topic) + 1,)) + topic + b"\2" + result + b"\0\0\0"
            head = _COMMIT_REPLY_HEAD_TAGGED
            return head.pack(head.size - 4 + len(body), self.correlation_id, 0, 0) + body
        body = b"\0\0\0\1" + _INT16.pack(len(topic)) + topic + b"\0\0\0\1" + result
        head = _COMMIT_REPLY_HEAD
        return head.pack(head.size - 4 + len(body), self.correlation_id, 0) + body


def short_heartbeat(frame: memoryview) -> ShortHeartbeat | None:
    """A whole Heartbeat request as above; None for any other, and for any other API."""
    try:
        short = ShortHeartbeat()
        cursor = _opened(frame, short, _HEARTBEAT)
        short.group_id, short.generation, short.member_id = cursor.string(), cursor.int32(), cursor.string()
        is_plain = cursor.string_or_none() is None and cursor.is_at_end(b"\0")
    except (_Unusual, error, IndexError):
        return None
    return short if is_plain else None


def short_consumer_heartbeat(frame: memoryview) -> ShortConsumerHeartbeat | None:
    """A whole ConsumerGroupHeartbeat request as above; None for any other, and for any other API."""
    try:
        short = ShortConsumerHeartbeat()
        cursor = _opened(frame, short, _CONSUMER_HEARTBEAT)
        short.group_id, short.member_id, short.epoch = cursor.string(), cursor.string(), cursor.int32()
        # No pattern (from version 1 on), no assignor, no partitions, no tags.
        rest = b"\0\0\0\0" if short.version >= _REGEX_FROM else b"\0\0\0"
        is_plain = cursor.is_next(_UNCHANGED) and cursor.is_at_end(rest)
    except (_Unusual, error, IndexError):
        return None
    return short if is_plain else None


def short_commit(frame: memoryview) -> ShortCommit | None:
    """A whole OffsetCommit request as above; None for any other, and for any other API."""
    try:
        short = ShortCommit()
        cursor = _opened(frame, short, _COMMIT)
        short.group_id, short.generation, short.member_id = cursor.string(), cursor.int32(), cursor.string()
        if cursor.string_or_none() is not None or not cursor.is_next(cursor.one()):
            return None
        short.topic = cursor.string()
        if not cursor.is_next(cursor.one()):
            return None
        short.partition, short.offset, short.leader_epoch = _COMMITTED.unpack_from(cursor.frame, cursor.at)
        cursor.at += _COMMITTED.size
        short.metadata = cursor.string_or_none()
        is_plain = cursor.is_at_end(b"\0\0\0")
    except (_Unusual, error, IndexError):
        return None
    return short if is_plain else None


def _opened(frame: memoryview, short: _Short, key: int) -> _Cursor:
    """Read the header; where the body begins."""
    if len(frame) > SMALL_BYTES_MAX:
        raise _Unusual
    data = bytes(frame)
    api_key, short.version, short.correlation_id, length = _HEADER.unpack_from(data)
    is_consumers = key == _CONSUMER_HEARTBEAT
    oldest, newest = (0, 1) if is_consumers else (_STATIC_FROM[key], _NEWEST[key])
    if api_key != key or not oldest <= short.version <= newest or length < -1:
        raise _Unusual
    at = _HEADER.size + max(length, 0)
    client_id = data[_HEADER.size : at]
    if at > len(data) or not client_id.isascii():
        raise _Unusual
    short.client_id = client_id.decode()
    is_flexible = is_consumers or short.version >= _FLEXIBLE_FROM[key]
    if is_flexible:
        if data[at]:
            raise _Unusual
        at += 1
    return _Cursor(data, at, is_flexible=is_flexible)
