"""Loads on a Redis stream, by plain sockets: XADD and XREAD."""

from __future__ import annotations

import socket
import time

from bench.load_foreign import CHUNK, READ_BYTES, VALUE, Bulk, One, Paced, TokenCounter, connected, lines_of
from bench.node import HOST
from bench.noise import Measured

READ_COUNT = 5000
FIRST_ID = 10_000_000
"""All ids have as many digits, so that all entries have the same size."""


def command(*words: bytes | str | int) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RedisLine:
    def __init__(self, port: int, stream: str) -> None:
        self.socket: socket.socket = connected(HOST, port)
        self.frame = command("XADD", stream, "*", "v", VALUE)
        # An answer is the id of the entry, and `$` begins it.
        self._answers = TokenCounter(b"$", b"-ERR")

    def chunk(self, count: int) -> bytes:
        return self.frame * count

    def answered(self, data: bytes) -> int:
        return self._answers.count(data)


class RedisOne(One):
    def __init__(self, port: int, connections: int) -> None:
        super().__init__(lines_of(lambda: RedisLine(port, "one"), connections))


class RedisBulk(Bulk):
    def __init__(self, port: int, bytes_max: int) -> None:
        super().__init__(lines_of(lambda: RedisLine(port, "bulk"), 1)[0], bytes_max)


class RedisPaced(Paced):
    def __init__(self, port: int) -> None:
        super().__init__(lines_of(lambda: RedisLine(port, "paced"), 1)[0])


class RedisRead:
    """Reads a stream over and over, thousands of entries a call."""

    def __init__(self, port: int, messages: int) -> None:
        self._socket = connected(HOST, port)
        self._messages = messages // READ_COUNT * READ_COUNT or READ_COUNT
        line = RedisLine(port, "read")
        sent = answered = 0
        while answered < self._messages:
            if sent < self._messages:
                numbers = range(sent, min(sent + CHUNK, self._messages))
                line.socket.sendall(
                    b"".join(command("XADD", "read", f"{FIRST_ID + place}-0", "v", VALUE) for place in numbers)
                )
                sent += len(numbers)
            answered += line.answered(line.socket.recv(READ_BYTES))

    def run(self, seconds: float) -> Measured:
        began = time.perf_counter()
        deadline = began + seconds
        read = 0
        while time.perf_counter() < deadline:
            after = FIRST_ID + read % self._messages - 1
            self._socket.sendall(command("XREAD", "COUNT", READ_COUNT, "STREAMS", "read", f"{after}-0"))
            left = READ_COUNT
            while left > 0:
                data = self._socket.recv(READ_BYTES)
                if not data or data.startswith(b"-ERR"):
                    raise RuntimeError(f"Redis did not answer XREAD: {data[:200]!r}")
                left -= data.count(b"\0")
            self._end()
            read += READ_COUNT
        took = time.perf_counter() - began
        return {"seconds": took, "messages": read, "bytes": read * len(VALUE)}

    def _end(self) -> None:
        """What comes after the last value's first byte."""
        self._socket.sendall(command("PING"))
        rest = b""
        while not rest.endswith(b"+PONG\r\n"):
            rest = (rest + self._socket.recv(READ_BYTES))[-16:]
