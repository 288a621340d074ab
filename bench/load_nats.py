"""Loads on a stream of NATS JetStream, by plain sockets: messages that are acknowledged, and a pull consumer."""

from __future__ import annotations

import itertools
import json
import socket
import time

from bench.load_foreign import CHUNK, READ_BYTES, VALUE, WINDOW, Bulk, One, Paced, TokenCounter, connected, lines_of
from bench.node import HOST
from bench.noise import Measured

STREAM, SUBJECT = "RACE", "race"
INBOX = "answers"
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1","protocol":1}\r\nPING\r\n'
READ_BATCH = 2000
_numbers = itertools.count()


def logged_in(port: int) -> socket.socket:
    made = connected(HOST, port)
    said = b""
    made.sendall(HELLO)
    while b"PONG\r\n" not in said:
        said += made.recv(READ_BYTES)
    return made


def asked(made: socket.socket, subject: str, body: object) -> dict[str, object]:
    """One answer of JetStream's own API."""
    inbox = f"api.{next(_numbers)}"
    data = json.dumps(body).encode()
    made.sendall(f"SUB {inbox} 9\r\nUNSUB 9 1\r\nPUB {subject} {inbox} {len(data)}\r\n".encode() + data + b"\r\n")
    said = b""
    while True:
        head, found, rest = said.partition(b"\r\n")
        if found and not head.startswith(b"MSG"):
            # The server asks whether we are there soon after we have come.
            said = rest
            continue
        if found and len(rest) >= (size := int(head.rsplit(b" ", 1)[1])) + 2:
            answer: dict[str, object] = json.loads(rest[:size])
            if "error" in answer:
                raise RuntimeError(f"JetStream refused {subject}: {answer['error']}")
            return answer
        said += made.recv(READ_BYTES)


def make_stream(port: int) -> None:
    made = logged_in(port)
    settings = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": 1, "retention": "limits"}
    asked(made, f"$JS.API.STREAM.CREATE.{STREAM}", settings)
    made.close()


class NatsLine:
    def __init__(self, port: int) -> None:
        self.socket: socket.socket = logged_in(port)
        inbox = f"{INBOX}.{next(_numbers)}.{port}.{self.socket.fileno()}"
        self.socket.sendall(f"SUB {inbox} 1\r\n".encode())
        self.frame = f"PUB {SUBJECT} {inbox} {len(VALUE)}\r\n".encode() + VALUE + b"\r\n"
        self._answers = TokenCounter(b'"seq":', b'"error"')

    def chunk(self, count: int) -> bytes:
        return self.frame * count

    def answered(self, data: bytes) -> int:
        return self._answers.count(data)


class NatsOne(One):
    def __init__(self, port: int, connections: int) -> None:
        make_stream(port)
        super().__init__(lines_of(lambda: NatsLine(port), connections))


class NatsBulk(Bulk):
    def __init__(self, port: int, bytes_max: int) -> None:
        make_stream(port)
        super().__init__(lines_of(lambda: NatsLine(port), 1)[0], bytes_max)


class NatsPaced(Paced):
    def __init__(self, port: int) -> None:
        make_stream(port)
        super().__init__(lines_of(lambda: NatsLine(port), 1)[0])


class NatsRead:
    """A consumer that asks for thousands at a time and acknowledges none, from the start in every slice."""

    def __init__(self, port: int, messages: int) -> None:
        make_stream(port)
        self._messages = messages
        line = lines_of(lambda: NatsLine(port), 1)[0]
        sent, answered = 1, 1
        while answered < messages:
            if sent < messages and sent - answered < WINDOW:
                count = min(CHUNK, messages - sent)
                line.socket.sendall(line.chunk(count))
                sent += count
            else:
                answered += line.answered(line.socket.recv(READ_BYTES))
        self._socket = logged_in(port)
        self._socket.sendall(f"SUB {INBOX}.read 1\r\n".encode())

    def run(self, seconds: float) -> Measured:
        name = f"reader{next(_numbers)}"
        settings = {"durable_name": name, "deliver_policy": "all", "ack_policy": "none", "max_waiting": 512}
        asked(
            self._socket,
            f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{name}",
            {"stream_name": STREAM, "config": settings},
        )
        body = json.dumps({"batch": READ_BATCH}).encode()
        ask = f"PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name} {INBOX}.read {len(body)}\r\n".encode() + body + b"\r\n"
        began = time.perf_counter()
        deadline = began + seconds
        batches = self._messages // READ_BATCH
        wanted = read = 0
        for _ in range(batches):
            # One batch is on its way while the next is asked for.
            self._socket.sendall(ask)
            wanted += READ_BATCH
            while read < wanted - READ_BATCH:
                read += self._some()
            if time.perf_counter() > deadline:
                break
        while read < wanted:
            read += self._some()
        took = time.perf_counter() - began
        # What follows the first byte of the last message.
        self._socket.sendall(b"PING\r\n")
        rest = b""
        while not rest.endswith(b"PONG\r\n"):
            rest = (rest + self._socket.recv(READ_BYTES))[-16:]
        return {"seconds": took, "messages": read, "bytes": read * len(VALUE)}

    def _some(self) -> int:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("NATS closed the connection")
        return data.count(b"\0")
