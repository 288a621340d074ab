"""The protocol of NATS JetStream on plain sockets: acknowledged messages, and a pull consumer."""

from __future__ import annotations

import itertools
import json
import socket
import time

from bench.load_foreign import READ_BYTES, VALUE, TokenCounter, connect, publish
from bench.node import HOST

STREAM, SUBJECT = "RACE", "race"
INBOX = "answers"
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1","protocol":1}\r\nPING\r\n'
READ_BATCH = 2000
_numbers = itertools.count()


def log_in(port: int) -> socket.socket:
    connection = connect(HOST, port)
    received = b""
    connection.sendall(HELLO)
    while b"PONG\r\n" not in received:
        received += connection.recv(READ_BYTES)
    return connection


def call(connection: socket.socket, subject: str, body: object) -> dict[str, object]:
    """One request to JetStream's own API."""
    inbox = f"api.{next(_numbers)}"
    data = json.dumps(body).encode()
    connection.sendall(
        f"SUB {inbox} 9\r\nUNSUB 9 1\r\nPUB {subject} {inbox} {len(data)}\r\n".encode() + data + b"\r\n"
    )
    received = b""
    while True:
        head, end, rest = received.partition(b"\r\n")
        if end and not head.startswith(b"MSG"):
            # Soon after a connection the server sends a PING.
            received = rest
            continue
        if end and len(rest) >= (size := int(head.rsplit(b" ", 1)[1])) + 2:
            answer: dict[str, object] = json.loads(rest[:size])
            if "error" in answer:
                raise RuntimeError(f"JetStream refused {subject}: {answer['error']}")
            return answer
        received += connection.recv(READ_BYTES)


def prepare(port: int) -> None:
    settings = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": 1, "retention": "limits"}
    with log_in(port) as connection:
        call(connection, f"$JS.API.STREAM.CREATE.{STREAM}", settings)


class Line:
    def __init__(self, port: int) -> None:
        self.socket: socket.socket = log_in(port)
        inbox = f"{INBOX}.{next(_numbers)}.{port}.{self.socket.fileno()}"
        self.socket.sendall(f"SUB {inbox} 1\r\n".encode())
        self.frame = f"PUB {SUBJECT} {inbox} {len(VALUE)}\r\n".encode() + VALUE + b"\r\n"
        self._answers = TokenCounter(b'"seq":', b'"error"')

    def chunk(self, count: int) -> bytes:
        return self.frame * count

    def answered(self, data: bytes) -> int:
        return self._answers.count(data)


class Reader:
    """A consumer that requests thousands at a time and acknowledges none."""

    def __init__(self, port: int, messages: int) -> None:
        prepare(port)
        self._messages = messages
        publish(Line(port), messages)
        self._socket = log_in(port)
        self._socket.sendall(f"SUB {INBOX}.read 1\r\n".encode())

    def read(self, seconds: float) -> tuple[int, float]:
        name = f"reader{next(_numbers)}"
        settings = {"durable_name": name, "deliver_policy": "all", "ack_policy": "none", "max_waiting": 512}
        body = {"stream_name": STREAM, "config": settings}
        call(self._socket, f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{name}", body)
        batch = json.dumps({"batch": READ_BATCH}).encode()
        head = f"PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name} {INBOX}.read {len(batch)}\r\n"
        request = head.encode() + batch + b"\r\n"
        began = time.perf_counter()
        requested = read = 0
        for _ in range(self._messages // READ_BATCH):
            # One batch is in flight while the next is requested.
            self._socket.sendall(request)
            requested += READ_BATCH
            while read < requested - READ_BATCH:
                read += self._receive()
            if time.perf_counter() - began > seconds:
                break
        while read < requested:
            read += self._receive()
        took = time.perf_counter() - began
        # Read what follows the first byte of the last message.
        self._socket.sendall(b"PING\r\n")
        rest = b""
        while not rest.endswith(b"PONG\r\n"):
            rest = (rest + self._socket.recv(READ_BYTES))[-16:]
        return read, took

    def _receive(self) -> int:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("NATS closed the connection")
        return data.count(b"\0")
