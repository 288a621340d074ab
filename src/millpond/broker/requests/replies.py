"""What a handler may answer, and from that to the parts of a frame: header and length first, records as they lie."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from typing import Any, Protocol, TypeAlias

from millpond.base.errors import RemoteError
from millpond.base.later import Later
from millpond.base.ports import FileRange, ReplyPart
from millpond.wire import model
from millpond.wire.header import RequestHeader, response_header

_LENGTH = Struct(">i")
_COPIED_BYTES_MAX = 64 << 10
"""To copy 16 MB behind a header would take 10 ms of the loop."""


class Response(Protocol):
    """A reply as a value: every response class of `wire.messages` is one."""

    def encode_parts(self, version: int) -> list[ReplyPart]: ...


class Encoded:
    """A reply that is bytes already."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

    def encode_parts(self, version: int) -> list[ReplyPart]:
        return [self.body]


class EncodedParts:
    """The same with records."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[ReplyPart]) -> None:
        self._parts = parts

    def encode_parts(self, version: int) -> list[ReplyPart]:
        return self._parts


Outcome: TypeAlias = "Response | Later[Any] | None"
"""A reply now, a reply later, or no reply at all (a produce request with acks=0)."""


class UnwritableReply(RemoteError):
    """The version that was asked for has no room for the reply (a name too long for it, say).

    Writing a reply changes nothing, so nothing is half done: only the one who asked loses his connection.
    """


def encoded(response: model.Message, version: int) -> Encoded:
    """A reply without records as bytes, for a worker: large ones take their time."""
    try:
        return Encoded(response.encode(version))
    except ValueError as error:
        raise UnwritableReply(str(error)) from error


def encoded_in_steps(
    response: model.Message, version: int, is_wanted: Callable[[], bool]
) -> Generator[None, None, EncodedParts]:
    """A reply with records as parts, some of them in each step. `is_wanted`: whether its client is still there."""
    try:
        parts = yield from response.encode_in_steps(version)
    except ValueError as error:
        release_ranges(list(_ranges_in(response)))
        raise UnwritableReply(str(error)) from error
    if not is_wanted():
        # The connection has ended meanwhile, and nobody else would give the files back.
        release_ranges(parts)
        return EncodedParts([b""])
    return EncodedParts(parts)


def encode_reply(header: RequestHeader, response: Response) -> list[ReplyPart]:
    """The whole frame that answers the request with this header."""
    try:
        parts = response.encode_parts(header.api_version)
    except ValueError as error:
        release_ranges(list(_ranges_in(response)))
        raise UnwritableReply(str(error)) from error
    return _framed(header, parts)


def encode_reply_in_steps(header: RequestHeader, response: Response) -> Generator[None, None, list[ReplyPart]]:
    """The same for a response with long lists."""
    if not isinstance(response, model.Message):
        return encode_reply(header, response)
    try:
        parts = yield from response.encode_in_steps(header.api_version)
    except ValueError as error:
        release_ranges(list(_ranges_in(response)))
        raise UnwritableReply(str(error)) from error
    return _framed(header, parts)


def _framed(header: RequestHeader, parts: list[ReplyPart]) -> list[ReplyPart]:
    head = response_header(header.api_key, header.api_version, header.correlation_id)
    first = parts[0]
    assert not isinstance(first, FileRange), "every reply begins with fields"
    head = _LENGTH.pack(len(head) + sum(map(len, parts))) + head
    if len(first) > _COPIED_BYTES_MAX:
        parts.insert(0, head)
    else:
        parts[0] = head + first
    return parts


def _ranges_in(value: object) -> Iterator[FileRange]:
    if isinstance(value, FileRange):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _ranges_in(each)
    elif isinstance(value, model.Struct):
        for name in value._names:
            yield from _ranges_in(getattr(value, name))


def release_ranges(parts: Sequence[ReplyPart] | None) -> None:
    """Give back the files of a reply that will never be sent."""
    for part in parts or ():
        if isinstance(part, FileRange):
            part.file.release()
