"""All client connections of a node: connection limits, idle timeouts and shutdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from millpond.base.errors import RemoteError
from millpond.base.ports import Clock, Link, LinkHandler
from millpond.base.principal import ANONYMOUS, USER, Principal
from millpond.base.settings import Settings
from millpond.broker.connections.newcomers import Newcomers
from millpond.broker.loop.turns import Turns
from millpond.broker.requests.connection import Connection, Dispatch
from millpond.broker.requests.request_memory import RequestMemory
from millpond.broker.security.arrivals import Arrivals, Door
from millpond.broker.security.login import Login
from millpond.config.listeners import ListenerSettings, listeners_of
from millpond.config.login import LOGIN_MAX_CONNECTIONS, LOGIN_TIMEOUT_MS, SASL_SERVER_MAX_RECEIVE_SIZE
from millpond.config.node import (
    CONNECTIONS_MAX_IDLE_MS,
    MAX_CONNECTIONS,
    MAX_INFLIGHT_REQUESTS_PER_CONNECTION,
    QUEUED_MAX_REQUEST_BYTES,
    SOCKET_REQUEST_MAX_BYTES,
)
from millpond.config.principal_rules import PrincipalRules
from millpond.config.quota import QUEUED_MAX_RESPONSE_BYTES
from millpond.config.security import super_users
from millpond.config.tls import PRINCIPAL_MAPPING_RULES
from millpond.wire.frames import FrameReader, SpareRoom

if TYPE_CHECKING:
    from millpond.broker.authentication.logins import Witness

SCRATCH_BYTES = 64 * 1024
"""The read buffer that all connections share; an incomplete frame moves to a separate buffer."""

SPARE_BYTES_MAX = 8 << 20
"""Buffer memory of finished large requests that is kept for reuse."""

UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""Reading from a client stops while it has this many response bytes unread."""

BY_CERTIFICATE = "certificate"
"""The mechanism that the audit log names for a client authenticated by its TLS certificate."""


class UnknownCertificate(RemoteError):
    """A valid certificate that no principal mapping rule matches."""


class Connections:
    def __init__(
        self,
        dispatcher: Dispatch,
        clock: Clock,
        settings: Callable[[], Settings],
        arrivals: Arrivals,
        listeners: Sequence[ListenerSettings] = (),
        *,
        witness: Witness | None = None,
        begin_login: Callable[[str], Login | None] | None = None,
    ) -> None:
        """`witness` records certificate logins; `begin_login` creates the login for a connection to a listener."""
        self._dispatcher = dispatcher
        self._clock = clock
        self._settings = settings
        self._arrivals = arrivals
        self._listeners = {each.name: each for each in listeners or listeners_of(settings())}
        self._super_users = super_users(settings())
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._spare_room = SpareRoom(SPARE_BYTES_MAX)
        self._turns = Turns(clock)
        self._open: dict[Connection, str] = {}
        self._heavy: dict[Connection, int] = {}
        """Bytes of memory held by unsent responses, as last measured; connections that hold none are absent."""
        self._unweighed: dict[Connection, None] = {}
        """Connections with responses added since the last measurement."""
        self.newcomers = Newcomers()
        self._witness = witness
        self._begin_login = begin_login
        self._numbers = count()
        self._per_host: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._memory = RequestMemory(settings()[QUEUED_MAX_REQUEST_BYTES])
        self.turned_away_total = 0
        self._closing = False

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    def accept(self, link: Link) -> LinkHandler | None:
        """Accept a new connection, or return None when a limit refuses it."""
        settings = self._settings()
        host = link.peer.rpartition(":")[0]
        if self._closing or not self._has_room(host, link.listener, settings[MAX_CONNECTIONS]):
            self.turned_away_total += 1
            return None
        self._dispatcher.load()
        connection = Connection(
            link,
            self._dispatcher,
            FrameReader(
                self._scratch,
                settings[SOCKET_REQUEST_MAX_BYTES],
                self._spare_room,
                SOCKET_REQUEST_MAX_BYTES.name,
            ),
            self._memory,
            in_flight_max=settings[MAX_INFLIGHT_REQUESTS_PER_CONNECTION],
            unsent_bytes_max=UNSENT_BYTES_MAX,
            on_closed=self._forget,
            on_heavy=self._note_heavy,
            turns=self._turns,
        )
        connection.number = next(self._numbers)
        connection.last_active_ms = self._clock.monotonic_ms()
        self._admit(connection)
        self._open[connection] = host
        self._per_host[host] += 1
        self._per_listener[link.listener] += 1
        return connection

    def _has_room(self, host: str, listener: str, most: int) -> bool:
        """Whether one more connection fits. A node gets in as long as a client connection can be dropped for it."""
        door = Door(listener, self._per_listener[listener], self._is_protected(listener))
        if not self._arrivals.admits(host, self._per_host.get(host, 0), len(self._open), door):
            return False
        return len(self._open) < most or self._send_somebody_away(most)

    def _is_protected(self, listener: str) -> bool:
        """Whether this is a listener for nodes and clients have another one."""
        return len(self._listeners) > 1 and self._listeners[listener].is_for_nodes

    def _send_somebody_away(self, most: int) -> bool:
        """Drop the client connection that has been inactive longest; False when there is none."""
        clients = (each for each in self._open if each.is_open and not self._is_protected(each.link.listener))
        least_active = min(clients, key=lambda each: each.last_active_ms, default=None)
        if least_active is None:
            self._arrivals.limits.note(MAX_CONNECTIONS.name, most)
            return False
        self._arrivals.limits.note(MAX_CONNECTIONS.name, most, peer=least_active.link.peer)
        self.turned_away_total += 1
        least_active.drop()
        return True

    def _admit(self, connection: Connection) -> None:
        """Identify a new peer as far as its listener allows, and start its login where one is required."""
        listener = self._listeners[connection.link.listener]
        connection.protocol = listener.protocol
        if listener.protocol.has_login and self._begin_login is not None:
            connection.login = self._begin_login(listener.name)
        # A peer in the TLS handshake is a newcomer too: it may never complete the handshake.
        is_known = not listener.protocol.has_login and not connection.link.is_encrypted
        self.identify(connection, ANONYMOUS if is_known else None)
        if connection.link.is_encrypted and not listener.protocol.has_login:
            connection.link.on_secured = lambda: self._take_certificate(connection, listener.rules)

    def _take_certificate(self, connection: Connection, rules: PrincipalRules) -> None:
        name = connection.link.certificate_name
        if name is None:
            self.identify(connection, ANONYMOUS)
            return
        user = rules.user_of(name)
        link = connection.link
        host = link.peer.rpartition(":")[0]
        if user is None:
            reason = f"no rule of {PRINCIPAL_MAPPING_RULES.name} knows the certificate of {name}"
            if self._witness is not None:
                self._witness.not_logged_in(name, host, link.listener, BY_CERTIFICATE, reason)
            raise UnknownCertificate(reason)
        principal = Principal(USER, user)
        self.identify(connection, principal)
        if self._witness is not None:
            self._witness.logged_in(principal, host, link.listener, BY_CERTIFICATE)

    def identify(self, connection: Connection, principal: Principal | None) -> None:
        """Set the principal of this connection; None when it has to log in (again) first.

        Only a super user can be a node, except on a node listener without authentication, where any peer can. A
        delegation token is not enough: a node acts on behalf of others and could create itself another token.
        """
        connection.principal = principal
        if connection.must_log_in != (principal is None):
            self._mark_newcomer(connection, principal is None)
        listener = self._listeners[connection.link.listener]
        is_super = principal is not None and not principal.by_token and principal in self._super_users
        connection.may_be_node = is_super or (listener.is_for_nodes and not listener.authenticates)

    def _mark_newcomer(self, connection: Connection, is_newcomer: bool) -> None:
        """Mark a connection that has to log in, or clear the mark. Until it has logged in, its frames are limited to
        `sasl.server.max.receive.size` and its time to the login timeout."""
        settings = self._settings()
        connection.must_log_in = is_newcomer
        limit = SASL_SERVER_MAX_RECEIVE_SIZE if is_newcomer else SOCKET_REQUEST_MAX_BYTES
        connection.take_frames_up_to(settings[limit], limit.name)
        if not is_newcomer:
            self.newcomers.discard(connection)
            return
        most = settings[LOGIN_MAX_CONNECTIONS]
        while len(self.newcomers) >= most:
            superfluous = self.newcomers.superfluous()
            self.newcomers.discard(superfluous)
            self._arrivals.limits.note(LOGIN_MAX_CONNECTIONS.name, most, peer=superfluous.link.peer)
            self.turned_away_total += 1
            superfluous.drop()
        self.newcomers.add(connection, self._clock.monotonic_ms())

    def _forget(self, connection: Connection) -> None:
        self.newcomers.discard(connection)
        if connection.login is not None:
            connection.login.stop_clock()
        self._heavy.pop(connection, None)
        self._unweighed.pop(connection, None)
        host = self._open.pop(connection)
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        self._per_listener[connection.link.listener] -= 1

    def drop_idle(self) -> None:
        """Close connections that are idle, neither sending nor reading, and those that hold memory for a large
        request without sending it."""
        now_ms = self._clock.monotonic_ms()
        idle_since = now_ms - self._settings()[CONNECTIONS_MAX_IDLE_MS]
        self._drop_newcomers(now_ms)
        memory = self._memory
        for connection in list(self._open):
            # Throttled connections too: while nothing is read from them, a closed peer goes unnoticed.
            if connection.last_active_ms < idle_since:
                connection.drop()
                continue
            others_wait = memory.is_short and memory.is_waited_for(connection)
            if connection.is_too_slow(now_ms, others_wait=others_wait):
                if others_wait:
                    self._note_slow(connection)
                connection.drop()
        self._drop_heaviest()

    def _note_slow(self, connection: Connection) -> None:
        """Log that a connection held request memory that others waited for, without sending its request."""
        limit = QUEUED_MAX_REQUEST_BYTES
        self._arrivals.limits.note(limit.name, self._settings()[limit], peer=connection.link.peer)

    def _note_heavy(self, connection: Connection) -> None:
        self._unweighed[connection] = None

    def _drop_heaviest(self) -> None:
        """Close the connections with the most unsent response memory until the total is within its limit."""
        most = self._settings()[QUEUED_MAX_RESPONSE_BYTES]
        self._weigh(self._unweighed)
        self._unweighed = {}
        if sum(self._heavy.values()) <= most:
            return
        # Some clients may have read since. There may be thousands of connections, so all are measured only here.
        self._weigh(list(self._heavy))
        total = sum(self._heavy.values())
        for connection in sorted(self._heavy, key=self._heavy.__getitem__, reverse=True):
            if total <= most:
                break
            held_bytes = self._heavy.pop(connection)
            total -= held_bytes
            self._arrivals.limits.note(
                QUEUED_MAX_RESPONSE_BYTES.name, most, peer=connection.link.peer, unread_bytes=held_bytes
            )
            connection.drop()

    def _weigh(self, connections: Iterable[Connection]) -> None:
        for each in connections:
            held_bytes = each.unsent_memory_bytes() if each.is_open else 0
            if held_bytes:
                self._heavy[each] = held_bytes
            else:
                self._heavy.pop(each, None)

    def _drop_newcomers(self, now_ms: int) -> None:
        """Drop connections that have not logged in in time."""
        allowed_ms = self._settings()[LOGIN_TIMEOUT_MS]
        for connection in self.newcomers.late(now_ms - allowed_ms):
            self._arrivals.limits.note(LOGIN_TIMEOUT_MS.name, allowed_ms, peer=connection.link.peer)
            connection.drop()

    def begin_closing(self) -> None:
        """Accept no new connections, and close every connection without a pending response."""
        self._closing = True
        for connection in list(self._open):
            if not connection.is_waiting():
                connection.link.close()

    def count_waiting(self) -> int:
        return sum(connection.is_waiting() for connection in self._open)

    def drop_all(self) -> None:
        for connection in list(self._open):
            connection.drop()
