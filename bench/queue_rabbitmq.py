"""A queue of RabbitMQ on plain sockets: AMQP 0-9-1 with confirmed messages and acknowledgements one by one."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from bench.load_foreign import READ_BYTES, connect
from bench.node import HOST

QUEUE = b"race"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
FRAME = struct.Struct(">BHI")
NAME = struct.Struct(">HH")
START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CLOSE, CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (10, 50), (20, 10), (20, 11), (20, 40)
DECLARE, DECLARE_OK, SELECT, SELECT_OK = (50, 10), (50, 11), (85, 10), (85, 11)
QOS, QOS_OK, CONSUME, CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
PUBLISH, DELIVER, ACK, NACK = (60, 40), (60, 60), (60, 80), (60, 120)
PERSISTENT = 2
HAS_DELIVERY_MODE = 0x1000
DURABLE = 2
MULTIPLE = 1


def short(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def long(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(name: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(METHOD, channel, NAME.pack(*name) + arguments)


class Connection:
    def __init__(self, port: int, kind: str) -> None:
        self.socket: socket.socket = connect(HOST, port)
        self._rest = b""
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._await(START)
        login = long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US")
        self.socket.sendall(method(START_OK, login, 0))
        channels, frame_max, _ = struct.unpack_from(">HIH", self._await(TUNE))
        self.socket.sendall(method(TUNE_OK, struct.pack(">HIH", channels, frame_max, 0), 0))
        self._ask(method(OPEN, short(b"/") + short(b"") + b"\0", 0), OPEN_OK)
        self._ask(method(CHANNEL_OPEN, short(b"")), CHANNEL_OPEN_OK)
        table = long(short(b"x-queue-type") + b"S" + long(kind.encode()))
        self._ask(method(DECLARE, b"\0\0" + short(QUEUE) + bytes([DURABLE]) + table), DECLARE_OK)

    def _ask(self, data: bytes, answer: tuple[int, int]) -> bytes:
        self.socket.sendall(data)
        return self._await(answer)

    def _await(self, name: tuple[int, int]) -> bytes:
        while True:
            for kind, payload in self.frames():
                if kind == METHOD and NAME.unpack_from(payload) == name:
                    return payload[NAME.size :]

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """What has arrived, after reading once. The connection ends at a refusal."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("RabbitMQ closed the connection")
        self._rest += data
        at, whole = 0, self._rest
        found = []
        while len(whole) - at >= FRAME.size:
            kind, _, size = FRAME.unpack_from(whole, at)
            end = at + FRAME.size + size + len(FRAME_END)
            if end > len(whole):
                break
            payload = whole[at + FRAME.size : end - 1]
            if kind == METHOD and NAME.unpack_from(payload) in (CLOSE, CHANNEL_CLOSE, NACK):
                raise RuntimeError(f"RabbitMQ refused: {payload!r}")
            found.append((kind, payload))
            at = end
        self._rest = whole[at:]
        yield from found


class Sender(Connection):
    def __init__(self, port: int, kind: str) -> None:
        super().__init__(port, kind)
        self._ask(method(SELECT, b"\0"), SELECT_OK)
        self._publish = method(PUBLISH, b"\0\0" + short(b"") + short(QUEUE) + b"\0")
        self._tag = 0
        self._unacknowledged: set[int] = set()

    def send(self, jobs: list[bytes]) -> None:
        data = b""
        for job in jobs:
            properties = struct.pack(">HHQHB", 60, 0, len(job), HAS_DELIVERY_MODE, PERSISTENT)
            self._tag += 1
            self._unacknowledged.add(self._tag)
            data += self._publish + frame(HEADER, 1, properties) + frame(BODY, 1, job)
        self.socket.sendall(data)

    def answered(self) -> int:
        count = 0
        for kind, payload in self.frames():
            if kind == METHOD and NAME.unpack_from(payload) == ACK:
                tag, flags = struct.unpack_from(">QB", payload, NAME.size)
                done = {each for each in self._unacknowledged if each <= tag} if flags & MULTIPLE else {tag}
                count += len(done)
                self._unacknowledged -= done
        return count


class Worker(Connection):
    """One job at a time: a prefetch count of one."""

    def __init__(self, port: int, kind: str) -> None:
        super().__init__(port, kind)
        self._ask(method(QOS, struct.pack(">IHB", 0, 1, 0)), QOS_OK)
        self._tags: list[int] = []

    def begin(self) -> None:
        self._ask(method(CONSUME, b"\0\0" + short(QUEUE) + short(b"") + b"\0" + long(b"")), CONSUME_OK)

    def received(self) -> list[bytes]:
        jobs = []
        for kind, payload in self.frames():
            if kind == METHOD and NAME.unpack_from(payload) == DELIVER:
                at = NAME.size + 1 + payload[NAME.size]
                self._tags.append(struct.unpack_from(">Q", payload, at)[0])
            elif kind == BODY:
                jobs.append(payload)
        return jobs

    def finish(self) -> None:
        # A job that has not arrived whole is acknowledged all the same: its body is on the way.
        for tag in self._tags:
            self.socket.sendall(method(ACK, struct.pack(">QB", tag, 0)))
        self._tags = []

    def keep_alive(self) -> None:
        """Heartbeats are off."""
