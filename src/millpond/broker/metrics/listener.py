"""Where monitoring asks: /metrics, /healthz and /readyz over HTTP, answered by the node's own loop.

Small on purpose: a request is a line and some headers, its answer ends the connection. Everything is bounded: how
many may ask at once, how long a request may be and may take, how long an answer is offered to someone who does not
read it. Nothing can be changed here, and no record is shown.

A page in a browser could be made to ask a loopback address. Where that is what is listened on, the Host must be a
name of the loopback (else a foreign name could be pointed here: DNS rebinding); no page of another origin is answered
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from millpond.base.later import Later, done
from millpond.broker.metrics.exposition import CONTENT_TYPE
from millpond.broker.metrics.page import Collector, MetricsPage
from millpond.broker.metrics.readiness import unready_reason
from millpond.broker.metrics.steps import run_steps
from millpond.config.node import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.base.ports import Clock, Link, LinkHandler, Listener, Network, Timer
    from millpond.broker.services import Services

VISITS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_MS_MAX: Final = 5_000
"""So long a visitor may take to say what it wants."""

ANSWER_MS_MAX: Final = 30_000
"""So long an answer is waited for: what counts files and disks may be standing still with them."""

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
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


class Answer(NamedTuple):
    status: int
    parts: list[bytes]
    content_type: str = PLAIN


def sentence(status: int, text: str) -> Answer:
    return Answer(status, [text.encode(errors="replace") + b"\n"])


Route = Callable[[], Later[Answer]]


class MetricsListener:
    """Listens from `open` to `close`."""

    def __init__(self, broker: Services, more: Sequence[Collector] = ()) -> None:
        self._clock = broker.clock
        self._broker = broker
        self._page = MetricsPage(broker, more)
        self._visits: set[_Visit] = set()
        self._listener: Listener | None = None
        self._routes: Mapping[str, Route] = {
            "/metrics": self._metrics,
            "/healthz": lambda: done(sentence(200, "ok")),
            "/readyz": self._readiness,
        }

    def open(self, network: Network, host: str, port: int) -> tuple[str, int]:
        """Where it listens now. OSError when the address cannot be had."""
        self._listener = network.listen(host, port, self._accept)
        return self._listener.host, self._listener.port

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for visit in list(self._visits):
            visit.leave()

    def _accept(self, link: Link) -> LinkHandler | None:
        if len(self._visits) >= VISITS_MAX or self._listener is None:
            return None
        visit = _Visit(link, self._clock, self._route, is_loopback(self._listener.host), self._visits.discard)
        self._visits.add(visit)
        return visit

    def _route(self, path: str) -> Later[Answer]:
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(self._routes)
            return done(sentence(404, f"There is nothing at this address: there are {known}."))
        return route().recover(Exception, self._failed)

    def _metrics(self) -> Later[Answer]:
        return self._page.text().map(lambda parts: Answer(200, parts, CONTENT_TYPE))

    def _failed(self, failure: Exception) -> Answer:
        """Nothing was changed, so nothing is half done: a bug that only looks is no reason to end the node."""
        self._broker.journal("monitoring could not be answered: please report this", reason=repr(failure))
        return sentence(500, "This could not be answered; the node's journal says why.")

    def _readiness(self) -> Later[Answer]:
        def answer(reason: str | None) -> Answer:
            return sentence(200, "ready") if reason is None else sentence(503, f"not ready: {reason}")

        return run_steps(self._clock, unready_reason(self._broker)).map(answer)


class _Visit:
    """One connection: a request comes, its answer goes. Implements `base.ports.LinkHandler`."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        route: Callable[[str], Later[Answer]],
        is_local: bool,
        on_closed: Callable[[_Visit], None],
    ) -> None:
        self._link = link
        self._route = route
        self._is_local = is_local
        self._on_closed = on_closed
        self._buffer = bytearray(REQUEST_BYTES_MAX)
        self._length = 0
        self._clock = clock
        self._is_asked = False
        self._is_answered = False
        self._timer: Timer | None = clock.call_later(REQUEST_MS_MAX, self._on_slow)

    def buffer(self) -> memoryview:
        # Once it has asked nothing more is of interest.
        return memoryview(self._buffer)[0 if self._is_asked else self._length :]

    def received(self, count: int) -> None:
        if self._is_asked:
            return
        self._length += count
        end = self._buffer.find(_END, 0, self._length)
        if end >= 0:
            self._ask(bytes(self._buffer[:end]).decode("latin-1"))
        elif self._length == REQUEST_BYTES_MAX:
            self._refuse(431, f"A request may have {REQUEST_BYTES_MAX:,} bytes.")

    def drained(self) -> None: ...

    def closed(self) -> None:
        self._stop_timer()
        self._is_asked = self._is_answered = True
        self._on_closed(self)

    def leave(self) -> None:
        """The node ends: whoever was not answered is not answered any more."""
        self._link.abort()

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
            self._route(target.partition("?")[0]).then(lambda answer: self._send(answer, method == "GET"))

    def _begin(self) -> None:
        self._is_asked = True
        self._stop_timer()

    def _on_slow(self) -> None:
        self._timer = None
        self._refuse(408, "The request did not come in time.")

    def _on_late(self) -> None:
        self._timer = None
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
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {sum(map(len, answer.parts))}\r\n"
            "Cache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        self._link.send([head.encode(), *(answer.parts if has_body else ())])
        self._link.close()


def _headers(lines: list[str]) -> dict[str, str]:
    """The last of several with one name."""
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _refusal(headers: Mapping[str, str], is_local: bool) -> str | None:
    host = headers.get("host", "")
    if is_local and host not in LOOPBACK_NAMES and host.rpartition(":")[0] not in LOOPBACK_NAMES:
        return "This answers to 127.0.0.1 and localhost only: ask for it by these."
    if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "This was asked by a page of another origin."
    return None
