"""Incremental fetch sessions (KIP-227): a consumer sends its partitions once, then only what changes.

A session has an id, and an epoch that rises by one with each request. For each partition it keeps what the client
last requested and what it was last sent, so that a response can leave out everything that is unchanged. With
authentication a session belongs to its principal; to any other client it does not exist.
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
TOPIC_IDS_FROM: Final = 13
EVICTION_MS = 120_000
"""A session that was used within this time is not evicted for a new one."""

PARTITIONS_PER_STEP: Final = 500

Key = tuple[str, UUID, int]
"""Topic name (up to version 12), topic id (from version 13), partition."""


@dataclass(slots=True)
class RequestedPartition:
    """What a client requests of one partition, and what it was last sent about it."""

    key: Key
    fetch_offset: int
    bytes_max: int
    leader_epoch: int
    sent_high_watermark: int = -1
    sent_start_offset: int = -1
    sent_error: int = 0
    is_new: bool = True

    def move_to(self, fetch_offset: int, bytes_max: int, leader_epoch: int) -> None:
        self.fetch_offset = fetch_offset
        self.bytes_max = bytes_max
        self.leader_epoch = leader_epoch

    def copy_sent(self, earlier: RequestedPartition) -> None:
        """Take over what the client was sent in response to an earlier request."""
        self.sent_high_watermark = earlier.sent_high_watermark
        self.sent_start_offset = earlier.sent_start_offset
        self.sent_error = earlier.sent_error
        self.is_new = earlier.is_new

    def note_sent(self, error_code: int, high_watermark: int, start_offset: int) -> bool:
        """Remember what the client is sent; return whether it is an error or differs from the last time."""
        is_changed = (
            self.is_new
            or error_code != ErrorCode.NONE
            or self.sent_error != error_code
            or self.sent_high_watermark != high_watermark
            or self.sent_start_offset != start_offset
        )
        self.is_new = False
        self.sent_error = error_code
        self.sent_high_watermark = high_watermark
        self.sent_start_offset = start_offset
        return is_changed


RequestedPartitions: TypeAlias = dict[Key, RequestedPartition]


@dataclass(slots=True)
class FetchSession:
    id: int
    uses_topic_ids: bool
    owner: Principal | None = None
    epoch: int = 1
    last_used_ms: int = 0
    partitions: RequestedPartitions = field(default_factory=dict)

    def update(self, requested: RequestedPartitions) -> None:
        for each in requested.values():
            partition = self.partitions.get(each.key)
            if partition is None:
                self.partitions[each.key] = each
            else:
                partition.move_to(each.fetch_offset, each.bytes_max, each.leader_epoch)

    def move_to_end(self, sent: RequestedPartition) -> None:
        """Read this partition last the next time, so that a full response cannot starve the others."""
        # A client that does not wait for its responses may have removed the partition since.
        if sent.key in self.partitions:
            self.partitions[sent.key] = self.partitions.pop(sent.key)


@dataclass(slots=True)
class FetchContext:
    """The partitions of one request, and whether unchanged ones may be left out of the response."""

    session_id: int
    partitions: list[RequestedPartition]
    is_incremental: bool
    session: FetchSession | None = None

    def must_send(self, requested: RequestedPartition, data: m.FetchResponse.PartitionData) -> bool:
        """Whether the response must include this partition; remembers what the client is sent."""
        is_changed = requested.note_sent(data.error_code, data.high_watermark, data.log_start_offset)
        if not self.is_incremental:
            return True
        has_records = bool(data.records)
        if has_records and self.session is not None:
            self.session.move_to_end(requested)
        return is_changed or has_records or data.preferred_read_replica >= 0


class FetchSessions:
    def __init__(
        self,
        slots_max: int,
        partitions_max: Callable[[], int],
        entropy: Entropy,
        total_max: Callable[[], int] = lambda: 1 << 31,
        on_limit: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        """`on_limit` is called with the setting that leaves a client without a session."""
        self._on_limit = on_limit
        self._slots_max = slots_max
        self._total_max = total_max
        self._total = 0
        """Partitions of all sessions together."""
        self._partitions_max = partitions_max
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}
        """Least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def requested_in_steps(self, request: m.FetchRequest, owner: Principal | None) -> Steps[RequestedPartitions]:
        """The partitions of a request that names thousands, for `context`."""
        session = self._session_of(request, owner)
        requested: RequestedPartitions = {}
        for number, partition in enumerate(_requested(request)):
            if number % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield None
            earlier = None if session is None else session.partitions.get(partition.key)
            if earlier is not None:
                partition.copy_sent(earlier)
            requested[partition.key] = partition
        return requested

    def context(
        self,
        request: m.FetchRequest,
        version: int,
        now_ms: int,
        owner: Principal | None = None,
        prepared: RequestedPartitions | None = None,
    ) -> FetchContext:
        """The partitions to read for this request. Refused if its session does not exist.

        `owner` is the client, with authentication; `prepared` is the result of `requested_in_steps`, if it has run.
        """
        # A partition that is named more than once counts as it is named last.
        requested = {each.key: each for each in _requested(request)} if prepared is None else prepared
        session = self._session_of(request, owner)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._remove(session.id)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(NO_SESSION, list(requested.values()), is_incremental=False)
            return self._start(requested, version, now_ms, owner)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= TOPIC_IDS_FROM):
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if _has_invalid_name(requested):
            self._remove(session.id)
            raise Refused(ErrorCode.INVALID_REQUEST, "a topic name is too long")
        count_before = len(session.partitions)
        if prepared is None:
            session.update(requested)
        else:
            session.partitions.update(requested)
        return self._continue(session, request, count_before, now_ms)

    def _session_of(self, request: m.FetchRequest, owner: Principal | None) -> FetchSession | None:
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner is not owner and session.owner != owner:
            return None
        return session

    def with_one_partition(
        self, session_id: int, epoch: int, owner: Principal | None, *, uses_topic_ids: bool
    ) -> tuple[FetchSession, RequestedPartition] | None:
        """The session that a request of this epoch continues, and its partition, if it has exactly one.

        Changes nothing: None leaves the request to `context`.
        """
        session = self._sessions.get(session_id)
        if (
            session is None
            or session.epoch != epoch
            or session.uses_topic_ids != uses_topic_ids
            or len(session.partitions) != 1
            or (session.owner is not owner and session.owner != owner)
        ):
            return None
        (requested,) = session.partitions.values()
        return session, requested

    def advance(self, session: FetchSession, now_ms: int) -> None:
        """Go to the next epoch after a request."""
        session.epoch = session.epoch % ((1 << 31) - 1) + 1
        session.last_used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _start(
        self, requested: RequestedPartitions, version: int, now_ms: int, owner: Principal | None
    ) -> FetchContext:
        partitions = list(requested.values())
        if not requested or _has_invalid_name(requested) or not self._has_room(len(requested), now_ms):
            return FetchContext(NO_SESSION, partitions, is_incremental=False)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._entropy.below((1 << 31) - 1)
        session = FetchSession(
            session_id, version >= TOPIC_IDS_FROM, owner, last_used_ms=now_ms, partitions=requested
        )
        self._sessions[session_id] = session
        self._total += len(requested)
        return FetchContext(session_id, partitions, is_incremental=False, session=session)

    def _continue(
        self, session: FetchSession, request: m.FetchRequest, count_before: int, now_ms: int
    ) -> FetchContext:
        partitions = session.partitions
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                partitions.pop((topic.topic, topic.topic_id, index), None)
        self._total += len(partitions) - count_before
        if len(partitions) > count_before and self._total > self._total_max():
            # The consumer then sends its whole list with each request.
            self._remove(session.id)
            self._on_limit(MAX_FETCH_SESSION_PARTITIONS.name, self._total_max())
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if len(partitions) > self._partitions_max():
            # Requests that are each within the limit must not add up to more.
            self._remove(session.id)
            raise Refused(ErrorCode.INVALID_REQUEST, "the session has more partitions than one request may name")
        self.advance(session, now_ms)
        return FetchContext(session.id, list(partitions.values()), is_incremental=True, session=session)

    def _has_room(self, partitions: int, now_ms: int) -> bool:
        if not self._make_room(now_ms):
            if self._slots_max:
                # With no slots at all, the operator does not want sessions.
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
        self._remove(oldest.id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._total -= len(session.partitions)


def _has_invalid_name(requested: RequestedPartitions) -> bool:
    """A session keeps the names of its topics: thousands of 32 KiB each would fill the memory."""
    return any(len(name) > TOPIC_NAME_LENGTH_MAX for name, _, _ in requested)


def _requested(request: m.FetchRequest) -> Iterator[RequestedPartition]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield RequestedPartition(
                (topic.topic, topic.topic_id, partition.partition),
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
            )
