"""The stream protocol of RabbitMQ on plain sockets: confirmed messages, and a subscription."""

from __future__ import annotations

import socket
import struct
import time

from bench.load_foreign import READ_BYTES, VALUE, connect, publish
from bench.node import HOST

STREAM = "race"
VERSION = 1
DECLARE_PUBLISHER, PUBLISH, PUBLISH_CONFIRM, PUBLISH_ERROR = 0x01, 0x02, 0x03, 0x04
SUBSCRIBE, DELIVER, CREDIT, UNSUBSCRIBE, CREATE = 0x07, 0x08, 0x09, 0x0C, 0x0D
PEER_PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE, TUNE, OPEN = 0x11, 0x12, 0x13, 0x14, 0x15
RESPONSE = 0x8000
OK, STREAM_EXISTS = 1, 5
OFFSET_FIRST = 1
CREDITS = 10

HEAD = struct.Struct(">IHH")
SIZE = struct.Struct(">I")
ANSWER = struct.Struct(">IH")
CONFIRM = struct.Struct(">BI")
RECORDS_AT = HEAD.size + 1 + 4
"""The position of a chunk's record count: after the subscription, a magic byte, a kind, and a count."""


def prepare(port: int) -> None:
    """Every connection creates the stream if needed."""


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def frame(key: int, body: bytes) -> bytes:
    return HEAD.pack(len(body) + 4, key, VERSION) + body


class Frames:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """The complete frames, with their sizes."""
        rest = self._rest
        rest += data
        frames, at = [], 0
        while len(rest) - at >= SIZE.size:
            end = at + SIZE.size + SIZE.unpack_from(rest, at)[0]
            if end > len(rest):
                break
            frames.append(bytes(rest[at:end]))
            at = end
        del rest[:at]
        return frames


class Connection:
    """A connection that is logged in, with an open stream."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(HOST, port)
        self.frames = Frames()
        self._waiting: list[bytes] = []
        self._correlation = 0
        self.ask(PEER_PROPERTIES, struct.pack(">i", 0))
        self.ask(SASL_HANDSHAKE, b"")
        login = b"\0guest\0guest"
        self.ask(SASL_AUTHENTICATE, text("PLAIN") + struct.pack(">i", len(login)) + login)
        tuned = self.next(TUNE)
        (frame_max,) = SIZE.unpack_from(tuned, HEAD.size)
        # No heartbeats: a slice is short.
        self.socket.sendall(frame(TUNE, struct.pack(">II", frame_max, 0)))
        self.ask(OPEN, text("/"))
        self.ask(CREATE, text(STREAM) + struct.pack(">i", 0), allowed=STREAM_EXISTS)

    def ask(self, key: int, body: bytes, allowed: int = OK) -> None:
        self._correlation += 1
        self.socket.sendall(frame(key, SIZE.pack(self._correlation) + body))
        _, code = ANSWER.unpack_from(self.next(RESPONSE | key), HEAD.size)
        if code not in (OK, allowed):
            raise RuntimeError(f"RabbitMQ refused {key:#x} with {code}")

    def next(self, key: int) -> bytes:
        """The next frame of this kind; frames before it are dropped."""
        while True:
            while self._waiting:
                found = self._waiting.pop(0)
                if HEAD.unpack_from(found)[1] == key:
                    return found
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("RabbitMQ closed the connection")
            self._waiting += self.frames.take(data)


class Line:
    def __init__(self, port: int) -> None:
        self._connection = Connection(port)
        self.socket = self._connection.socket
        self._connection.ask(DECLARE_PUBLISHER, b"\0" + text("") + text(STREAM))
        self.frame = self.chunk(1)

    def chunk(self, count: int) -> bytes:
        messages = b"".join(struct.pack(">QI", number, len(VALUE)) + VALUE for number in range(count))
        return frame(PUBLISH, struct.pack(">BI", 0, count) + messages)

    def answered(self, data: bytes) -> int:
        count = 0
        for each in self._connection.frames.take(data):
            key = HEAD.unpack_from(each)[1]
            if key == PUBLISH_ERROR:
                raise RuntimeError("RabbitMQ refused a message")
            if key == PUBLISH_CONFIRM:
                count += CONFIRM.unpack_from(each, HEAD.size)[1]
        return count


class Reader:
    """A subscription from the first message on, with a few chunks in flight, renewed in every slice."""

    def __init__(self, port: int, messages: int) -> None:
        self._messages = messages
        publish(Line(port), messages)
        self._connection = Connection(port)

    def read(self, seconds: float) -> tuple[int, float]:
        connection = self._connection
        began = time.perf_counter()
        offset = struct.pack(">HH", OFFSET_FIRST, CREDITS)
        connection.ask(SUBSCRIBE, b"\0" + text(STREAM) + offset + struct.pack(">i", 0))
        read = 0
        while read < self._messages and time.perf_counter() - began < seconds:
            delivered = connection.next(DELIVER)
            read += SIZE.unpack_from(delivered, RECORDS_AT)[0]
            connection.socket.sendall(frame(CREDIT, struct.pack(">BH", 0, 1)))
        took = time.perf_counter() - began
        connection.ask(UNSUBSCRIBE, b"\0")
        return read, took
