"""The outcomes of a handler, and their encoding as frame parts: length and header first, records as file ranges."""

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
"""Joining 16 MB with a header would take the loop 10 ms."""


class Response(Protocol):
    """A reply as a value, such as every response class of `wire.messages`."""

    def encode_parts(self, version: int) -> list[ReplyPart]: ...


class Encoded:
    """A reply that is already encoded."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

    def encode_parts(self, version: int) -> list[ReplyPart]:
        return [self.body]


class EncodedParts:
    """An encoded reply with file ranges."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[ReplyPart]) -> None:
        self._parts = parts

    def encode_parts(self, version: int) -> list[ReplyPart]:
        return self._parts


Outcome: TypeAlias = "Response | Later[Any] | None"
"""A reply now, a reply later, or no reply at all (Produce with acks=0)."""


class UnwritableReply(RemoteError):
    """The requested version cannot express the reply, for example because a name is too long.

    Encoding has no side effects, so only the client's connection is lost.
    """


def encoded(response: model.Message, version: int) -> Encoded:
    """Encode a reply without records; a worker does it for large ones."""
    try:
        return Encoded(response.encode(version))
    except ValueError as error:
        raise UnwritableReply(str(error)) from error


def encoded_in_steps(
    response: model.Message, version: int, is_wanted: Callable[[], bool]
) -> Generator[None, None, EncodedParts]:
    """Encode a reply with records in steps. `is_wanted` is whether its client is still connected."""
    try:
        parts = yield from response.encode_in_steps(version)
    except ValueError as error:
        release_ranges(list(_ranges_in(response)))
        raise UnwritableReply(str(error)) from error
    if not is_wanted():
        # The connection has closed, and nothing else would release the files.
        release_ranges(parts)
        return EncodedParts([b""])
    return EncodedParts(parts)


def encode_reply(header: RequestHeader, response: Response) -> list[ReplyPart]:
    """The frame that answers the request with this header."""
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
    """Release the files of a reply that will not be sent."""
    for part in parts or ():
        if isinstance(part, FileRange):
            part.file.release()
