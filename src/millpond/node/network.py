"""The real network: sockets that listen and sockets that connect; each connection becomes a link."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Link, LinkHandler
from millpond.base.tls import ClientTls, ServerTls
from millpond.broker.security.fair_queue import FairQueue
from millpond.node.accept_pace import AcceptPace
from millpond.node.link import LostLink, OnFault, SendTurns, SocketLink, plain_host
from millpond.node.tls_contexts import OnReload, TlsContext
from millpond.node.tls_link import TlsLink
from millpond.node.workers import ThreadWorkers

BACKLOG = 1024
EXHAUSTED_PAUSE_SECONDS = 0.2
"""Out of descriptors, accepting again at once would only burn the core that could free some."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

HANDSHAKE_THREADS = 1
"""Of each listener, and of all that we connect to. However many strangers want to agree on keys, they take no more
than one core, never the loop's time, and none from another listener."""

SCRATCH_BYTES = 64 << 10
"""What all encrypted links read into, before it is decrypted. OpenSSL keeps as much memory for each of them."""

Accept = Callable[[Link], LinkHandler | None]


class Tls(NamedTuple):
    """With what a listener, or a kind of connection, is encrypted."""

    context: TlsContext
    handshakes: FairQueue
    handshake_ms_max: int


class SocketListener:
    """Accepts connections on one address until closed."""

    def __init__(
        self, network: SocketNetwork, sock: socket.socket, accept: Accept, name: str, tls: Tls | None
    ) -> None:
        self.host, self.port = sock.getsockname()[:2]
        self._network = network
        self._loop = network.loop
        self._socket = sock
        self._accept = accept
        self._name = name
        self._tls = tls
        self._reserve = _open_reserve()
        self._pace = AcceptPace(time.monotonic(), time.thread_time())
        self._open = True
        self._listen()

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._socket.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        """Let one in. Whoever else waits comes in the next turn of the loop: those who work have it in between."""
        try:
            sock, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(error)
            return
        self._network.adopt(sock, address, self._accept, self._name, self._tls)
        rest_seconds = self._pace.rest_seconds(time.monotonic(), time.thread_time())
        if rest_seconds:
            self._rest(rest_seconds)

    def _pause(self, error: OSError) -> None:
        """Turn one peer away with the descriptor kept for that, then leave the rest in the backlog for a moment."""
        if error.errno in _EXHAUSTED and self._reserve is not None:
            os.close(self._reserve)
            with contextlib.suppress(OSError):
                self._socket.accept()[0].close()
            self._reserve = _open_reserve()
        self._rest(EXHAUSTED_PAUSE_SECONDS)
        self._network.on_fault(None, error)

    def _rest(self, seconds: float) -> None:
        """Let nobody in for a moment; they wait in the kernel."""
        if not self._open:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(seconds, self._listen)

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
    `on_reload` hears of certificates that were read again, or could not be.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_fault: OnFault,
        sendfile: bool = True,
        on_reload: OnReload | None = None,
    ) -> None:
        self.loop = loop
        self.on_fault = on_fault
        self._turns = SendTurns(loop)
        self._sendfile = sendfile
        self._on_reload = on_reload or (lambda *_: None)
        self._as_client: dict[ClientTls, Tls] = {}
        self._scratch = memoryview(b"")

    def listen(
        self, host: str, port: int, accept: Accept, tls: ServerTls | None = None, name: str = ""
    ) -> SocketListener:
        """OSError where the address cannot be had, or the files of `tls` cannot be used."""
        own = None if tls is None else self._new_tls(tls)
        family, address = _resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Those that are accepted inherit these.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if family == socket.AF_INET6:
                # One wildcard socket serves both families.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return SocketListener(self, sock, accept, name, own)

    def connect(
        self, host: str, port: int, make_handler: Callable[[Link], LinkHandler], tls: ClientTls | None = None
    ) -> SocketLink | LostLink:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            )[0]
            own = None if tls is None else self._client_tls(tls)
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            # No descriptor is free now, no certificate, or a name in place of an address. To whoever asks that is a
            # peer that cannot be reached.
            self.on_fault(None, error)
            lost = LostLink(self.loop, f"{host}:{port}")
            lost.start(make_handler(lost))
            return lost
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Whether it came to anything, the first read or write tells.
        sock.connect_ex(address)
        link = self._new_link(sock, f"{host}:{port}", own, host)
        link.start(make_handler(link))
        return link

    def adopt(
        self, sock: socket.socket, address: tuple[str, int], accept: Accept, name: str, tls: Tls | None
    ) -> None:
        """Make a link of an accepted socket, if `accept` wants it."""
        try:
            sock.setblocking(False)
            peer = f"{plain_host(address[0])}:{address[1]}"
            link = self._new_link(sock, peer, tls)
            link.listener = name
        except OSError:
            # Gone before it was ours.
            sock.close()
            return
        handler = accept(link)
        if handler is None:
            link.abort()
        else:
            link.start(handler)

    def _new_link(self, sock: socket.socket, peer: str, tls: Tls | None, host: str | None = None) -> SocketLink:
        """`host` is the one that was asked for, where we connect."""
        if tls is None:
            return SocketLink(self.loop, sock, peer, self._sendfile, self.on_fault, self._turns)

        def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
            context = tls.context.current()
            return context.wrap_bio(incoming, outgoing, server_side=host is None, server_hostname=host)

        return TlsLink(
            self.loop,
            sock,
            peer,
            self.on_fault,
            is_server=host is None,
            wrap=wrap,
            handshakes=tls.handshakes,
            scratch=self._scratch,
            handshake_ms_max=tls.handshake_ms_max,
            turns=self._turns,
        )

    def _client_tls(self, tls: ClientTls) -> Tls:
        known = self._as_client.get(tls)
        if known is None:
            known = self._as_client[tls] = self._new_tls(tls)
        return known

    def _new_tls(self, tls: ServerTls | ClientTls) -> Tls:
        if not self._scratch:
            self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        handshakes = FairQueue(ThreadWorkers(self.loop, HANDSHAKE_THREADS), HANDSHAKE_THREADS)
        return Tls(TlsContext(tls, self._tell_reload), handshakes, tls.handshake_ms_max)

    def _tell_reload(self, path: str, fault: Exception | None) -> None:
        """Heard on a worker, told on the loop."""
        # A loop that is closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._on_reload, path, fault)


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
