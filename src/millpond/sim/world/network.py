"""An in-memory network between named hosts: seeded latency, streams split at random, paths that can be cut."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from millpond.base.ports import Clock, Link, LinkHandler
from millpond.base.tls import ClientAuth, ClientTls, ServerTls
from millpond.sim.world.file_tree import fault
from millpond.sim.world.link import SimLink, Tap

CONNECT_RETRY_MS = 1_000
CONNECT_ATTEMPTS = 30
FIRST_FREE_PORT = 49_152
RESEND_MS = 200
RESEND_MS_MAX = 6_400
"""The longest pause before a kernel retransmits lost data."""

Accept = Callable[[Link], LinkHandler | None]
MakeHandler = Callable[[Link], LinkHandler]


@dataclass(slots=True, frozen=True)
class Path:
    """The properties of one direction between two hosts."""

    latency_range_ms: tuple[int, int]
    loss_share: float


class SimListener:
    def __init__(
        self, network: SimNetwork, host: str, port: int, accept: Accept, tls: ServerTls | None, name: str
    ) -> None:
        self.host = host
        self.port = port
        self.accept = accept
        self.tls = tls
        self.name = name
        self._network = network

    def close(self) -> None:
        if self._network.listeners.get((self.host, self.port)) is self:
            del self._network.listeners[self.host, self.port]


class SimNetwork:
    """All links of a simulated world. `at(host)` returns the network port of one host.

    A `RemoteError` of a handler, or a file range that cannot be read, closes the link and is kept in `faults`; any
    other exception propagates to the test.
    """

    def __init__(self, clock: Clock, seed: int | str = 0, *, latency_ms: tuple[int, int] = (0, 3)) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.latency_range_ms = latency_ms
        self.chunk_bytes_max = 64 << 10
        self.tap: Tap | None = None
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.faults: list[tuple[Link, Exception]] = []
        self._links: list[SimLink] = []
        self._cuts: dict[tuple[str, str], None] = {}
        self._rejections: dict[tuple[str, str], None] = {}
        self._down: dict[str, None] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._paused: dict[str, list[Callable[[], None]]] = {}
        """Callbacks for paused processes, run when they resume."""
        self._ports_given = 0

    def at(self, host: str) -> HostNetwork:
        return HostNetwork(self, host)

    def listen(
        self, host: str, port: int, accept: Accept, tls: ServerTls | None = None, name: str = ""
    ) -> SimListener:
        """`host` is the name of the simulated machine; port 0 takes a free one."""
        port = port or self._free_port()
        if (host, port) in self.listeners:
            raise fault(errno.EADDRINUSE, f"{host}:{port}")
        listener = self.listeners[host, port] = SimListener(self, host, port, accept, tls, name)
        return listener

    def connect(
        self,
        host: str,
        port: int,
        make_handler: MakeHandler,
        tls: ClientTls | None = None,
        *,
        source: str = "client",
    ) -> SimLink:
        """Open a link to a listener, usable at once; if there is no such peer, `closed` is called.

        Nothing is encrypted, and no file is read: the name of a certificate file serves as the peer's name.
        """
        link = self._new_link(source, host, f"{host}:{port}")
        link.is_encrypted = tls is not None
        link.certificate_name = (tls.files.certificate or None) if tls is not None else None
        link.start(make_handler(link))
        self.clock.call_later(self.latency_ms(source, host), lambda: self._attempt(link, host, port, 1))
        return link

    def _attempt(self, link: SimLink, host: str, port: int, attempt: int) -> None:
        if not link.alive:
            return
        if self.is_rejected(link.host, host):
            link.reset()
            return
        # A rejected acknowledgement does not come back either.
        is_cut = self.is_cut(link.host, host) or self.is_cut(host, link.host) or self.is_rejected(host, link.host)
        if is_cut or self.is_down(host):
            if attempt == CONNECT_ATTEMPTS:
                link.reset()
            else:
                self.clock.call_later(CONNECT_RETRY_MS, lambda: self._attempt(link, host, port, attempt + 1))
            return
        self.run_at(host, lambda: self._accept(link, host, port))

    def _accept(self, link: SimLink, host: str, port: int) -> None:
        if not link.alive:
            return
        listener = self.listeners.get((host, port))
        if listener is None or not _agree(listener.tls, link):
            link.reset()
            return
        server = self._new_link(host, link.host, f"{link.host}:{self._free_port()}")
        server.listener = listener.name
        server.is_encrypted = listener.tls is not None
        handler = listener.accept(server)
        if handler is None:
            server.abort()
            link.reset()
            return
        server.start(handler)
        if listener.tls is not None:
            if listener.tls.client_auth is not ClientAuth.NONE:
                server.certificate_name = link.certificate_name
            if server.on_secured is not None:
                server.on_secured()
        server.join(link)

    def _new_link(self, host: str, peer_host: str, peer: str) -> SimLink:
        link = SimLink(self, host, peer_host, peer)
        self._links = [old for old in self._links if not old.is_done()]
        self._links.append(link)
        return link

    def _free_port(self) -> int:
        self._ports_given += 1
        return FIRST_FREE_PORT + self._ports_given % 16_384

    # Called by links

    def latency_ms(self, source: str, target: str) -> int:
        path = self._paths.get((source, target))
        if path is None:
            return self.random.randint(*self.latency_range_ms)
        latency_ms = self.random.randint(*path.latency_range_ms)
        resend_ms = RESEND_MS
        while self.random.random() < path.loss_share and resend_ms <= RESEND_MS_MAX:
            latency_ms += resend_ms
            resend_ms *= 2
        return latency_ms

    def run_at(self, host: str, callback: Callable[[], None]) -> None:
        """Run now, or when the host's process resumes."""
        held = self._paused.get(host)
        if held is None:
            callback()
        else:
            held.append(callback)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def is_rejected(self, source: str, target: str) -> bool:
        return (source, target) in self._rejections

    def is_down(self, host: str) -> bool:
        return host in self._down

    def fault(self, link: Link, error: Exception) -> None:
        self.faults.append((link, error))

    # Faults, for tests

    def links(self, host: str | None = None) -> list[SimLink]:
        """The live link ends of one host or of all, oldest first."""
        return [link for link in self._links if link.alive and host in (None, link.host)]

    def blackhole(self, source: str, target: str) -> None:
        """Silently drop everything from `source` to `target` until `heal`. The reverse direction stays open."""
        self._cuts[source, target] = None

    def partition(self, one: str, other: str) -> None:
        """Nothing passes between the two hosts until `heal`."""
        self.blackhole(one, other)
        self.blackhole(other, one)

    def reject(self, source: str, target: str) -> None:
        """Answer everything from `source` to `target` with a reset until `heal`, like a rejecting firewall.

        New connections are refused, and an existing one breaks when it is used.
        """
        self._rejections[source, target] = None

    def reject_between(self, one: str, other: str) -> None:
        """Reject in both directions."""
        self.reject(one, other)
        self.reject(other, one)

    def set_path(
        self, source: str, target: str, *, latency_ms: tuple[int, int] | None = None, loss_share: float = 0.0
    ) -> None:
        """Set latency and loss of one direction until `heal`: kernels retransmit lost data, after growing pauses."""
        self._paths[source, target] = Path(latency_ms or self.latency_range_ms, loss_share)

    def heal(self) -> None:
        """Restore every path to normal; held data arrives late."""
        self._cuts.clear()
        self._rejections.clear()
        self._paths.clear()
        for link in self._links:
            link.retry_held()

    def mend(self, source: str, target: str) -> None:
        """Restore one direction, as `heal` does for all."""
        self._cuts.pop((source, target), None)
        self._rejections.pop((source, target), None)
        self._paths.pop((source, target), None)
        for link in self._links:
            if (link.host, link.peer_host) == (source, target):
                link.retry_held()

    def reset(self, link: SimLink) -> None:
        """Break one connection at both ends; data in flight is lost."""
        other = link.other
        link.reset()
        if other is not None:
            other.reset()

    def reset_between(self, one: str, other: str) -> None:
        """Break every connection between the two hosts at both ends."""
        for link in self.links(one):
            if link.peer_host == other:
                self.reset(link)

    def stop_host(self, host: str, *, silently: bool) -> None:
        """Disconnect a host: by a power cut (`silently`), or only its process, whose kernel notifies peers."""
        for listener in [entry for entry in self.listeners.values() if entry.host == host]:
            listener.close()
        for link in self.links(host):
            other = link.other
            link.vanish()
            if not silently and other is not None:
                self.clock.call_later(self.latency_ms(host, other.host), other.reset)
        self._paused.pop(host, None)
        if silently:
            self._down[host] = None

    def start_host(self, host: str) -> None:
        self._down.pop(host, None)

    def pause_host(self, host: str) -> None:
        """Pause the process: its kernel accepts bytes while the socket buffers have space."""
        self._paused.setdefault(host, [])

    def resume_host(self, host: str) -> None:
        for callback in self._paused.pop(host, []):
            self.clock.call_soon(callback)


def _agree(tls: ServerTls | None, client: SimLink) -> bool:
    """Whether the TLS handshake would succeed: both ends use TLS or neither, with a client
    certificate if required.
    """
    if tls is None or not client.is_encrypted:
        return tls is None and not client.is_encrypted
    return tls.client_auth is not ClientAuth.REQUIRED or client.certificate_name is not None


class HostNetwork:
    """The network port of one simulated host."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self.host = host
        self._network = network

    def listen(
        self, host: str, port: int, accept: Accept, tls: ServerTls | None = None, name: str = ""
    ) -> SimListener:
        """Listen on this host, whatever bind address the broker is configured with."""
        return self._network.listen(self.host, port, accept, tls, name)

    def connect(self, host: str, port: int, make_handler: MakeHandler, tls: ClientTls | None = None) -> SimLink:
        return self._network.connect(host, port, make_handler, tls, source=self.host)
