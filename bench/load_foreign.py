"""Loads for brokers that do not speak Kafka's protocol, as similar to ours as their protocols allow.

Messages are encoded once and answers are only counted, so that the client costs almost nothing, as in `load_raw`. A
module `load_BROKER` has the protocol: `prepare(port)`, `Line(port)`, and a load `Reader(port, messages)`.
"""

from __future__ import annotations

import select
import socket
import time
from importlib import import_module
from typing import Any, Protocol

from bench.load_raw import percentiles_ms
from bench.noise import Measured

TIMEOUT_SECONDS = 30.0
READ_BYTES = 1 << 18
VALUE = b"\0" + b"v" * 99
"""No broker sends a zero byte except in a value, so counting them counts messages."""

PACE_PER_SECOND = 1000
WINDOW = 5000
"""The most unacknowledged messages."""
CHUNK = 500
"""Messages sent in one call."""


class Line(Protocol):
    """A connection that is ready to publish."""

    socket: socket.socket
    frame: bytes
    """One message."""

    def chunk(self, count: int) -> bytes:
        """Messages as a client would send them together."""
        ...

    def answered(self, data: bytes) -> int:
        """The number of messages that this data acknowledges; raises if the broker refused one."""
        ...


class TokenCounter:
    """Counts a token in a stream that arrives in pieces."""

    def __init__(self, token: bytes, error: bytes) -> None:
        self._token = token
        self._error = error
        self._rest = b""

    def count(self, data: bytes) -> int:
        whole = self._rest + data
        if self._error in whole:
            raise RuntimeError(f"the broker refused: {whole[:200]!r}")
        number = whole.count(self._token)
        counted = whole.rfind(self._token) + len(self._token) if number else 0
        # A token that is cut in two is counted with the next piece, and none twice.
        self._rest = whole[max(len(whole) - max(len(self._token), len(self._error)) + 1, counted) :]
        return number


def connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(line: Line) -> int:
    data = line.socket.recv(READ_BYTES)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return line.answered(data)


def publish(line: Line, count: int) -> None:
    """Publish this many messages and wait until all are acknowledged."""
    sent = answered = 0
    while answered < count:
        if sent < count and sent - answered < WINDOW:
            size = min(CHUNK, count - sent)
            line.socket.sendall(line.chunk(size))
            sent += size
        else:
            answered += receive(line)


def protocol(broker: str) -> Any:
    return import_module(f"bench.load_{broker}")


def open_lines(broker: str, port: int, count: int) -> list[Line]:
    """Lines that have each published a message already."""
    module = protocol(broker)
    module.prepare(port)
    lines = [module.Line(port) for _ in range(count)]
    for line in lines:
        publish(line, 1)
    return lines


class One:
    """One message in flight on each connection."""

    def __init__(self, port: int, broker: str, connections: int) -> None:
        self._lines = {each.socket.fileno(): each for each in open_lines(broker, port, connections)}
        self._poll = select.epoll()
        for descriptor in self._lines:
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self, seconds: float) -> Measured:
        now, lines, poll = time.perf_counter_ns, self._lines, self._poll.poll
        waits: list[int] = []
        sent_at: dict[int, int] = {}
        began = now()
        deadline = began + int(seconds * 1e9)
        for descriptor, line in lines.items():
            sent_at[descriptor] = now()
            line.socket.sendall(line.frame)
        open_requests = len(lines)
        while open_requests:
            events = poll(TIMEOUT_SECONDS)
            if not events:
                raise TimeoutError(f"{open_requests} messages were not acknowledged")
            for descriptor, _ in events:
                line = lines[descriptor]
                if not receive(line):
                    continue
                at = now()
                waits.append(at - sent_at[descriptor])
                if at < deadline:
                    sent_at[descriptor] = at
                    line.socket.sendall(line.frame)
                else:
                    open_requests -= 1
        took = (now() - began) / 1e9
        return {"seconds": took, "messages": len(waits), "requests": len(waits), **percentiles_ms(waits)}


class Bulk:
    """Many messages in flight on one connection."""

    def __init__(self, port: int, broker: str, bytes_max: int) -> None:
        (self._line,) = open_lines(broker, port, 1)
        self._chunk = self._line.chunk(CHUNK)
        self._messages_max = max(CHUNK, bytes_max // len(VALUE))

    def run(self, seconds: float) -> Measured:
        line, chunk = self._line, self._chunk
        began = time.perf_counter()
        deadline = began + seconds
        sent = answered = 0
        while time.perf_counter() < deadline and sent < self._messages_max:
            line.socket.sendall(chunk)
            sent += CHUNK
            while sent - answered > WINDOW - CHUNK:
                answered += receive(line)
        while answered < sent:
            answered += receive(line)
        took = time.perf_counter() - began
        return {"seconds": took, "messages": sent, "bytes": sent * len(VALUE)}


class Paced:
    """A message per millisecond; how long until it is acknowledged."""

    def __init__(self, port: int, broker: str) -> None:
        (self._line,) = open_lines(broker, port, 1)

    def run(self, seconds: float) -> Measured:
        line, now = self._line, time.perf_counter
        gap = 1 / PACE_PER_SECOND
        waits: list[int] = []
        began = now()
        for number in range(int(seconds * PACE_PER_SECOND)):
            rest = began + number * gap - now()
            if rest > 0:
                time.sleep(rest)
            at = time.perf_counter_ns()
            line.socket.sendall(line.frame)
            while not receive(line):
                pass
            waits.append(time.perf_counter_ns() - at)
        return {"seconds": now() - began, "messages": len(waits), **percentiles_ms(waits)}


class Read:
    """Reads the same messages from the start in every slice."""

    def __init__(self, port: int, broker: str, messages: int) -> None:
        self._reader = protocol(broker).Reader(port, messages)

    def run(self, seconds: float) -> Measured:
        read, took = self._reader.read(seconds)
        return {"seconds": took, "messages": read, "bytes": read * len(VALUE)}
