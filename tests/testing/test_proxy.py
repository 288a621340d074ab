"""What the proxy does to the bytes between two sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from millpond.testing.ports import HOST
from millpond.testing.proxy import Proxy

SOME = 5.0
"""Seconds after which a test has failed."""


class Echo:
    """A server that says back what it hears, and counts its connections."""

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        self.ended = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        try:
            while data := link.recv(1 << 16):
                link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            self.ended += 1
        except OSError:
            pass

    def close(self) -> None:
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
        for link in (self.listener, *self.open):
            link.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    made = Proxy()
    made.open(echo.port)
    yield made
    made.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), SOME)


def received(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        assert part, f"the connection ended after {len(data)} bytes"
        data += part
    return data


def say(link: socket.socket, data: bytes) -> float:
    """The seconds until all of it has come back."""
    began = time.monotonic()
    link.sendall(data)
    assert received(link, len(data)) == data
    return time.monotonic() - began


def test_bytes_pass_both_ways_and_so_does_their_end(proxy: Proxy) -> None:
    with connect(proxy) as link:
        say(link, b"hello")
        link.sendall(b"bye")
        link.shutdown(socket.SHUT_WR)
        assert received(link, 3) == b"bye"
        assert link.recv(1) == b""


def test_data_passes_although_it_is_read_late(proxy: Proxy) -> None:
    data = bytes(range(256)) * 65_536
    with connect(proxy) as link:
        writer = threading.Thread(target=link.sendall, args=(data,))
        writer.start()
        time.sleep(0.1)
        assert received(link, len(data)) == data
        writer.join()


def test_a_delay_is_added_to_every_round_trip_until_it_is_taken_back(proxy: Proxy) -> None:
    with connect(proxy) as link:
        say(link, b"warm")
        proxy.delay(200)
        assert say(link, b"slow") >= 0.2
        proxy.delay(0)
        # Held back none could be as quick; a busy machine may take several.
        assert any(say(link, b"quick") < 0.2 for _ in range(200))


def test_what_is_held_back_keeps_its_order_when_the_delay_ends(proxy: Proxy) -> None:
    with connect(proxy) as link:
        proxy.delay(60_000)
        for number in range(50):
            link.sendall(b"%03d" % number)
            time.sleep(0.001)
        proxy.delay(0)
        link.sendall(b"end")
        assert received(link, 153) == b"".join(b"%03d" % number for number in range(50)) + b"end"


def test_a_reset_is_a_reset_and_the_next_connection_works(proxy: Proxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        say(first, b"a")
        say(second, b"b")
        assert proxy.reset_all() == 2
        for link in (first, second):
            with pytest.raises(ConnectionResetError):
                link.recv(1)
    with connect(proxy) as again:
        say(again, b"c")
    assert proxy.reset_all() <= 1


def test_half_open_says_nothing_more_but_others_do(proxy: Proxy) -> None:
    with connect(proxy) as dead, connect(proxy) as also_dead:
        say(dead, b"a")
        say(also_dead, b"b")
        assert proxy.half_open_all() == 2
        dead.sendall(b"anybody there?")
        dead.settimeout(0.2)
        with pytest.raises(TimeoutError):
            dead.recv(1)
        with connect(proxy) as alive:
            say(alive, b"c")
            assert proxy.half_open_all() == 1


@pytest.mark.parametrize("way", ["to_node", "to_client"])
def test_a_cut_carries_nothing_that_way_and_all_of_it_after_it_is_healed(proxy: Proxy, way: str) -> None:
    before = connect(proxy)
    say(before, b"here")
    proxy.cut(**{way: True})
    with connect(proxy) as after, before:
        for link in (before, after):
            link.sendall(b"lost?")
            link.settimeout(0.2)
            with pytest.raises(TimeoutError):
                link.recv(1)
        proxy.heal()
        for link in (before, after):
            link.settimeout(SOME)
            assert received(link, 5) == b"lost?"
            say(link, b"again")


def test_a_cut_to_the_client_lets_the_node_hear(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as link:
        say(link, b"here")
        proxy.cut(to_client=True)
        link.sendall(b"bye")
        link.shutdown(socket.SHUT_WR)
        # The node hears the end and says its own; only the client does not learn of it.
        deadline = time.monotonic() + SOME
        while echo.ended < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            link.recv(1)


def test_shut_refuses_and_open_listens_on_the_same_port(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as link:
        say(link, b"a")
        proxy.shut()
        with pytest.raises(ConnectionResetError):
            link.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.open(echo.port)
    with connect(proxy) as link:
        say(link, b"b")


def test_reject_refuses_until_it_is_healed(proxy: Proxy, echo: Echo) -> None:
    with socket.create_connection((HOST, proxy.port), SOME) as client:
        client.sendall(b"one")
        assert client.recv(10) == b"one"
        proxy.reject()
        with pytest.raises(ConnectionResetError):
            client.recv(10)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, proxy.port), SOME)
    # A node that starts meanwhile is not reached either.
    proxy.shut()
    proxy.open(echo.port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, proxy.port), SOME)
    proxy.heal()
    with socket.create_connection((HOST, proxy.port), SOME) as client:
        client.sendall(b"two")
        assert client.recv(10) == b"two"


def test_without_a_node_behind_it_a_connection_is_reset(proxy: Proxy, echo: Echo) -> None:
    echo.close()
    with pytest.raises(ConnectionResetError), connect(proxy) as link:
        link.recv(1)


def test_connections_that_ended_are_forgotten_on_both_sides(proxy: Proxy, echo: Echo) -> None:
    for _ in range(5):
        with connect(proxy) as link:
            say(link, b"x")
    deadline = time.monotonic() + SOME
    while proxy.count() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert proxy.count() == 0
    assert len(echo.open) == 5
