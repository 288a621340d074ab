"""The thread for one leader: it fetches records and acknowledges them over one connection, which owns the locks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Final, Protocol

from millpond.base.errors import RemoteError
from millpond.remote.bootstrap import Address
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import ClientError, ClusterError
from millpond.remote.shares.leader_session import LeaderSession, Outcome, Request, Settled
from millpond.wire import messages as m

FETCH_BYTES: Final = 4 << 20
WAIT_MS: Final = 500
"""How long a leader may wait for records; acknowledgements wait behind it."""
WAIT_BUSY_MS: Final = 200
"""The same while records are held."""
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
THROTTLE_SECONDS_MAX: Final = 30.0


class Owner(Protocol):
    """The consumer, as its leader threads see it. The lock is held in `grant` and `give_back` only."""

    def grant(self) -> int:
        """How many records this leader may deliver now; they are reserved until `give_back`."""
        ...

    def give_back(self, count: int) -> None: ...

    def wait_ms(self, most: int) -> int: ...

    def on_outcome(self, outcome: Outcome) -> None: ...

    def on_settled(self, settled: list[Settled]) -> None: ...

    def on_fault(self, fault: ClientError) -> None:
        """The connection broke, or there was none."""
        ...

    def warn(self, text: str) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class LeaderThread:
    def __init__(
        self,
        leader: int,
        address: Address,
        session: LeaderSession,
        connect: Callable[[Address], BrokerConnection],
        owner: Owner,
        changed: Condition,
    ) -> None:
        self.session = session
        self.address = address
        """Changed under the lock when the node comes back elsewhere."""
        self.rounds = 0
        """Requests that were answered or failed."""
        self.empty_rounds = 0
        """Fetches in a row that brought nothing."""
        self._connect = connect
        self._owner = owner
        self._changed = changed
        self._connection: BrokerConnection | None = None
        self._pause = PAUSE_SECONDS
        self._not_before = 0.0
        self._closing = False
        self._close_by = 0.0
        self._thread = Thread(target=self._run, name=f"millpond-share-{leader}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, deadline: float) -> None:
        """Ask it to send what is left and end its session. The lock is held."""
        self._closing, self._close_by = True, deadline

    def join(self, deadline: float) -> bool:
        """Whether it ended in time."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._round():
                pass
            self._end_session()
        except BaseException as bug:
            self._owner.fail(bug)
        finally:
            self._disconnect("the consumer was closed")

    def _round(self) -> bool:
        """One request, or a wait for a reason to send one. False at the end."""
        granted = 0
        with self._changed:
            now = time.monotonic()
            if self._closing and (now >= self._close_by or not self.session.unsent_count):
                return False
            renewal_at = None if self._closing else self.session.renew_due(now)
            late = self.session.expire(now)
            request = None
            if not late and now >= self._not_before:
                granted = 0 if self._closing or not self.session.has_partitions else self._owner.grant()
                request = self._next_request(granted)
            if request is None and not late:
                self._wait(now, renewal_at)
                return True
        if request is not None:
            try:
                self._exchange(request)
            finally:
                with self._changed:
                    self.rounds += 1
                    self._owner.give_back(granted)
        self._owner.on_settled(late)
        return True

    def _next_request(self, granted: int) -> Request | None:
        version = self._fetch_version()
        if version < 2:
            self.session.may_renew = False
        wait_ms = WAIT_BUSY_MS if self.session.held_count else WAIT_MS
        request = self.session.next_request(
            records_max=granted, wait_ms=self._owner.wait_ms(wait_ms), bytes_max=FETCH_BYTES, version=version
        )
        if request is None and granted:
            self._owner.give_back(granted)
        return request

    def _fetch_version(self) -> int:
        connection = self._connection
        return m.ShareFetchRequest.VERSIONS[1] if connection is None else connection.version(m.ShareFetchRequest)

    def _wait(self, now: float, renewal_at: float | None) -> None:
        until = [now + PAUSE_SECONDS_MAX]
        if renewal_at is not None:
            until.append(renewal_at)
        if now < self._not_before:
            until.append(self._not_before)
        if self._closing:
            until.append(self._close_by)
        self._changed.wait(max(min(until) - now, 0.001))

    def _exchange(self, request: Request) -> None:
        """Send it and handle the response; a broken connection ends the session."""
        sent_at = time.monotonic()
        try:
            connection = self._connected()
            if isinstance(request, m.ShareFetchRequest):
                request.share_acquire_mode = 1 if connection.version(m.ShareFetchRequest) >= 2 else 0
                connection.send(request, m.ShareFetchResponse)
                fetched = connection.receive(m.ShareFetchResponse, seconds=request.max_wait_ms / 1000)
                throttle_ms = fetched.throttle_time_ms
                with self._changed:
                    outcome = self.session.on_fetch(fetched, sent_at)
                    is_empty = not outcome.records and not outcome.is_paused and not fetched.error_code
                    self.empty_rounds = self.empty_rounds + 1 if is_empty else 0
            else:
                acknowledged = connection.ask(request, m.ShareAcknowledgeResponse)
                throttle_ms = acknowledged.throttle_time_ms
                with self._changed:
                    outcome = self.session.on_acknowledge(acknowledged, sent_at)
        except (ClusterError, RemoteError) as fault:
            self._on_fault(fault)
            return
        self._owner.on_outcome(outcome)
        now = time.monotonic()
        self._not_before = now + min(throttle_ms / 1000, THROTTLE_SECONDS_MAX)
        if outcome.is_paused:
            self._not_before = max(self._not_before, now + self._pause)
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
        else:
            self._pause = PAUSE_SECONDS

    def _connected(self) -> BrokerConnection:
        connection = self._connection
        if connection is not None and connection.is_stale:
            # A new connection would lose every lock.
            connection.log_in_again()
        if connection is None or connection.is_closed:
            connection = self._connection = self._connect(self.address)
            if connection.version(m.ShareFetchRequest) < 2:
                self._owner.warn(
                    f"the broker at {connection.address} does not renew locks: a record whose lock expires is "
                    "delivered again (Apache Kafka has this from 4.2 on)"
                )
        return connection

    def _on_fault(self, fault: ClusterError | RemoteError) -> None:
        self._disconnect(str(fault))
        self._not_before = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
        if isinstance(fault, RemoteError):
            fault = ClusterError(f"node at {self.address.host}:{self.address.port}: {fault}", retriable=True)
        self._owner.on_fault(fault)

    def _end_session(self) -> None:
        connection, request = self._connection, self.session.last_request()
        if request is None or connection is None or connection.is_closed or time.monotonic() >= self._close_by:
            return
        # If this fails, the leader ends it with the connection.
        with suppress(ClusterError, RemoteError):
            connection.ask(request, m.ShareAcknowledgeResponse)

    def _disconnect(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with self._changed:
            settled = self.session.on_disconnect(why)
        self._owner.on_settled(settled)
