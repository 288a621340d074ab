"""The real network: sockets that listen and sockets that connect; each connection becomes a link."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable

from millpond.base.ports import Link, LinkHandler
from millpond.node.link import LostLink, OnFault, SocketLink, plain_host

BACKLOG = 1024
ACCEPTS_PER_WAKE = 64

EXHAUSTED_PAUSE_SECONDS = 0.2
"""Out of descriptors, accepting again at once would only burn the core that could free some."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Accept = Callable[[Link], LinkHandler | None]


class SocketListener:
    """Accepts connections on one address until closed."""

    def __init__(self, network: SocketNetwork, sock: socket.socket, accept: Accept) -> None:
        self.host, self.port = sock.getsockname()[:2]
        self._network = network
        self._loop = network.loop
        self._socket = sock
        self._accept = accept
        self._reserve = _open_reserve()
        self._open = True
        self._listen()

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._socket.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            if not self._open:
                return
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(error)
                return
            self._network.adopt(sock, address, self._accept)

    def _pause(self, error: OSError) -> None:
        """Turn one peer away with the descriptor kept for that, then leave the rest in the backlog for a moment."""
        if error.errno in _EXHAUSTED and self._reserve is not None:
            os.close(self._reserve)
            with contextlib.suppress(OSError):
                self._socket.accept()[0].close()
            self._reserve = _open_reserve()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(EXHAUSTED_PAUSE_SECONDS, self._listen)
        self._network.on_fault(None, error)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._reserve is not None:
            os.close(self._reserve)


class SocketNetwork:
    """The network port over the machine's own sockets.

    `on_fault(link, error)` hears of everything that went wrong on a link: a `RemoteError` is the peer's fault, an
    OSError that of the world. The link is closed either way, and only it. Any other error is a bug and reaches the
    loop. `sendfile=False` copies through Python.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, on_fault: OnFault, sendfile: bool = True) -> None:
        self.loop = loop
        self.on_fault = on_fault
        self._sendfile = sendfile

    def listen(self, host: str, port: int, accept: Accept) -> SocketListener:
        family, address = _resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # One wildcard socket serves both families.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return SocketListener(self, sock, accept)

    def connect(self, host: str, port: int, make_handler: Callable[[Link], LinkHandler]) -> SocketLink | LostLink:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            # No descriptor is free now. To whoever asks that is a peer that cannot be reached.
            self.on_fault(None, error)
            lost = LostLink(self.loop, f"{host}:{port}")
            lost.start(make_handler(lost))
            return lost
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Whether it came to anything, the first read or write tells.
        sock.connect_ex(address)
        link = SocketLink(self.loop, sock, f"{host}:{port}", self._sendfile, self.on_fault)
        link.start(make_handler(link))
        return link

    def adopt(self, sock: socket.socket, address: tuple[str, int], accept: Accept) -> None:
        """Make a link of an accepted socket, if `accept` wants it."""
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer = f"{plain_host(address[0])}:{address[1]}"
            link = SocketLink(self.loop, sock, peer, self._sendfile, self.on_fault)
        except OSError:
            # Gone before it was ours.
            sock.close()
            return
        handler = accept(link)
        if handler is None:
            link.abort()
        else:
            link.start(handler)


def _resolve(host: str, port: int) -> tuple[int, tuple[object, ...]]:
    """The address to bind. A name with both kinds of address gets the IPv4 one, which every client tries."""
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = addresses[0]
    return family, address


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
