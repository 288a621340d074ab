"""One monitoring connection: a single HTTP request and its response.

Implements the small part of HTTP/1.1 that is needed: a request line and headers. The size of a request, the time to
receive it, the time to answer it and the time without any progress in sending are all limited. A slow reader may take
as long as it needs while it keeps reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from millpond.base.named_tuple import NamedTuple
from millpond.broker.metrics.page import GZIP
from millpond.config.node import is_loopback

if TYPE_CHECKING:
    from millpond.base.later import Later
    from millpond.base.ports import Clock, Link, Timer

REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_MS_MAX: Final = 5_000
"""How long a client may take to send its request."""

ANSWER_MS_MAX: Final = 30_000
"""How long building a response may take: collectors that read the disk hang if the disk does."""

STALL_MS: Final = 30_000
"""A client that reads nothing for this long is disconnected. The kernel buffers megabytes at a time, so a shorter
limit would cut off slow readers."""

METHODS: Final = ("GET", "HEAD")
PLAIN: Final = "text/plain; charset=utf-8"

_END: Final = b"\r\n\r\n"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Request(NamedTuple):
    path: str
    takes_gzip: bool


class Answer(NamedTuple):
    status: int
    parts: list[bytes]
    content_type: str = PLAIN
    encoding: str = ""


def sentence(status: int, text: str) -> Answer:
    return Answer(status, [text.encode(errors="replace") + b"\n"])


class Visit:
    """Implements `base.ports.LinkHandler`."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        answer: Callable[[Visit, Request], Later[Answer]],
        is_local: bool,
        on_closed: Callable[[Visit], None],
    ) -> None:
        self.is_asked = False
        """Whether the request has arrived."""
        self._link = link
        self._clock = clock
        self._answer = answer
        self._is_local = is_local
        self._on_closed = on_closed
        self._buffer = bytearray(REQUEST_BYTES_MAX)
        self._length = 0
        self._pending: Later[Answer] | None = None
        self._is_answered = False
        self._offered_ms: int | None = None
        self._left_bytes = 0
        self._timer: Timer | None = clock.call_later(REQUEST_MS_MAX, self._on_slow)

    def reading_ms(self) -> int:
        """How long the client has been reading the response; 0 if it was sent in one go or is not ready."""
        return 0 if self._offered_ms is None else self._clock.monotonic_ms() - self._offered_ms

    def buffer(self) -> memoryview:
        # Bytes after the request are discarded.
        return memoryview(self._buffer)[0 if self.is_asked else self._length :]

    def received(self, count: int) -> None:
        if self.is_asked:
            return
        self._length += count
        end = self._buffer.find(_END, 0, self._length)
        if end >= 0:
            self._ask(bytes(self._buffer[:end]).decode("latin-1"))
        elif self._length == REQUEST_BYTES_MAX:
            self._refuse(431, f"A request may have {REQUEST_BYTES_MAX:,} bytes.")

    def drained(self) -> None:
        if self._is_answered:
            self._stop_timer()
            self._link.close()

    def closed(self) -> None:
        self._end()
        self._on_closed(self)

    def leave(self) -> None:
        """Disconnect now, without sending an outstanding response."""
        self._end()
        self._link.abort()

    def _end(self) -> None:
        self._stop_timer()
        self.is_asked = self._is_answered = True
        if self._pending is not None:
            self._pending.cancel()

    def _ask(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._refuse(400, "This is no request of HTTP/1.1.")
            return
        method, target, _ = words
        headers = _headers(lines)
        refusal = _refusal(headers, self._is_local)
        if refusal is not None:
            self._refuse(403, refusal)
        elif method not in METHODS:
            self._refuse(405, "There is nothing here but to look: GET.")
        else:
            self._begin()
            self._timer = self._clock.call_later(ANSWER_MS_MAX, self._on_late)
            request = Request(target.partition("?")[0], _takes_gzip(headers))
            self._pending = self._answer(self, request)
            self._pending.then(lambda answer: self._send(answer, method == "GET"))

    def _begin(self) -> None:
        self.is_asked = True
        self._stop_timer()

    def _on_slow(self) -> None:
        self._timer = None
        self._refuse(408, "The request did not come in time.")

    def _on_late(self) -> None:
        self._timer = None
        assert self._pending is not None
        self._pending.cancel()
        self._send(sentence(503, "The answer takes too long: a disk may be standing still."))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, text: str) -> None:
        self._begin()
        self._send(sentence(status, text))

    def _send(self, answer: Answer, has_body: bool = True) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        self._stop_timer()
        encoded = f"Content-Encoding: {answer.encoding}\r\n" if answer.encoding else ""
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"{encoded}"
            f"Content-Length: {sum(map(len, answer.parts))}\r\n"
            "Cache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        self._link.send([head.encode(), *(answer.parts if has_body else ())])
        if not self._link.unsent_bytes():
            self._link.close()
            return
        # Closing the link now, or reading that the client has closed its side, would leave only seconds to send the
        # rest. A paused link does not see the client's close.
        self._link.pause_reading()
        self._offered_ms = self._clock.monotonic_ms()
        self._offer()

    def _offer(self) -> None:
        self._left_bytes = self._link.unsent_bytes()
        self._timer = self._clock.call_later(STALL_MS, self._look)

    def _look(self) -> None:
        """Wait again if the client has read something since the last check; otherwise disconnect."""
        if self._link.unsent_bytes() < self._left_bytes:
            self._offer()
        else:
            self._timer = None
            self._link.abort()


def _headers(lines: list[str]) -> dict[str, str]:
    """Headers by lower-case name; the last of a repeated header counts."""
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _refusal(headers: Mapping[str, str], is_local: bool) -> str | None:
    if is_local and not _names_loopback(headers.get("host", "")):
        return "This answers to the loopback only: ask for it as 127.0.0.1 or localhost."
    if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "This was asked by a page of another origin."
    return None


def _names_loopback(host: str) -> bool:
    """Ignores the port, which may have been forwarded."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower().removesuffix("."))


def _takes_gzip(headers: Mapping[str, str]) -> bool:
    for each in headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = each.replace(" ", "").partition(";q=")
        if name == GZIP:
            # A weight of nothing (0, 0.0 …) is a refusal.
            return weight.strip("0.") != "" or weight == ""
    return False
