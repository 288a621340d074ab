"""Loads on a RabbitMQ stream, by plain sockets and its stream protocol: confirmed messages, and a subscription."""

from __future__ import annotations

import socket
import struct
import time

from bench.load_foreign import CHUNK, READ_BYTES, VALUE, WINDOW, Bulk, One, Paced, connected, lines_of
from bench.node import HOST
from bench.noise import Measured

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
"""Where a delivered chunk says how many records it has: after the subscription, a magic byte, a kind, and a count."""


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def frame(key: int, body: bytes) -> bytes:
    return HEAD.pack(len(body) + 4, key, VERSION) + body


class Frames:
    """Whole frames out of what comes piece by piece."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """Each without its size in front counted twice: as it came."""
        rest = self._rest
        rest += data
        found, at = [], 0
        while len(rest) - at >= SIZE.size:
            end = at + SIZE.size + SIZE.unpack_from(rest, at)[0]
            if end > len(rest):
                break
            found.append(bytes(rest[at:end]))
            at = end
        del rest[:at]
        return found


class RabbitConnection:
    """Logged in and open."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connected(HOST, port)
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
        """The next frame of this kind; what comes before it is thrown away."""
        while True:
            while self._waiting:
                found = self._waiting.pop(0)
                if HEAD.unpack_from(found)[1] == key:
                    return found
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("RabbitMQ closed the connection")
            self._waiting += self.frames.take(data)


class RabbitLine:
    def __init__(self, port: int) -> None:
        self._connection = RabbitConnection(port)
        self.socket = self._connection.socket
        self._connection.ask(DECLARE_PUBLISHER, b"\0" + text("") + text(STREAM))
        self.frame = self.chunk(1)

    def chunk(self, count: int) -> bytes:
        messages = b"".join(struct.pack(">QI", place, len(VALUE)) + VALUE for place in range(count))
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


class RabbitOne(One):
    def __init__(self, port: int, connections: int) -> None:
        super().__init__(lines_of(lambda: RabbitLine(port), connections))


class RabbitBulk(Bulk):
    def __init__(self, port: int, bytes_max: int) -> None:
        super().__init__(lines_of(lambda: RabbitLine(port), 1)[0], bytes_max)


class RabbitPaced(Paced):
    def __init__(self, port: int) -> None:
        super().__init__(lines_of(lambda: RabbitLine(port), 1)[0])


class RabbitRead:
    """A subscription from the first message on, with a few chunks on their way, anew in every slice."""

    def __init__(self, port: int, messages: int) -> None:
        self._messages = messages
        line = lines_of(lambda: RabbitLine(port), 1)[0]
        sent, answered = 1, 1
        while answered < messages:
            if sent < messages and sent - answered < WINDOW:
                count = min(CHUNK, messages - sent)
                line.socket.sendall(line.chunk(count))
                sent += count
            else:
                answered += line.answered(line.socket.recv(READ_BYTES))
        self._connection = RabbitConnection(port)

    def run(self, seconds: float) -> Measured:
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
        return {"seconds": took, "messages": read, "bytes": read * len(VALUE)}
