"""The short path of a fetch: a consumer reads one partition, and there is little or nothing new.

Most fetches are like this. They are answered from the frame, or wait, without a decoded message and a `Call`.
Everything unusual is left to the general path (`apis.k01_fetch`): at once, before anything has changed, or, if it
occurs during the wait, by handing the fetch over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from millpond.base.errors import Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later, done
from millpond.base.ports import FileRange, ReplyPart
from millpond.base.rights import Operation
from millpond.broker.fetch.consumer_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    TOPIC_IDS_FROM,
    FetchContext,
    FetchSession,
    Key,
    RequestedPartition,
)
from millpond.broker.fetch.partition_reads import READ_COMMITTED, PartitionRead, read_committed
from millpond.broker.fetch.pending_fetch import PendingFetch
from millpond.broker.requests.call import NODE_CLIENT_ID, Call
from millpond.broker.requests.replies import Outcome, Response, encode_reply, release_ranges
from millpond.config.node import FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS
from millpond.wire import messages as m
from millpond.wire.header import RequestHeader
from millpond.wire.kernel import ShortFetch
from millpond.wire.kernel.fetch import REPLY_TAIL

if TYPE_CHECKING:
    from millpond.broker.fetch.source import FetchSource
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.connection import Connection

AnswerNow = Callable[..., Outcome]
"""The general path of a fetch that no longer waits; takes contexts, a call, a request and a `FetchContext`."""

Contexts = tuple[Any, ...]
"""The contexts that `AnswerNow` takes: binding them for each request would cost more than passing them on."""

FETCH: Final = 1
JOINED_BYTES_MAX: Final = 8 << 10
"""Up to this size records are copied into the reply: one system call, where asking whether they are in memory takes
two."""

_NODE_CLIENT_ID: Final = NODE_CLIENT_ID.encode()
_INDEX_BYTES: Final = 4


class Position(Protocol):
    """Where to read, and how much: from the request itself, or from its session."""

    @property
    def fetch_offset(self) -> int: ...

    @property
    def bytes_max(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


def serve_short(
    source: FetchSource, connection: Connection, request: ShortFetch, answer_now: AnswerNow, contexts: Contexts
) -> bool:
    """Answer the fetch, or let it wait. False changes nothing."""
    if request.client_id is not None and request.client_id.startswith(_NODE_CLIENT_ID):
        return False
    by_id = request.version >= TOPIC_IDS_FROM
    session: FetchSession | None = None
    requested: RequestedPartition | None = None
    if request.session_epoch > 0:
        owner = connection.known if source.access.is_on else None
        continued = source.sessions.with_one_partition(
            request.session_id, request.session_epoch, owner, uses_topic_ids=by_id
        )
        if continued is None:
            return False
        session, requested = continued
    elif request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION or request.key is None:
        return False
    partition = _partition(source, request, requested, by_id=by_id)
    if partition is None:
        return False
    position: Position = request if requested is None or request.key is not None else requested
    settings = source.settings()
    # An idle consumer sends this very often: a comparison is cheaper than a call of `min`.
    bytes_max, bytes_limit = request.max_bytes, settings[FETCH_MAX_BYTES]
    if bytes_max > bytes_limit:
        bytes_max = bytes_limit
    read = _read(source, connection, request, position, bytes_max, partition)
    if read is None:
        return False
    size = sum(map(len, read[1])) if read[1] else 0
    must_wait = False
    if request.max_wait_ms > 0:
        bytes_min = min(request.min_bytes, bytes_max)
        must_wait = size < bytes_min
        if must_wait and (size or bytes_min > 1):
            # It waits for more than the next record.
            release_ranges(read[1])
            return False
    if session is not None and requested is not None:
        if request.key is not None:
            requested.move_to(request.fetch_offset, request.bytes_max, request.leader_epoch)
        source.sessions.advance(session, source.clock.monotonic_ms())
    if must_wait:
        pending = PendingShortFetch(
            source, connection, request, bytes_max, partition, session, requested, answer_now, contexts
        )
        pending.wait(min(request.max_wait_ms, settings[FETCH_WAIT_MAX_MS]))
    else:
        connection.reply_parts(_reply(request, partition, session, requested, read, size))
        source.requests.on_answer(FETCH, connection.arrived_us)
    return True


def _partition(
    source: FetchSource, request: ShortFetch, requested: RequestedPartition | None, *, by_id: bool
) -> Partition | None:
    """The partition to read, if it is the one of the session."""
    if request.key is not None:
        partition = source.partitions.by_raw(request.key, is_id=by_id)
        if partition is None or requested is None:
            return partition
        name, topic_id, index = requested.key
        is_same_topic = topic_id == partition.topic_id if by_id else name == partition.name.topic
        return partition if is_same_topic and index == partition.name.partition else None
    assert requested is not None, "a request without a session names its partition"
    name, topic_id, index = requested.key
    return source.partitions.by_id(topic_id, index) if by_id else source.partitions.get(name, index)


def _read(
    source: FetchSource,
    connection: Connection,
    request: ShortFetch,
    position: Position,
    bytes_max: int,
    partition: Partition,
) -> tuple[PartitionRead, list[ReplyPart]] | None:
    """Read what is available; None if the fetch has to be refused, needs the disk or has aborted transactions."""
    if not partition.is_leader or (position.leader_epoch != -1 and position.leader_epoch != partition.leader_epoch):
        return None
    access = source.access
    if access.is_on and not access.may_often(connection, Operation.READ, partition.name.topic):
        return None
    try:
        read = read_committed(
            partition,
            position.fetch_offset,
            position.bytes_max,
            bytes_max,
            request.isolation_level == READ_COMMITTED,
            True,
        )
    except Refused:
        return None
    ranges = read.ranges
    if not ranges:
        return read, []
    records = None if read.aborted else _from_memory(ranges)
    if records is None:
        release_ranges(ranges)
        return None
    return read, records


def _from_memory(ranges: list[FileRange]) -> list[ReplyPart] | None:
    """The records; a few are read, and their file released. None, with nothing released, if the disk is needed."""
    if len(ranges) == 1 and (first := ranges[0]).length <= JOINED_BYTES_MAX:
        try:
            data = first.file.read_cached(first.position, first.length)
        except OSError:
            return None
        if data is None:
            return None
        first.file.release()
        return [data]
    return [*ranges] if all(part.file.is_cached(part.position, part.length) for part in ranges) else None


def _reply(
    request: ShortFetch,
    partition: Partition,
    session: FetchSession | None,
    requested: RequestedPartition | None,
    read: tuple[PartitionRead, list[ReplyPart]],
    size: int,
) -> list[ReplyPart]:
    (high_watermark, stable_offset, start_offset, _, _), records = read
    if session is not None and requested is not None:
        is_changed = requested.note_sent(0, high_watermark, start_offset)
        if size:
            session.move_to_end(requested)
        elif not is_changed:
            return [request.reply_nothing()]
    topic = partition.topic_id.bytes if request.version >= TOPIC_IDS_FROM else partition.name.topic.encode()
    head = request.reply(topic, partition.name.partition, high_watermark, stable_offset, start_offset, size)
    if not records:
        return [head + REPLY_TAIL]
    partition.read_bytes += size
    if isinstance(records[0], FileRange):
        return [head, *records, REPLY_TAIL]
    return [b"".join((head, records[0], REPLY_TAIL))]


class PendingShortFetch(PendingFetch[list[ReplyPart]]):
    """Waits for the next record of its partition."""

    __slots__ = (
        "_answer_now",
        "_arrived_us",
        "_bytes_max",
        "_connection",
        "_contexts",
        "_is_counted",
        "_is_due",
        "_is_late",
        "_partition",
        "_request",
        "_requested",
        "_session",
        "_slot",
        "_source",
        "_timer",
        "_upper_offset",
        "ended",
    )

    def __init__(
        self,
        source: FetchSource,
        connection: Connection,
        request: ShortFetch,
        bytes_max: int,
        partition: Partition,
        session: FetchSession | None,
        requested: RequestedPartition | None,
        answer_now: AnswerNow,
        contexts: Contexts,
    ) -> None:
        self._source = source
        self._timer = None
        self.ended = self._is_counted = self._is_due = self._is_late = False
        self._connection = connection
        self._arrived_us = connection.arrived_us
        self._request = request
        self._bytes_max = bytes_max
        self._partition = partition
        self._session = session
        self._requested = requested
        self._answer_now = answer_now
        self._contexts = contexts
        self._upper_offset = self._readable_to()
        """At the start of the wait; the session's client may request an earlier offset meanwhile."""
        self._slot = connection.keep_slot(self)
        partition.watchers[self] = None

    @property
    def _position(self) -> Position:
        """As the client last requested it."""
        return self._request if self._requested is None else self._requested

    def _readable_to(self) -> int:
        stable_only = self._request.isolation_level == READ_COMMITTED
        return self._partition.last_stable_offset if stable_only else self._partition.committed_offset

    def on_append(self, partition: Partition, size: int) -> None:
        if self._readable_to() > max(self._position.fetch_offset, self._upper_offset):
            self.wake()

    def _unwatch(self) -> None:
        self._partition.watchers.pop(self, None)

    def _read_again(self) -> None:
        request, partition = self._request, self._partition
        read = _read(self._source, self._connection, request, self._position, self._bytes_max, partition)
        if read is None:
            self._hand_over()
        elif read[1] or self._is_late:
            size = sum(map(len, read[1]))
            self.finish(_reply(request, partition, self._session, self._requested, read, size))

    def finish(self, parts: list[ReplyPart]) -> None:
        if not self.ended:
            self._end()
            self._source.requests.on_answer(FETCH, self._arrived_us)
            self._connection.fill(self._slot, parts)

    def cancel(self) -> None:
        if not self.ended:
            self._end()

    def fail(self, failure: Exception) -> None:
        """Nothing that it waits for fails; the general path refuses."""
        raise failure

    def _hand_over(self) -> None:
        """Leave it to the general path: the partition or the client's rights have changed, or the disk is needed."""
        self._end()
        request = self._request
        client_id = None if request.client_id is None else request.client_id.decode()
        call = Call(self._connection, request.version, client_id, self._arrived_us, self._source.access)
        body = m.FetchRequest(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
        )
        requested = self._requested or RequestedPartition(
            _key_of(request), request.fetch_offset, request.bytes_max, request.leader_epoch
        )
        is_incremental = self._session is not None
        context = FetchContext(request.session_id, [requested], is_incremental=is_incremental, session=self._session)
        outcome = self._answer_now(*self._contexts, call, body, context)
        header = RequestHeader(FETCH, request.version, request.correlation_id, client_id, 0)

        def encode(response: Response) -> list[ReplyPart]:
            self._source.requests.on_answer(FETCH, self._arrived_us, response)
            return encode_reply(header, response)

        later = outcome if isinstance(outcome, Later) else done(outcome)
        self._connection.fill_later(self._slot, later, encode)


def _key_of(request: ShortFetch) -> Key:
    assert request.key is not None, "a request without a session names its partition"
    topic, index = request.key[:-_INDEX_BYTES], int.from_bytes(request.key[-_INDEX_BYTES:], "big", signed=True)
    return (
        ("", UUID(bytes=topic), index) if request.version >= TOPIC_IDS_FROM else (topic.decode(), NO_TOPIC_ID, index)
    )
