"""Connections of browsers: whoever does not take what it has asked for is given up, and nobody else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from millpond.console import connections
from millpond.console.connections import (
    CONNECTIONS_MAX,
    QUIET_SECONDS,
    STALLED_SECONDS,
    TAKEN_BYTES_MIN,
    BrowserConnection,
)
from millpond.console.streams import Event, EventStream, Streams

LARGE = 1 << 20


class Hands:
    """The hands of a clock, as far as a connection asks the loop for them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, then: Callable[[], None]) -> Any:
        timer = (self.now + seconds, then)
        self._timers.append(timer)
        return SimpleNamespace(cancel=lambda: self._timers.remove(timer))

    def turn(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and (first := min(self._timers, key=lambda each: each[0]))[0] <= end:
            self._timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


class Wire:
    """What a connection writes to; `unsent` is what its reader has not taken."""

    def __init__(self, address: str) -> None:
        self.unsent = 0
        self.is_aborted = False
        self._peer = (address, 1)

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return self._peer if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
def hands() -> Hands:
    return Hands()


Connect = Callable[..., tuple[BrowserConnection, Wire]]


@pytest.fixture
def connect(hands: Hands) -> Connect:
    config, state = uvicorn.Config(nothing, log_config=None, lifespan="off"), ServerState()

    def made(address: str = "127.0.0.1") -> tuple[BrowserConnection, Wire]:
        connection, wire = BrowserConnection(config, state, {}, hands), Wire(address)  # type: ignore[arg-type]
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire

    return made


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError


def answering(connection: BrowserConnection, wire: Wire, unsent: int) -> None:
    """It has been asked for something, of which so much waits to be taken."""
    connection.cycle = SimpleNamespace(response_complete=False, more_body=False)  # type: ignore[assignment]
    wire.unsent = unsent
    connection.pause_writing()


def test_a_client_that_reads_nothing_is_disconnected(connect: Connect, hands: Hands) -> None:
    connection, wire = connect()
    hands.turn(5)
    answering(connection, wire, LARGE)
    hands.turn(QUIET_SECONDS - 1)
    assert not wire.is_aborted
    hands.turn(2)
    assert wire.is_aborted
    assert connection not in connection.connections


def test_a_slow_reader_gets_its_whole_response(connect: Connect, hands: Hands) -> None:
    connection, wire = connect()
    answering(connection, wire, LARGE)
    while wire.unsent > TAKEN_BYTES_MIN:
        hands.turn(QUIET_SECONDS - 5)
        wire.unsent -= TAKEN_BYTES_MIN
    # It had all been written: what was quiet meanwhile was not the reader.
    connection.cycle.response_complete = True
    hands.turn(5)
    assert not wire.is_aborted
    wire.unsent = 0
    connection._has_begun = False
    connection.resume_writing()
    hands.turn(QUIET_SECONDS - 1)
    assert not wire.is_aborted, "it has its time for the next request"
    hands.turn(2)
    assert wire.is_aborted


def test_a_few_bytes_now_and_then_are_not_enough(connect: Connect, hands: Hands) -> None:
    connection, wire = connect()
    answering(connection, wire, LARGE)
    for _ in range(round(QUIET_SECONDS) + 1):
        hands.turn(1)
        wire.unsent -= 1
    assert wire.is_aborted


def test_a_slow_handler_is_waited_for(connect: Connect, hands: Hands) -> None:
    """A live view in which nothing happens: nothing waits to be taken."""
    connection, wire = connect()
    connection.cycle = SimpleNamespace(response_complete=False, more_body=False)  # type: ignore[assignment]
    hands.turn(100 * QUIET_SECONDS)
    assert not wire.is_aborted


def test_a_stalled_client_makes_room_for_others(connect: Connect, hands: Hands) -> None:
    unread = [connect() for _ in range(CONNECTIONS_MAX)]
    for connection, wire in unread:
        answering(connection, wire, LARGE)
    refused, _ = connect()
    assert refused.limit_concurrency == 0, "they may be about to take it"
    refused.give_up()
    hands.turn(STALLED_SECONDS)
    unread[7][1].unsent -= TAKEN_BYTES_MIN
    served, _ = connect()
    assert served.limit_concurrency is None
    assert sum(wire.is_aborted for _, wire in unread) == 1
    assert not unread[7][1].is_aborted


def test_one_address_locks_out_no_other(connect: Connect, hands: Hands) -> None:
    """It takes a little from every place, again and again: none of them is quiet or has stopped."""
    slow = [connect("10.0.0.9") for _ in range(CONNECTIONS_MAX)]
    for connection, wire in slow:
        answering(connection, wire, LARGE)
    hands.turn(STALLED_SECONDS - 1)
    # Those who come have not asked for anything yet, and so are quiet.
    served = [connect(f"10.0.0.{number}") for number in range(3)]
    assert sum(wire.is_aborted for _, wire in slow) == 3
    refused, _ = connect("10.0.0.9")
    assert refused.limit_concurrency == 0, "it has more than its share"
    for connection, wire in served:
        assert (connection.limit_concurrency, wire.is_aborted) == (None, False)


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("message", [GET, GET * 500], ids=["a live view", "many questions at once"])
def test_the_place_of_a_reader_that_stopped_is_free_again(monkeypatch: pytest.MonkeyPatch, message: bytes) -> None:
    """Over real sockets: it asks, once or many times before it reads anything, and then reads nothing."""
    monkeypatch.setattr(connections, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.05)
    streams, state = Streams(), ServerState()

    async def events() -> Any:
        while True:
            # As a look at a cluster does, it lets others have their turn.
            await asyncio.sleep(0)
            yield Event("look", "x" * 10_000)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(LARGE), "more_body": False})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (EventStream(streams, events()) if message == GET else large)(scope, receive, send)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=30)
        server = await loop.create_server(lambda: BrowserConnection(config, state, {}), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(message)
            while not state.tasks:
                await asyncio.sleep(0.01)
            while state.connections or state.tasks or streams.open_count:
                await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(play(), 30))
