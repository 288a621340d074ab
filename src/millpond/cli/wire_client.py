"""A small client of our own for the questions that confluent-kafka does not offer: one connection, one question at
a time, in the newest version that both sides speak.

It speaks plainly, without TLS or passwords; who needs those is told so.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Final, TypeVar

from millpond.base.errors import MalformedMessage
from millpond.wire import messages as m
from millpond.wire.header import NAMES, decode_response_header, encode_request_header

ANSWER_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 << 20
_API_VERSIONS_KEY: Final = 18
_PREFIX: Final = struct.Struct(">i")

R = TypeVar("R", bound=m.Message)


class Unsupported(Exception):
    """The broker does not know this question, or only versions of it that we do not speak."""


class WireClient:
    """One connection to one broker. OSError when it breaks, MalformedMessage when the answer is none."""

    def __init__(self, host: str, port: int, seconds: float = ANSWER_SECONDS) -> None:
        self._link = socket.create_connection((host, port), seconds)
        self._correlation = 0
        self._versions: dict[int, tuple[int, int]] | None = None

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()

    def ask(self, request: m.Message, answer: type[R], versions: tuple[int, int]) -> R:
        """Send the request in the newest of `versions` that the broker takes; the answer to it."""
        key = request.API_KEY
        assert key is not None
        return self._exchange(key, self._common_version(key, versions), request, answer)

    def _common_version(self, key: int, ours: tuple[int, int]) -> int:
        if self._versions is None:
            told = self._exchange(_API_VERSIONS_KEY, 0, m.ApiVersionsRequest(), m.ApiVersionsResponse)
            self._versions = {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, ours[1])
        if version < max(lowest, ours[0]):
            raise Unsupported(NAMES[key])
        return version

    def _exchange(self, key: int, version: int, request: m.Message, answer: type[R]) -> R:
        self._correlation += 1
        body = request.encode(version)
        head = encode_request_header(key, version, self._correlation, "millpond")
        self._link.sendall(_PREFIX.pack(len(head) + len(body)) + head + body)
        (length,) = _PREFIX.unpack(self._read(_PREFIX.size))
        if not 0 <= length <= ANSWER_BYTES_MAX:
            raise MalformedMessage(f"an answer of {length} bytes; at most {ANSWER_BYTES_MAX} are taken")
        frame = memoryview(self._read(length))
        correlation, position = decode_response_header(frame, key, version)
        if correlation != self._correlation:
            raise MalformedMessage("an answer to another question")
        decoded, _ = answer.decode(frame, version, position)
        return decoded

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._link.recv(min(count - len(data), 1 << 16))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)
