"""From a response to the parts of a frame: header and length in front, records as they lie on disk."""

from __future__ import annotations

from struct import Struct

from millpond.base.ports import FileRange, ReplyPart
from millpond.broker.api import Response
from millpond.wire.header import RequestHeader, response_header

_LENGTH = Struct(">i")


def encode_reply(header: RequestHeader, response: Response) -> list[ReplyPart]:
    """The whole frame that answers the request with this header."""
    version = header.api_version
    parts = response.encode_parts(version)
    head = response_header(header.api_key, version, header.correlation_id)
    first = parts[0]
    assert not isinstance(first, FileRange), "every reply begins with fields"
    parts[0] = _LENGTH.pack(len(head) + sum(map(len, parts))) + head + first
    return parts


def release_ranges(parts: list[ReplyPart] | None) -> None:
    """Give back the files of a reply that will never be sent."""
    for part in parts or ():
        if isinstance(part, FileRange):
            part.file.release()
