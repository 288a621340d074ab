"""Requests to one other node over the network port, each with a correlation id and a deadline.

Responses come in the order of the requests. An overdue response closes the connection, because those behind it cannot
be expected either; the next request opens a new one. On a connection that is shared by many clients a timeout fails
only its own request: the others keep waiting, and new requests use a new connection. An exclusive connection has one
request at a time: a further one closes it and uses a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field
from struct import Struct
from typing import Any

from millpond.base.errors import MalformedMessage
from millpond.base.later import Later
from millpond.base.ports import Clock, Link, Network, Timer
from millpond.base.values import dataclass
from millpond.wire import messages
from millpond.wire.frames import FrameReader, SpareRoom
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.messages import Message

_LENGTH = Struct(">i")
FRAME_BYTES_MAX = 64 << 20
FRAME_BYTES_ANY = (1 << 31) - 1
"""For responses that may be as large as the largest batch. Memory is allocated as the data arrives."""
SCRATCH_BYTES = 16 << 10
SPARE_BYTES_MAX = 12 << 20
"""Buffer memory of large responses that is kept for reuse: enough for one fetch."""


class RequestLost(Exception):
    """No response will come; the request may or may not have been served."""

    def __init__(self, message: str, *, is_cut: bool = False) -> None:
        super().__init__(message)
        self.is_cut = is_cut
        """Whether the connection was closed or refused; False after a timeout."""


@dataclass(slots=True)
class _InFlight:
    correlation_id: int
    api_key: int
    version: int
    response: Later[Any] = field(default_factory=Later)
    timer: Timer | None = None


class Requester:
    """One connection at a time, opened on the first request.

    With `for_bulk` it accepts responses of any size, and does not time out while data keeps arriving. With
    `is_shared` the requests are independent, and a timeout of one must not cost another its response. With
    `is_exclusive` each request supersedes the one before it.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        host: str,
        port: int,
        client_id: str,
        *,
        for_bulk: bool = False,
        is_shared: bool = False,
        is_exclusive: bool = False,
    ) -> None:
        self._for_bulk = for_bulk
        self._is_exclusive = is_exclusive
        self.client_id = client_id
        self.is_shared = is_shared
        self.connections_made = 0
        self._network = network
        self._clock = clock
        self._address = host, port
        self._connection: _Connection | None = None
        self._overdue: set[_Connection] = set()
        """Connections with a timed-out request and others still pending."""
        self._correlation_id = 0

    @property
    def in_flight(self) -> int:
        return 0 if self._connection is None else len(self._connection.in_flight)

    def ask(self, request: Message, version: int, timeout_ms: int, client_id: str | None = None) -> Later[Any]:
        """The response, or RequestLost, also on timeout. `client_id` replaces the usual one."""
        if self._is_exclusive and self._connection is not None and self._connection.in_flight:
            self._connection.give_up()
        connection, asked = self._send(request, version, client_id or self.client_id)
        connection.in_flight.append(asked)
        self._wait(connection, asked, timeout_ms)
        return asked.response

    def _wait(self, connection: _Connection, asked: _InFlight, timeout_ms: int) -> None:
        before = connection.bytes_received

        def time_is_up() -> None:
            if self._for_bulk and connection.bytes_received != before:
                # A slow network, not a dead peer: after an abort the same request would be repeated forever.
                self._wait(connection, asked, timeout_ms)
            else:
                self._on_overdue(connection, asked)

        asked.timer = self._clock.call_later(timeout_ms, time_is_up)

    def tell(self, request: Message, version: int) -> None:
        """Send a request that gets no response (produce with acks=0)."""
        self._send(request, version, self.client_id)

    def disconnect(self) -> None:
        """Abort the connection; requests in flight are lost."""
        for connection in [*self._overdue, self._connection]:
            if connection is not None:
                connection.give_up()

    def _on_overdue(self, connection: _Connection, asked: _InFlight) -> None:
        if not self.is_shared:
            connection.give_up()
            return
        self._forget(connection)
        self._overdue.add(connection)
        connection.abandon(asked)

    def _send(self, request: Message, version: int, client_id: str) -> tuple[_Connection, _InFlight]:
        assert request.API_KEY is not None
        connection = self._connection or self._connect()
        self._correlation_id += 1
        asked = _InFlight(self._correlation_id, request.API_KEY, version)
        frame = encode_request_header(request.API_KEY, version, asked.correlation_id, client_id) + request.encode(
            version
        )
        connection.link.send([_LENGTH.pack(len(frame)) + frame])
        return connection, asked

    def _connect(self) -> _Connection:
        self.connections_made += 1
        made: list[_Connection] = []

        def handler(link: Link) -> _Connection:
            frame_bytes_max = FRAME_BYTES_ANY if self._for_bulk else FRAME_BYTES_MAX
            made.append(_Connection(link, self._forget, frame_bytes_max))
            return made[0]

        self._network.connect(*self._address, handler)
        self._connection = made[0]
        return made[0]

    def _forget(self, connection: _Connection) -> None:
        self._overdue.discard(connection)
        if self._connection is connection:
            self._connection = None


class _Connection:
    """One connection and its requests in flight."""

    def __init__(self, link: Link, forget: Callable[[_Connection], None], frame_bytes_max: int) -> None:
        self.link = link
        self.bytes_received = 0
        self.in_flight: deque[_InFlight] = deque()
        self._forget = forget
        self._is_given_up = False
        self._is_overdue = False
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._reader = FrameReader(self._scratch, frame_bytes_max, SpareRoom(SPARE_BYTES_MAX))

    def buffer(self) -> memoryview:
        return self._reader.buffer()

    def received(self, count: int) -> None:
        self.bytes_received += count
        for frame in self._reader.advance(count):
            # A frame in the scratch buffer is valid only during this call; a large one has a separate buffer.
            self._take(memoryview(bytes(frame)) if frame.obj is self._scratch.obj else frame)

    def _take(self, frame: memoryview) -> None:
        if not self.in_flight:
            raise MalformedMessage("a response without a request")
        asked = self.in_flight[0]
        correlation_id, position = decode_response_header(frame, asked.api_key, asked.version)
        if correlation_id != asked.correlation_id:
            raise MalformedMessage(f"response {correlation_id} where {asked.correlation_id} was due")
        response_class = messages.response_class(asked.api_key)
        response, end = response_class.decode(frame, asked.version, position)
        if end != len(frame):
            raise MalformedMessage(f"{len(frame) - end} bytes follow the {response_class.__name__}")
        self.in_flight.popleft()
        if asked.timer is not None:
            asked.timer.cancel()
        asked.response.finish(response)
        if self._is_overdue:
            self._end_unless_waited_for()

    def abandon(self, asked: _InFlight) -> None:
        """Fail one timed-out request. Nothing more is sent on this connection, but other pending requests may still
        get their responses."""
        self._is_overdue = True
        asked.response.fail(RequestLost(f"no answer from {self.link.peer}"))
        self._end_unless_waited_for()

    def _end_unless_waited_for(self) -> None:
        if all(each.response.ended for each in self.in_flight):
            self.give_up()

    def drained(self) -> None: ...

    def closed(self) -> None:
        self._lose_all(is_cut=not self._is_given_up)

    def give_up(self) -> None:
        self._is_given_up = True
        self.link.abort()
        self._lose_all(is_cut=False)

    def _lose_all(self, *, is_cut: bool) -> None:
        self._forget(self)
        lost, self.in_flight = self.in_flight, deque()
        for asked in lost:
            if asked.timer is not None:
                asked.timer.cancel()
        for asked in lost:
            asked.response.fail(RequestLost(f"no answer from {self.link.peer}", is_cut=is_cut))
