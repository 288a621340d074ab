"""A client of the wire protocol made of events: requests go out, replies or the loss of them come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any

from millpond.base.ports import Link, Timer
from millpond.sim.world.network import SimNetwork
from millpond.wire import messages
from millpond.wire.frames import FrameReader
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.messages import Message

_LENGTH = Struct(">i")
FRAME_BYTES_MAX = 64 << 20
SCRATCH_BYTES = 16 << 10

OnReply = Callable[[Any], None]
"""Gets the response, or None when it is lost: then nobody knows whether the request was served."""


@dataclass(slots=True)
class _InFlight:
    correlation_id: int
    api_key: int
    version: int
    on_reply: OnReply
    timer: Timer | None = None


class SimClient:
    """Requests to one node over one connection at a time; connects by itself when there is something to send."""

    def __init__(
        self, network: SimNetwork, host: str, port: int, name: str = "client", *, timeout_ms: int = 5_000
    ) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self.connections_made = 0
        self._network = network
        self._address = host, port
        self._link: _Channel | None = None
        self._correlation_id = 0

    @property
    def in_flight(self) -> int:
        return 0 if self._link is None else len(self._link.waiting)

    def send(self, request: Message, version: int, on_reply: OnReply, *, is_answered: bool = True) -> None:
        """Send; `on_reply` comes exactly once, with the response or with None. Replies come in the order of requests.

        A request that is not answered (produce with acks=0) is forgotten as soon as it is sent.
        """
        channel = self._link
        if channel is None:
            channel = self._connect()
        assert request.API_KEY is not None
        self._correlation_id += 1
        waiting = _InFlight(self._correlation_id, request.API_KEY, version, on_reply)
        header = encode_request_header(request.API_KEY, version, waiting.correlation_id, self.name)
        frame = header + request.encode(version)
        if is_answered:
            channel.waiting.append(waiting)
            waiting.timer = self._network.clock.call_later(self.timeout_ms, channel.give_up)
        channel.link.send([_LENGTH.pack(len(frame)), frame])

    def disconnect(self) -> None:
        """Break the connection off; what is in flight is lost."""
        if self._link is not None:
            self._link.give_up()

    def _connect(self) -> _Channel:
        self.connections_made += 1
        made: list[_Channel] = []

        def handler(link: Link) -> _Channel:
            made.append(_Channel(link, self._forget))
            return made[0]

        self._network.connect(*self._address, handler, source=self.name)
        self._link = made[0]
        return made[0]

    def _forget(self, channel: _Channel) -> None:
        if self._link is channel:
            self._link = None


class _Channel:
    """One connection and what is in flight on it."""

    def __init__(self, link: Link, forget: Callable[[_Channel], None]) -> None:
        self.link = link
        self.waiting: deque[_InFlight] = deque()
        self._forget = forget
        self._reader = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), FRAME_BYTES_MAX)

    def buffer(self) -> memoryview:
        return self._reader.buffer()

    def received(self, count: int) -> None:
        for frame in self._reader.advance(count):
            self._take(bytes(frame))

    def _take(self, frame: bytes) -> None:
        assert self.waiting, "a reply that nobody asked for"
        waiting = self.waiting.popleft()
        if waiting.timer is not None:
            waiting.timer.cancel()
        correlation_id, position = decode_response_header(frame, waiting.api_key, waiting.version)
        assert correlation_id == waiting.correlation_id, (
            f"reply {correlation_id} where {waiting.correlation_id} was due: replies left in a wrong order"
        )
        response_class = messages.response_class(waiting.api_key)
        response, end = response_class.decode(frame, waiting.version, position)
        assert end == len(frame), f"{len(frame) - end} bytes follow the {response_class.__name__}"
        waiting.on_reply(response)

    def drained(self) -> None: ...

    def closed(self) -> None:
        self._lose_all()

    def give_up(self) -> None:
        """A reply is overdue: nothing on this connection can be trusted to come."""
        self.link.abort()
        self._lose_all()

    def _lose_all(self) -> None:
        self._forget(self)
        lost, self.waiting = self.waiting, deque()
        for each in lost:
            if each.timer is not None:
                each.timer.cancel()
        for each in lost:
            each.on_reply(None)
