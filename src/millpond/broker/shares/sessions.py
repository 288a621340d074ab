"""Share sessions (KIP-932): a member of a share group sends its partitions once, then only what changes.

A member has one session with each leader, shared by its ShareFetch and ShareAcknowledge requests, with an epoch that
rises by one with each of them. A session belongs to the connection that opened it. When that closes, or the member
ends the session, the records that the member holds are released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.values import dataclass

if TYPE_CHECKING:
    from millpond.base.principal import Principal
    from millpond.broker.requests.connection import Connection
    from millpond.broker.shares.group_reads import GroupReads

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 31) - 1

PARTITIONS_MAX: Final = 2_000
"""Partitions of one session. The first fetch of a session looks at all of them."""
CONNECTION_SHARE: Final = 10
"""A connection may have one part in this many of the sessions of a node; a member needs one."""

PartitionKey = tuple[UUID, int]


@dataclass(slots=True, eq=False)
class ShareSession:
    group: GroupReads
    member_id: str
    holder: str
    """Who holds the records in share windows: the member in this session, not in an earlier one."""
    connection: Connection
    owner: Principal | None
    epoch: int = 1
    partitions: dict[PartitionKey, bool] = field(default_factory=dict)
    """Whether the next response must have the partition, though there are no records; least recently served first."""
    held: dict[PartitionKey, None] = field(default_factory=dict)
    """The partitions of which the member may hold records."""
    has_ended: bool = False

    def advance(self) -> None:
        self.epoch = self.epoch % EPOCH_MAX + 1

    def move_to_end(self, key: PartitionKey) -> None:
        """Serve this partition last the next time, so that a full response cannot starve the others."""
        # A client that does not wait for its responses may have removed it.
        if key in self.partitions:
            self.partitions[key] = self.partitions.pop(key)


def member_of(holder: str) -> str:
    """The id of the member that holds records as this holder."""
    return holder.rpartition(" ")[0]


def _holder(member_id: str, session_number: int) -> str:
    return f"{member_id} {session_number}"


class ShareSessions:
    """All share sessions of this node, by group and member."""

    def __init__(
        self,
        sessions_max: Callable[[], int],
        total_max: Callable[[], int],
        on_limit: Callable[[str, int], None],
        on_end: Callable[[ShareSession, bool], None],
        limit_names: tuple[str, str],
    ) -> None:
        """`on_end` is called with a session that has ended, and whether its records count as delivered; `on_limit`
        with the setting that leaves a member without a session."""
        self._sessions_max = sessions_max
        self._total_max = total_max
        self._on_limit = on_limit
        self._on_end = on_end
        self._limit_names = limit_names
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[Connection, dict[ShareSession, None]] = {}
        self._count = 0
        """Sessions opened so far."""
        self._total = 0
        """Partitions of all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        group: GroupReads,
        member_id: str,
        connection: Connection,
        owner: Principal | None,
        partitions: Iterable[PartitionKey],
    ) -> ShareSession:
        """A new session instead of the one that the member may have. Refused at a limit."""
        key = (group.group_id, member_id)
        before = self._sessions.get(key)
        if before is not None and before.owner != owner:
            raise Refused(ErrorCode.INVALID_REQUEST, "the member id belongs to another client")
        self._count += 1
        session = ShareSession(group, member_id, _holder(member_id, self._count), connection, owner)
        session.partitions = dict.fromkeys(partitions, True)
        try:
            self._check_limits(len(session.partitions), connection, before)
        except Refused:
            if before is not None:
                self.end(before, were_delivered=True)
            raise
        if before is not None:
            if before.connection is connection:
                # It may still acknowledge what it holds.
                session.holder = before.holder
                session.held, before.held = before.held, {}
            self.end(before, were_delivered=True)
        self._sessions[key] = session
        self._total += len(session.partitions)
        of_connection = self._by_connection.get(connection)
        if of_connection is None:
            of_connection = self._by_connection[connection] = {}
            connection.when_closed(self._on_closed)
        of_connection[session] = None
        group.add_session()
        return session

    def find(self, group_id: str, member_id: str, connection: Connection, epoch: int) -> ShareSession:
        """The session that a request of this epoch continues or ends. Refused if there is none."""
        session = self._sessions.get((group_id, member_id))
        if session is None or session.connection is not connection:
            raise Refused(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch not in (FINAL_EPOCH, session.epoch):
            raise Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return session

    def update(self, session: ShareSession, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        """Add and remove partitions. Refused at a limit, which ends the session."""
        before = len(session.partitions)
        for key in added:
            session.partitions.setdefault(key, True)
        for key in forgotten:
            session.partitions.pop(key, None)
        growth = len(session.partitions) - before
        self._total += growth
        if growth > 0:
            try:
                self._check_limits(len(session.partitions))
            except Refused:
                self.end(session, were_delivered=True)
                raise

    def end(self, session: ShareSession, *, were_delivered: bool) -> None:
        if session.has_ended:
            return
        session.has_ended = True
        del self._sessions[session.group.group_id, session.member_id]
        self._total -= len(session.partitions)
        self._by_connection[session.connection].pop(session, None)
        self._on_end(session, were_delivered)

    def _on_closed(self, connection: Connection) -> None:
        """The connection is gone: its members may have processed what they hold, or not."""
        for session in list(self._by_connection[connection]):
            self.end(session, were_delivered=True)
        del self._by_connection[connection]

    def _check_limits(
        self, partitions: int, new_on: Connection | None = None, replaced: ShareSession | None = None
    ) -> None:
        """Refuse a session with so many partitions: one on this connection, instead of another that the member may
        have, or without a connection one that is counted already."""
        if partitions > PARTITIONS_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"{partitions} partitions, a share session has at most {PARTITIONS_MAX}"
            )
        sessions_max, total_max = self._sessions_max(), self._total_max()
        sessions_name, total_name = self._limit_names
        total = self._total
        if new_on is not None:
            of_connection = self._by_connection.get(new_on, {})
            count, of_connection_count = len(self._sessions), len(of_connection)
            total += partitions
            if replaced is not None:
                total -= len(replaced.partitions)
                count -= 1
                of_connection_count -= replaced in of_connection
            # One client must not leave all others without a session.
            if count >= sessions_max or of_connection_count >= max(sessions_max // CONNECTION_SHARE, 1):
                self._on_limit(sessions_name, sessions_max)
                raise Refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        if total > total_max:
            self._on_limit(total_name, total_max)
            raise Refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
