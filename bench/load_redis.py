"""The protocol of a Redis stream on plain sockets: XADD and XREAD."""

from __future__ import annotations

import socket
import time

from bench.load_foreign import CHUNK, READ_BYTES, VALUE, TokenCounter, connect
from bench.node import HOST

STREAM = "race"
READ_COUNT = 5000
FIRST_ID = 10_000_000
"""All ids have the same number of digits, so that all entries have the same size."""


def prepare(port: int) -> None:
    """The first XADD creates the stream."""


def command(*words: bytes | str | int) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Line:
    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(HOST, port)
        self.frame = command("XADD", STREAM, "*", "v", VALUE)
        # An answer is the id of the entry, which begins with `$`.
        self._answers = TokenCounter(b"$", b"-ERR")

    def chunk(self, count: int) -> bytes:
        return self.frame * count

    def answered(self, data: bytes) -> int:
        return self._answers.count(data)


class Reader:
    """Reads a stream in a loop, thousands of entries per call."""

    def __init__(self, port: int, messages: int) -> None:
        self._socket = connect(HOST, port)
        self._messages = messages // READ_COUNT * READ_COUNT or READ_COUNT
        line = Line(port)
        sent = answered = 0
        while answered < self._messages:
            numbers = range(sent, min(sent + CHUNK, self._messages))
            entries = (command("XADD", STREAM, f"{FIRST_ID + number}-0", "v", VALUE) for number in numbers)
            line.socket.sendall(b"".join(entries))
            sent += len(numbers)
            answered += line.answered(line.socket.recv(READ_BYTES))

    def read(self, seconds: float) -> tuple[int, float]:
        began = time.perf_counter()
        read = 0
        while time.perf_counter() - began < seconds:
            after = FIRST_ID + read % self._messages - 1
            self._socket.sendall(command("XREAD", "COUNT", READ_COUNT, "STREAMS", STREAM, f"{after}-0"))
            left = READ_COUNT
            while left > 0:
                data = self._socket.recv(READ_BYTES)
                if not data or data.startswith(b"-ERR"):
                    raise RuntimeError(f"Redis did not answer XREAD: {data[:200]!r}")
                left -= data.count(b"\0")
            self._skip_rest()
            read += READ_COUNT
        return read, time.perf_counter() - began

    def _skip_rest(self) -> None:
        """Read what follows the first byte of the last value."""
        self._socket.sendall(command("PING"))
        rest = b""
        while not rest.endswith(b"+PONG\r\n"):
            rest = (rest + self._socket.recv(READ_BYTES))[-16:]
