"""The smallest fetches, which are most of them: a consumer reads one partition, and there is little or nothing new.

They are answered from the frame, or wait, without a message, a context and a `_Fetch` of their own. Whatever is out
of the ordinary is left to the general way (`apis.k01_fetch`): at once, where nothing has changed yet, or, where it
turns out while one waits, by handing over what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from millpond.base.errors import Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later, done
from millpond.base.pending import Pending
from millpond.base.ports import FileRange, ReplyPart
from millpond.base.rights import Operation
from millpond.broker.fetch_sessions.consumer_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchSession,
    Key,
    Wanted,
)
from millpond.broker.requests.call import NODE_CLIENT_ID, Call
from millpond.broker.requests.replies import Outcome, Response, encode_reply, release_ranges
from millpond.config.node import FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS
from millpond.wire import messages as m
from millpond.wire.header import RequestHeader
from millpond.wire.kernel import ShortFetch
from millpond.wire.kernel.fetch import REPLY_TAIL

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext, SecurityContext
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.connection import Connection

    AnswerNow = Callable[[NodeContext, MetadataContext, DataContext, Call, m.FetchRequest, FetchContext], Outcome]
    """The general way of a fetch that waits no longer."""

FETCH: Final = 1
TOPIC_IDS_FROM: Final = 13
READ_COMMITTED: Final = 1
JOINED_BYTES_MAX: Final = 8 << 10
"""Up to this size records are read and joined with the reply, as links do: one system call, where to ask whether they
are in memory takes two."""

_OF_NODES: Final = NODE_CLIENT_ID.encode()
_INDEX_BYTES: Final = 4


class Wish(Protocol):
    """From where on to read a partition, and how much: of the request itself, or of its session."""

    @property
    def fetch_offset(self) -> int: ...

    @property
    def bytes_max(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


class _Found(NamedTuple):
    high_watermark: int
    stable_offset: int
    start_offset: int
    size: int
    records: list[ReplyPart]


def serve_short(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    connection: Connection,
    asked: ShortFetch,
    answer_now: AnswerNow,
) -> bool:
    """Answer it, or let it wait. False leaves everything as it was."""
    if asked.client_id is not None and asked.client_id.startswith(_OF_NODES):
        return False
    by_id = asked.version >= TOPIC_IDS_FROM
    session: FetchSession | None = None
    wanted: Wanted | None = None
    if asked.session_epoch > 0:
        owner = connection.known if security.access.is_on else None
        known = data.fetch_sessions.of_one(asked.session_id, asked.session_epoch, owner, uses_topic_ids=by_id)
        if known is None:
            return False
        session, wanted = known
    elif asked.session_epoch != FINAL_EPOCH or asked.session_id != NO_SESSION or asked.key is None:
        return False
    partition = _partition(data, asked, wanted, by_id=by_id)
    if partition is None:
        return False
    wish: Wish = asked if wanted is None or asked.key is not None else wanted
    found = _read(node, security, connection, asked, wish, partition)
    if found is None:
        return False
    bytes_min = min(asked.min_bytes, asked.max_bytes, node.settings[FETCH_MAX_BYTES])
    waits = asked.max_wait_ms > 0 and found.size < bytes_min
    if waits and (found.size or bytes_min > 1):
        # It waits for more than the next record.
        release_ranges(found.records)
        return False
    if session is not None and wanted is not None:
        if asked.key is not None:
            wanted.fetch_offset, wanted.bytes_max = asked.fetch_offset, asked.bytes_max
            wanted.leader_epoch = asked.leader_epoch
        data.fetch_sessions.use(session, node.clock.monotonic_ms())
    if waits:
        PendingFetch(node, security, metadata, data, connection, asked, partition, session, wanted, answer_now)
    else:
        connection.reply_parts(_reply(asked, partition, session, wanted, found))
        node.requests.on_answer(FETCH, connection.arrived_us)
    return True


def _partition(data: DataContext, asked: ShortFetch, wanted: Wanted | None, *, by_id: bool) -> Partition | None:
    """The one that it is about; of a session, the one that this has."""
    if asked.key is not None:
        partition = data.partitions.by_raw(asked.key, is_id=by_id)
        if partition is None or wanted is None:
            return partition
        name, topic_id, index = wanted.key
        is_same = topic_id == partition.topic_id if by_id else name == partition.name.topic
        return partition if is_same and index == partition.name.partition else None
    assert wanted is not None, "without a session a partition is named"
    name, topic_id, index = wanted.key
    return data.partitions.by_id(topic_id, index) if by_id else data.partitions.get(name, index)


def _read(
    node: NodeContext,
    security: SecurityContext,
    connection: Connection,
    asked: ShortFetch,
    wish: Wish,
    partition: Partition,
) -> _Found | None:
    """What is there to read; None where it has to be refused, or cannot be had from memory."""
    if not partition.is_leader or (wish.leader_epoch != -1 and wish.leader_epoch != partition.leader_epoch):
        return None
    access = security.access
    if access.is_on and not access.may_often(connection, Operation.READ, partition.name.topic):
        return None
    log = partition.log
    high_watermark = partition.committed_offset
    stable_offset = log.stable_offset(high_watermark)
    committed_only = asked.isolation_level == READ_COMMITTED
    upper_offset = stable_offset if committed_only else high_watermark
    if wish.fetch_offset == upper_offset and log.start_offset <= upper_offset <= log.end_offset and log.is_online:
        # It has all there is: nothing need be looked for.
        return _Found(high_watermark, stable_offset, log.start_offset, 0, [])
    bytes_max = min(wish.bytes_max, max(min(asked.max_bytes, node.settings[FETCH_MAX_BYTES]), 0))
    try:
        ranges, upper_offset = partition.read(
            wish.fetch_offset,
            bytes_max,
            at_least_one_batch=True,
            upper_offset=upper_offset,
        )
    except Refused:
        return None
    if not ranges:
        return _Found(high_watermark, stable_offset, log.start_offset, 0, [])
    if committed_only and _are_aborted(partition, wish.fetch_offset, upper_offset):
        release_ranges(ranges)
        return None
    records = _from_memory(ranges)
    if records is None:
        release_ranges(ranges)
        return None
    return _Found(high_watermark, stable_offset, log.start_offset, sum(map(len, records)), records)


def _are_aborted(partition: Partition, offset: int, upper_offset: int) -> bool:
    """Whether a reader of committed records has to leave some of these out, or whether nobody can tell."""
    try:
        return bool(partition.log.aborted_transactions(offset, upper_offset))
    except Refused:
        return True


def _from_memory(ranges: list[FileRange]) -> list[ReplyPart] | None:
    """The records, of which few are read and released; None, with nothing released, where the disk would be waited
    for."""
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
    asked: ShortFetch, partition: Partition, session: FetchSession | None, wanted: Wanted | None, found: _Found
) -> list[ReplyPart]:
    high_watermark, stable_offset, start_offset, size, records = found
    partition.read_bytes += size
    if session is not None and wanted is not None:
        is_news = wanted.tell(0, high_watermark, start_offset)
        if size:
            session.put_last(wanted)
        elif not is_news:
            return [asked.reply_nothing()]
    topic = partition.topic_id.bytes if asked.version >= TOPIC_IDS_FROM else partition.name.topic.encode()
    head = asked.reply(topic, partition.name.partition, high_watermark, stable_offset, start_offset, size)
    if not records:
        return [head + REPLY_TAIL]
    if isinstance(records[0], FileRange):
        return [head, *records, REPLY_TAIL]
    return [b"".join((head, records[0], REPLY_TAIL))]


class PendingFetch(Pending[list[ReplyPart]]):
    """One that waits for the next record of its partition, for so long as its client has said."""

    __slots__ = (
        "_answer_now",
        "_arrived_us",
        "_asked",
        "_connection",
        "_data",
        "_is_due",
        "_is_late",
        "_metadata",
        "_node",
        "_partition",
        "_security",
        "_session",
        "_slot",
        "_timer",
        "_upper_offset",
        "_wanted",
        "ended",
    )

    def __init__(
        self,
        node: NodeContext,
        security: SecurityContext,
        metadata: MetadataContext,
        data: DataContext,
        connection: Connection,
        asked: ShortFetch,
        partition: Partition,
        session: FetchSession | None,
        wanted: Wanted | None,
        answer_now: AnswerNow,
    ) -> None:
        self._node = node
        self._security = security
        self._metadata = metadata
        self._data = data
        self._connection = connection
        self._arrived_us = connection.arrived_us
        self._asked = asked
        self._partition = partition
        self._session = session
        self._wanted = wanted
        self._answer_now = answer_now
        self._is_due = self._is_late = self.ended = False
        self._upper_offset = self._readable_to()
        """As it was when it began to wait: with a session, its client may ask for what lies before meanwhile."""
        self._slot = connection.keep_slot(self)
        partition.watchers[self] = None
        data.pending_fetches.add()
        wait_ms = min(asked.max_wait_ms, node.settings[FETCH_WAIT_MAX_MS])
        self._timer = node.clock.call_later(wait_ms, self.answer)

    @property
    def _wish(self) -> Wish:
        """As the client has said last."""
        return self._asked if self._wanted is None else self._wanted

    def _readable_to(self) -> int:
        committed_only = self._asked.isolation_level == READ_COMMITTED
        return self._partition.last_stable_offset if committed_only else self._partition.committed_offset

    def on_append(self, partition: Partition, size: int) -> None:
        if self._readable_to() > max(self._wish.fetch_offset, self._upper_offset) and not self.ended:
            self._answer_in_turn()

    def answer(self) -> None:
        """Answer with what there is, however little."""
        self._is_late = True
        if not self.ended:
            self._answer_in_turn()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        if not self.ended:
            self._end()

    def _answer_in_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._data.pending_fetches.answer(self._read_again)

    def _read_again(self) -> None:
        self._is_due = False
        if self.ended:
            return
        found = _read(self._node, self._security, self._connection, self._asked, self._wish, self._partition)
        if found is None:
            self._end()
            self._hand_over()
        elif found.size or self._is_late:
            self.finish(_reply(self._asked, self._partition, self._session, self._wanted, found))

    def finish(self, parts: list[ReplyPart]) -> None:
        if not self.ended:
            self._end()
            self._node.requests.on_answer(FETCH, self._arrived_us)
            self._connection.fill(self._slot, parts)

    def fail(self, failure: Exception) -> None:
        raise failure

    def _end(self) -> None:
        self.ended = True
        self._timer.cancel()
        self._partition.watchers.pop(self, None)
        self._data.pending_fetches.remove()

    def _hand_over(self) -> None:
        """Something has happened to the partition, or to its consumer's rights, or its records are not in memory."""
        asked = self._asked
        client_id = None if asked.client_id is None else asked.client_id.decode()
        call = Call(self._connection, asked.version, client_id, self._arrived_us, self._security.access)
        request = m.FetchRequest(
            max_wait_ms=asked.max_wait_ms,
            min_bytes=asked.min_bytes,
            max_bytes=asked.max_bytes,
            isolation_level=asked.isolation_level,
        )
        wanted = self._wanted
        if wanted is None:
            wanted = Wanted(_key_of(asked), asked.fetch_offset, asked.bytes_max, asked.leader_epoch)
        is_incremental = self._session is not None
        context = FetchContext(asked.session_id, [wanted], is_incremental=is_incremental, session=self._session)
        outcome = self._answer_now(self._node, self._metadata, self._data, call, request, context)
        header = RequestHeader(FETCH, asked.version, asked.correlation_id, client_id, 0)

        def encode(response: Response) -> list[ReplyPart]:
            self._node.requests.on_answer(FETCH, self._arrived_us, response)
            return encode_reply(header, response)

        later = outcome if isinstance(outcome, Later) else done(outcome)
        self._connection.fill_later(self._slot, later, encode)


def _key_of(asked: ShortFetch) -> Key:
    assert asked.key is not None, "without a session a partition is named"
    topic, index = asked.key[:-_INDEX_BYTES], int.from_bytes(asked.key[-_INDEX_BYTES:], "big", signed=True)
    return ("", UUID(bytes=topic), index) if asked.version >= TOPIC_IDS_FROM else (topic.decode(), NO_TOPIC_ID, index)
