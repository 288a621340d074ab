"""Incremental fetch sessions (KIP-227): a consumer sends its partitions once, then only what changes.

A session is the pair of an id and an epoch that rises by one with each request. What a session remembers per
partition is what the client last asked for and what it was last told, so that a reply can leave out all that is
still the same. Where clients have names it is its owner's: to anybody else it does not exist. It names topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TOPIC_NAME_LENGTH_MAX
from millpond.base.ports import Entropy
from millpond.base.principal import Principal
from millpond.base.values import dataclass
from millpond.config.node import FETCH_SESSION_SLOTS
from millpond.config.quota import MAX_FETCH_SESSION_PARTITIONS
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.loop.steps import Steps

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
EVICTION_MS = 120_000
"""A session that was used within this time is not thrown out for a new one."""

WISHES_AT_ONCE: Final = 500

Key = tuple[str, UUID, int]
"""Topic name (up to version 12), topic id (from version 13), partition."""


@dataclass(slots=True)
class Wanted:
    """What a client wants of one partition, and what it was last told about it."""

    key: Key
    fetch_offset: int
    bytes_max: int
    leader_epoch: int
    told_high_watermark: int = -1
    told_start_offset: int = -1
    told_error: int = 0
    is_new: bool = True

    def ask(self, other: Wanted) -> None:
        """Take over a newer wish of the client."""
        self.fetch_offset = other.fetch_offset
        self.bytes_max = other.bytes_max
        self.leader_epoch = other.leader_epoch

    def remember(self, before: Wanted) -> None:
        """The client was told the same as of an earlier wish for the partition."""
        self.told_high_watermark = before.told_high_watermark
        self.told_start_offset = before.told_start_offset
        self.told_error = before.told_error
        self.is_new = before.is_new

    def tell(self, error_code: int, high_watermark: int, start_offset: int) -> bool:
        """The client is told this; whether it is news to it."""
        is_news = (
            self.is_new
            or error_code != ErrorCode.NONE
            or self.told_error != error_code
            or self.told_high_watermark != high_watermark
            or self.told_start_offset != start_offset
        )
        self.is_new = False
        self.told_error = error_code
        self.told_high_watermark = high_watermark
        self.told_start_offset = start_offset
        return is_news


Wishes: TypeAlias = dict[Key, Wanted]


@dataclass(slots=True)
class FetchSession:
    id: int
    uses_topic_ids: bool
    owner: Principal | None = None
    epoch: int = 1
    last_used_ms: int = 0
    wanted: dict[Key, Wanted] = field(default_factory=dict)

    def ask(self, wishes: Wishes) -> None:
        for wish in wishes.values():
            known = self.wanted.get(wish.key)
            if known is None:
                self.wanted[wish.key] = wish
            else:
                known.ask(wish)

    def put_last(self, served: Wanted) -> None:
        """Who has been served goes to the back, so that a full reply cannot starve the rest."""
        # A client that does not wait for its answers may have forgotten the partition since it asked.
        if served.key in self.wanted:
            self.wanted[served.key] = self.wanted.pop(served.key)


@dataclass(slots=True)
class FetchContext:
    """One request's view: the partitions to read, and whether unchanged ones may be left out of the reply."""

    session_id: int
    wanted: list[Wanted]
    is_incremental: bool
    session: FetchSession | None = None

    def keep_in_reply(self, wanted: Wanted, reply: m.FetchResponse.PartitionData) -> bool:
        """Whether the client must hear about this partition; remembers what it is told."""
        is_news = wanted.tell(reply.error_code, reply.high_watermark, reply.log_start_offset)
        if not self.is_incremental:
            return True
        has_records = bool(reply.records)
        if has_records and self.session is not None:
            self.session.put_last(wanted)
        return is_news or has_records or reply.preferred_read_replica >= 0


class FetchSessions:
    def __init__(
        self,
        slots_max: int,
        partitions_max: Callable[[], int],
        entropy: Entropy,
        total_max: Callable[[], int] = lambda: 1 << 31,
        on_limit: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        """`on_limit` hears which setting leaves somebody without a session."""
        self._on_limit = on_limit
        self._slots_max = slots_max
        self._total_max = total_max
        self._total = 0
        """Partitions of all sessions together."""
        self._partitions_max = partitions_max
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def wishes_in_steps(self, request: m.FetchRequest, owner: Principal | None) -> Steps[Wishes]:
        """What a request with thousands of partitions wants of each, for `context`."""
        session = self._session_of(request, owner)
        wishes: Wishes = {}
        for number, wish in enumerate(_each_wish(request)):
            if number % WISHES_AT_ONCE == WISHES_AT_ONCE - 1:
                yield None
            before = None if session is None else session.wanted.get(wish.key)
            if before is not None:
                wish.remember(before)
            wishes[wish.key] = wish
        return wishes

    def context(
        self,
        request: m.FetchRequest,
        version: int,
        now_ms: int,
        owner: Principal | None = None,
        wishes: Wishes | None = None,
    ) -> FetchContext:
        """The partitions that this request is about. Refused when it names a session that we do not have.

        `owner` is who asks, where that matters. `wishes` are those of the request, if `wishes_in_steps` found them.
        """
        are_known = wishes is not None
        if wishes is None:
            # A partition that is named more than once is wanted once, as it was named last.
            wishes = {wish.key: wish for wish in _each_wish(request)}
        session = self._session_of(request, owner)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._forget(session.id)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(NO_SESSION, list(wishes.values()), is_incremental=False)
            return self._start(wishes, version, now_ms, owner)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= 13):
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if _has_impossible_name(wishes):
            self._forget(session.id)
            raise Refused(ErrorCode.INVALID_REQUEST, "no topic has so long a name")
        before = len(session.wanted)
        if are_known:
            session.wanted.update(wishes)
        else:
            session.ask(wishes)
        return self._go_on(session, request, before, now_ms)

    def _session_of(self, request: m.FetchRequest, owner: Principal | None) -> FetchSession | None:
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner is not owner and session.owner != owner:
            return None
        return session

    def of_one(
        self, session_id: int, epoch: int, owner: Principal | None, *, uses_topic_ids: bool
    ) -> tuple[FetchSession, Wanted] | None:
        """The session that a request of this epoch goes on with, and its partition, if it has just one.

        None leaves everything as it was, and leaves it to `context`.
        """
        session = self._sessions.get(session_id)
        if (
            session is None
            or session.epoch != epoch
            or session.uses_topic_ids != uses_topic_ids
            or len(session.wanted) != 1
            or (session.owner is not owner and session.owner != owner)
        ):
            return None
        (wanted,) = session.wanted.values()
        return session, wanted

    def use(self, session: FetchSession, now_ms: int) -> None:
        """A request has gone on with it."""
        session.epoch = session.epoch % ((1 << 31) - 1) + 1
        session.last_used_ms = now_ms
        # The least recently used comes first in the dictionary.
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _start(self, wishes: Wishes, version: int, now_ms: int, owner: Principal | None) -> FetchContext:
        if not wishes or _has_impossible_name(wishes) or not self._has_room(len(wishes), now_ms):
            return FetchContext(NO_SESSION, list(wishes.values()), is_incremental=False)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._entropy.below((1 << 31) - 1)
        session = FetchSession(session_id, version >= 13, owner, last_used_ms=now_ms)
        session.wanted = wishes
        self._sessions[session_id] = session
        self._total += len(wishes)
        return FetchContext(session_id, list(wishes.values()), is_incremental=False, session=session)

    def _go_on(self, session: FetchSession, request: m.FetchRequest, before: int, now_ms: int) -> FetchContext:
        """`before` is how many partitions it had before this request."""
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                session.wanted.pop((topic.topic, topic.topic_id, partition), None)
        self._total += len(session.wanted) - before
        if len(session.wanted) > before and self._total > self._total_max():
            # The consumer sends its whole list again, and then each time.
            self._forget(session.id)
            self._on_limit(MAX_FETCH_SESSION_PARTITIONS.name, self._total_max())
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if len(session.wanted) > self._partitions_max():
            # One request may not name so many, and a session is the sum of its requests.
            self._forget(session.id)
            raise Refused(ErrorCode.INVALID_REQUEST, "the session has more partitions than one request may name")
        self.use(session, now_ms)
        return FetchContext(session.id, list(session.wanted.values()), is_incremental=True, session=session)

    def _has_room(self, partitions: int, now_ms: int) -> bool:
        if not self._make_room(now_ms):
            if self._slots_max:
                # With none at all that is what the operator wants.
                self._on_limit(FETCH_SESSION_SLOTS.name, self._slots_max)
            return False
        if self._total + partitions > self._total_max():
            self._on_limit(MAX_FETCH_SESSION_PARTITIONS.name, self._total_max())
            return False
        return True

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots_max:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms < EVICTION_MS:
            return False
        self._forget(oldest.id)
        return True

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._total -= len(session.wanted)


def _has_impossible_name(wishes: Wishes) -> bool:
    """A session remembers the names of its topics: those of 32 KiB, by the thousand, would fill the memory."""
    return any(len(name) > TOPIC_NAME_LENGTH_MAX for name, _, _ in wishes)


def _each_wish(request: m.FetchRequest) -> Iterator[Wanted]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield Wanted(
                (topic.topic, topic.topic_id, partition.partition),
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
            )
