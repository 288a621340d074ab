"""The real network: listening and connecting sockets; each connection becomes a link."""

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
from millpond.node.accept_queue import AcceptQueue
from millpond.node.link import LostLink, OnFault, SendTurns, SocketLink, plain_host
from millpond.node.tls_contexts import OnReload, TlsContext
from millpond.node.tls_link import TlsLink
from millpond.node.workers import ThreadWorkers

BACKLOG = 1024
EXHAUSTED_PAUSE_SECONDS = 0.2
"""Without free descriptors, accepting again at once would only burn the CPU that could free some."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

FETCHED_AT_ONCE = 16
"""How many sockets are taken from the kernel per iteration, of which one is served. Taking them is cheap."""

FETCH_AGAIN_SECONDS = 0.003
"""If the kernel has none left and some wait here, it is polled again after this time: a failing accept costs as
much as a successful one."""

GONE_SECONDS = 1.0
"""Sockets that have waited this long are checked for a disconnect."""

WAITING_MAX = 1024
"""The most accepted sockets that may wait. More stay in the kernel for a while."""

PATIENCE_SECONDS = 60.0
"""A queue that has been full for this long is no burst of a legitimate program. From then on some of its sockets
are closed, so that others get a place."""

TELL_SECONDS = 10.0
"""How often closed connections are logged."""

HANDSHAKE_THREADS = 1
"""Per listener, and for all outgoing connections. TLS handshakes, however many, use at most one CPU, no loop time,
and no capacity of another listener."""

SCRATCH_BYTES = 64 << 10
"""The shared buffer that encrypted links read into before decryption. OpenSSL keeps as much memory for each link."""

Accept = Callable[[Link], LinkHandler | None]


class Tls(NamedTuple):
    """The encryption of a listener, or of a kind of connection."""

    context: TlsContext
    handshakes: FairQueue
    handshake_ms_max: int


class TooManyWait(Exception):
    """A connection was closed because too many wait to be served."""


class Fetched(NamedTuple):
    """An accepted socket that waits to be served."""

    sock: socket.socket
    address: tuple[str, int]
    since: float


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
        self._waiting: AcceptQueue[Fetched] = AcceptQueue(network.waiting_max)
        self._fetch_from = 0.0
        """No socket is accepted before this time."""
        self._full_since: float | None = None
        """Since when the queue has been full, and never less than half full."""
        self._tell_from = 0.0
        self._open = True
        self._is_reading = False
        """Whether the loop reports new connections: not while some wait here, nor during a pause."""
        self._next_turn: asyncio.Handle | None = None
        self._go_on()

    def _go_on(self) -> None:
        """Wait for new connections; serve those that already wait."""
        if not self._open:
            return
        self._next_turn = None
        pause_seconds = self._fetch_from - time.monotonic()
        if len(self._waiting):
            self._on_acceptable()
        elif pause_seconds > 0:
            self._rest(pause_seconds)
        elif not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._socket.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        """Accept some sockets and serve one. Others wait for the next iteration, after existing connections."""
        now = time.monotonic()
        if now >= self._fetch_from:
            self._fetch(self._count_to_fetch(now), now)
            self._look_whether_full(now)
            if not len(self._waiting):
                return
        newcomer = self._next(now)
        try:
            if newcomer is not None:
                self._network.adopt(newcomer.sock, newcomer.address, self._accept, self._name, self._tls)
        finally:
            # Whatever failed with one: the loop does not report sockets that wait here, so nothing else would call
            # this again.
            rest_seconds = self._pace.rest_seconds(time.monotonic(), time.thread_time())
            if rest_seconds or len(self._waiting) or not self._is_reading:
                self._rest(rest_seconds)

    def _count_to_fetch(self, now: float) -> int:
        if self._full_since is not None and now - self._full_since >= PATIENCE_SECONDS:
            return FETCHED_AT_ONCE
        return min(FETCHED_AT_ONCE, self._network.waiting_max - len(self._waiting))

    def _look_whether_full(self, now: float) -> None:
        waiting, most = len(self._waiting), self._network.waiting_max
        if waiting <= most // 2:
            self._full_since = None
        elif waiting >= most and self._full_since is None:
            self._full_since = now

    def _fetch(self, count: int, now: float) -> None:
        for _ in range(count):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                if len(self._waiting) > 1:
                    self._fetch_from = now + FETCH_AGAIN_SECONDS
                break
            except OSError as error:
                self._pause(error)
                break
            too_many = self._waiting.put(address[0], Fetched(sock, address, now))
            if too_many is not None:
                too_many.sock.close()
                self._tell_too_many(too_many.address[0])

    def _next(self, now: float) -> Fetched | None:
        """The next socket that is still connected; only a few are checked per iteration."""
        for _ in range(FETCHED_AT_ONCE):
            newcomer = self._waiting.next()
            if newcomer is None or now - newcomer.since < GONE_SECONDS or not _has_gone(newcomer.sock):
                return newcomer
            newcomer.sock.close()
        return None

    def _tell_too_many(self, address: str) -> None:
        now = time.monotonic()
        if now >= self._tell_from:
            self._tell_from = now + TELL_SECONDS
            waiting = f"{len(self._waiting)} connections wait to be served, most of them from {plain_host(address)}"
            self._network.on_fault(None, TooManyWait(waiting))

    def _pause(self, error: OSError) -> None:
        """Turn one peer away with the reserved descriptor, then leave the rest in the backlog for a moment."""
        if error.errno in _EXHAUSTED and self._reserve is not None:
            os.close(self._reserve)
            with contextlib.suppress(OSError):
                self._socket.accept()[0].close()
            self._reserve = _open_reserve()
        self._fetch_from = time.monotonic() + EXHAUSTED_PAUSE_SECONDS
        if not len(self._waiting):
            self._rest(EXHAUSTED_PAUSE_SECONDS)
        self._network.on_fault(None, error)

    def _rest(self, seconds: float) -> None:
        """Serve no new connection for a moment, or until the next iteration."""
        if not self._open:
            return
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())
        if self._next_turn is not None:
            self._next_turn.cancel()
        later = self._loop.call_later
        self._next_turn = later(seconds, self._go_on) if seconds else self._loop.call_soon(self._go_on)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for newcomer in self._waiting.take_all():
            newcomer.sock.close()
        if self._reserve is not None:
            os.close(self._reserve)


class SocketNetwork:
    """The network port over the machine's sockets.

    `on_fault(link, error)` receives every error on a link: a `RemoteError` is the peer's fault, an OSError an
    external one. Only that link is closed. Any other error is a bug and reaches the loop. `sendfile=False` copies
    through Python. `on_reload` receives reloaded certificates, or the errors.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_fault: OnFault,
        sendfile: bool = True,
        on_reload: OnReload | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`waiting_max` limits the accepted sockets of each listener that wait to be served."""
        self.loop = loop
        self.waiting_max = waiting_max
        self.on_fault = on_fault
        self._turns = SendTurns(loop)
        self._sendfile = sendfile
        self._on_reload = on_reload or (lambda *_: None)
        self._as_client: dict[ClientTls, Tls] = {}
        self._scratch = memoryview(b"")

    def listen(
        self, host: str, port: int, accept: Accept, tls: ServerTls | None = None, name: str = ""
    ) -> SocketListener:
        """OSError if the address cannot be bound, or the files of `tls` cannot be used."""
        own = None if tls is None else self._new_tls(tls)
        family, address = _resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit these.
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
            # No free descriptor, no certificate, or a name instead of an address. To the caller the peer is
            # unreachable.
            self.on_fault(None, error)
            lost = LostLink(self.loop, f"{host}:{port}")
            lost.start(make_handler(lost))
            return lost
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # The first read or write reports whether it succeeded.
        sock.connect_ex(address)
        link = self._new_link(sock, f"{host}:{port}", own, host)
        link.start(make_handler(link))
        return link

    def adopt(
        self, sock: socket.socket, address: tuple[str, int], accept: Accept, name: str, tls: Tls | None
    ) -> None:
        """Turn an accepted socket into a link, unless `accept` declines it."""
        try:
            sock.setblocking(False)
            peer = f"{plain_host(address[0])}:{address[1]}"
            link = self._new_link(sock, peer, tls)
            link.listener = name
        except OSError:
            # Closed before it was ours.
            sock.close()
            return
        handler = accept(link)
        if handler is None:
            link.abort()
        else:
            link.start(handler)

    def _new_link(self, sock: socket.socket, peer: str, tls: Tls | None, host: str | None = None) -> SocketLink:
        """`host` is the requested one, for outgoing connections."""
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
        """Called on a worker; reports on the loop."""
        # The loop may be closed already.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._on_reload, path, fault)


def _resolve(host: str, port: int) -> tuple[int, tuple[object, ...]]:
    """The address to bind. A name with both kinds of address yields the IPv4 one, which every client tries."""
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = addresses[0]
    return family, address


def _has_gone(sock: socket.socket) -> bool:
    """Whether the peer has already disconnected: serving it would cost as much as any other."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
