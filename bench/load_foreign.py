"""The loads of brokers that do not speak Kafka's protocol, as like ours as their protocols let them be.

Each has messages ready as bytes and counts answers, so that a client costs next to nothing, as in `load_raw`: one
message in flight on each of many connections; one connection that has many in flight; and one message at a time at a
steady pace.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Protocol

from bench.load_raw import percentiles_ms
from bench.noise import Measured

TIMEOUT_SECONDS = 30.0
READ_BYTES = 1 << 18
VALUE = b"\0" + b"v" * 99
"""The byte at its beginning stands nowhere else in what a broker sends: it is counted to count messages."""

PACE_PER_SECOND = 1000
WINDOW = 5000
CHUNK = 500
"""Messages that one call hands over, and the most that have no answer yet."""


class Line(Protocol):
    """One connection that has been made ready to publish."""

    socket: socket.socket
    frame: bytes
    """One message."""

    def chunk(self, count: int) -> bytes:
        """So many messages as a client would hand them over at once."""
        ...

    def answered(self, data: bytes) -> int:
        """How many messages are acknowledged by what has come; raises where the broker refused one."""
        ...


class TokenCounter:
    """How often a word stands in what comes piece by piece."""

    def __init__(self, word: bytes, error: bytes) -> None:
        self._word = word
        self._error = error
        self._rest = b""

    def count(self, data: bytes) -> int:
        whole = self._rest + data
        if self._error in whole:
            raise RuntimeError(f"the broker refused: {whole[:200]!r}")
        found = whole.count(self._word)
        counted = whole.rfind(self._word) + len(self._word) if found else 0
        # A word of which only the beginning has come is counted with the next piece, and none twice.
        from_ = max(len(whole) - max(len(self._word), len(self._error)) + 1, counted)
        self._rest = whole[from_:]
        return found


def connected(host: str, port: int) -> socket.socket:
    made = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def received(line: Line) -> int:
    data = line.socket.recv(READ_BYTES)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return line.answered(data)


class One:
    """One message in flight on each connection."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = {each.socket.fileno(): each for each in lines}
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
                if not received(line):
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

    def __init__(self, line: Line, bytes_max: int) -> None:
        self._line = line
        self._chunk = line.chunk(CHUNK)
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
                answered += received(line)
        while answered < sent:
            answered += received(line)
        took = time.perf_counter() - began
        return {"seconds": took, "messages": sent, "bytes": sent * len(VALUE)}


class Paced:
    """A message every millisecond; how long until it is acknowledged."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def run(self, seconds: float) -> Measured:
        line, now = self._line, time.perf_counter
        gap = 1 / PACE_PER_SECOND
        waits: list[int] = []
        began = now()
        for place in range(int(seconds * PACE_PER_SECOND)):
            rest = began + place * gap - now()
            if rest > 0:
                time.sleep(rest)
            at = time.perf_counter_ns()
            line.socket.sendall(line.frame)
            while not received(line):
                pass
            waits.append(time.perf_counter_ns() - at)
        return {"seconds": now() - began, "messages": len(waits), **percentiles_ms(waits)}


def lines_of(make: Callable[[], Line], connections: int) -> list[Line]:
    """Each has published a message before anything is measured."""
    found = []
    for _ in range(connections):
        line = make()
        line.socket.sendall(line.frame)
        while not received(line):
            pass
        found.append(line)
    return found
