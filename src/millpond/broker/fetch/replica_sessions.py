"""The fetch sessions of followers: one per follower, which reads only partitions that have changed.

A session watches its partitions from one fetch to the next, because a follower may replicate thousands: a partition
that has grown, changed its role or moved its log start offset is read for the next response, and no other. A new
request of the session ends the wait of the previous one. A range that is not in memory is first read by a worker, and
only its own partition waits for that: a follower that is far behind in one partition still gets the others in time.
A consumer's fetch (`consumer_fetch`) has few partitions, reads all of them and answers once: the two share reading,
warming and waiting, but not the bookkeeping of what to read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import EpochEnd
from millpond.base.later import Later, done
from millpond.base.ports import FileRange
from millpond.base.values import dataclass
from millpond.broker.fetch.consumer_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from millpond.broker.fetch.page_cache import cold_ranges, warm
from millpond.broker.fetch.partition_reads import TopicResponses, add_to_topic, failed_partition
from millpond.broker.fetch.pending_fetch import LaterFetch
from millpond.broker.fetch.source import FetchSource
from millpond.broker.loop.steps import Steps, in_slices, run_steps
from millpond.broker.replication.partitions import Partition
from millpond.broker.replication.throttle import Throttle
from millpond.broker.requests.replies import Outcome, release_ranges
from millpond.config.node import BROKER_SESSION_TIMEOUT_MS, FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS
from millpond.replication.follower import FROM_SCRATCH
from millpond.wire import messages as m

SHARE_BYTES_MIN: Final = 1 << 20
"""Each partition may have this much of a response, however many have records."""

REQUESTED_AT_ONCE: Final = 1_000
"""A request that names more partitions is taken in steps."""

REQUESTED_PER_STEP: Final = 500

READ_AT_ONCE: Final = 500
"""How many partitions are read for one response, or in one turn of the loop while there is nothing to send."""

ADVANCED_MAX: Final = 500
"""How many partitions without records one response has, only because their high watermark has advanced."""

FORGOTTEN_MAX: Final = 1_000
"""The most forgotten partitions whose last records are remembered: a follower that cannot append forgets one for a
while."""

_Key: TypeAlias = tuple[UUID, int]
"""Topic id and index of a partition."""


@dataclass(slots=True, eq=False)
class _RequestedPartition:
    """What a follower requests of one partition, and what it was sent since then."""

    key: _Key
    offset: int
    last_epoch: int
    leader_epoch: int
    start_offset: int
    bytes_max: int
    partition: Partition | None = None
    """The partition being watched."""
    sent_high_watermark: int = -1
    sent_start_offset: int = -1
    is_consistent: bool = False
    """Whether the follower's log is a prefix of ours: then its fetch offset shows how far it has replicated."""
    is_sent: bool = False
    """Whether it has been sent records, so that its next request is due."""
    is_warm: bool = False
    fault: ErrorCode = ErrorCode.NONE
    """Why the worker could not read it."""


@dataclass(slots=True)
class _SentRecords:
    """The records that a follower was last sent of one partition."""

    leader_epoch: int
    offset: int
    repeats: int = 0
    """How often it has requested them again."""


InTurns: TypeAlias = "Callable[[Steps[Any]], Later[Any]]"

_Read: TypeAlias = "tuple[_RequestedPartition, m.FetchResponse.PartitionData]"


class ReplicaSessions:
    """The sessions of all followers, at most one for each."""

    def __init__(
        self,
        source: FetchSource,
        broker_epoch_of: Callable[[int], int],
        on_repeated_fetch: Callable[[Partition, int], None],
        throttle: Throttle,
    ) -> None:
        """`broker_epoch_of` returns -1 for a node that the metadata does not have.

        `on_repeated_fetch` is called when a follower is sent the same records again and again.
        """
        self.source = source
        self.on_repeated_fetch = on_repeated_fetch
        self.throttle = throttle
        self._broker_epoch_of = broker_epoch_of
        self._sessions: dict[int, ReplicaSession] = {}
        """By the follower's node id."""
        self._fetched_ms: dict[int, int] = {}

    def is_followed_by(self, node_id: int) -> bool:
        """Whether this node has fetched recently, as every follower does."""
        fetched_ms = self._fetched_ms.get(node_id)
        recent_ms = self.source.settings()[BROKER_SESSION_TIMEOUT_MS] // 2
        return fetched_ms is not None and self.source.clock.monotonic_ms() - fetched_ms < recent_ms

    def fetch(
        self, request: m.FetchRequest, node_id: int, broker_epoch: int, in_turns: InTurns | None = None
    ) -> Outcome:
        """Serve a follower's request. `in_turns` runs the steps of a large one."""
        session = self._sessions.get(node_id)
        is_stranger = broker_epoch < 0 or broker_epoch != self._broker_epoch_of(node_id)
        if request.session_epoch == FINAL_EPOCH or (request.session_epoch == INITIAL_EPOCH and is_stranger):
            # Only registered nodes get a session, and only they can end theirs.
            session = ReplicaSession(self, node_id, NO_SESSION)
        elif request.session_epoch == INITIAL_EPOCH:
            if session is not None:
                session.end()
            session_id = 1 + self.source.entropy.below((1 << 31) - 2)
            session = self._sessions[node_id] = ReplicaSession(self, node_id, session_id)
        elif session is None or session.id != request.session_id:
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif session.broker_epoch != broker_epoch:
            # After it has registered again, a follower states its offset in every partition: no other counts.
            session.end()
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif session.epoch != request.session_epoch:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if not is_stranger:
            self._fetched_ms[node_id] = self.source.clock.monotonic_ms()
        return session.fetch(request, broker_epoch, in_turns or partial(run_steps, self.source.clock))

    def remove(self, session: ReplicaSession) -> None:
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]


class PendingReplicaFetch(LaterFetch):
    """A follower's fetch that waits for a change in its session."""

    __slots__ = ("_session",)

    def __init__(self, source: FetchSource, session: ReplicaSession) -> None:
        LaterFetch.__init__(self, source)
        self._session = session

    def answer(self) -> None:
        self._session.answer()

    def wake(self) -> None:
        if not self._is_due and not self.ended:
            self._is_due = True
            # After this turn, so that one response has all that happens in it.
            self._source.clock.call_soon(self._resume)

    def _read_again(self) -> None:
        self._session.answer_changes()

    def _unwatch(self) -> None:
        """The session keeps watching its partitions, unless its connection has closed."""
        self._session.on_end(self)


class ReplicaSession:
    """One follower's session."""

    def __init__(self, sessions: ReplicaSessions, node_id: int, session_id: int) -> None:
        self.node_id = node_id
        self.id = session_id
        self.epoch = INITIAL_EPOCH
        self._sessions = sessions
        self._source = sessions.source
        self._clock = sessions.source.clock
        self.broker_epoch = -1
        self._requested: dict[_Key, _RequestedPartition] = {}
        self._ready: dict[_Key, None] = {}
        """The partitions to read for the next response; one that has been sent records goes to the end."""
        self._sent: dict[_Key, _SentRecords] = {}
        self._advanced: dict[_Key, None] = {}
        """The partitions whose high watermark has advanced, which is sent along with other changes."""
        self._pending: PendingReplicaFetch | None = None
        self._bytes_max = 0
        self._is_urgent = False
        """Whether a consumer reads from the follower, and can see more as soon as the high watermark arrives."""
        self._is_unfinished = False
        """Whether there was no time to read all partitions that were ready."""
        self._has_ended = False

    # Requests of the follower.

    def fetch(self, request: m.FetchRequest, broker_epoch: int, in_turns: InTurns) -> Outcome:
        self.answer()
        self.broker_epoch = broker_epoch
        self._bytes_max = min(request.max_bytes, self._source.settings()[FETCH_MAX_BYTES])
        self.epoch = self.epoch % ((1 << 31) - 1) + 1
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self._drop((forgotten.topic_id, index))
        if len(self._sent) > len(self._requested) + FORGOTTEN_MAX:
            self._sent = {key: sent for key, sent in self._sent.items() if key in self._requested}
        if sum(len(topic.partitions) for topic in request.topics) > REQUESTED_AT_ONCE:
            return self._fetch_large(request, in_turns)
        for topic in request.topics:
            for each in topic.partitions:
                self._request((topic.topic_id, each.partition), each)
        return self._answer_or_wait(request)

    def _fetch_large(self, request: m.FetchRequest, in_turns: InTurns) -> Later[Any]:
        outcome: Later[Any] | None = None

        def is_cancelled() -> bool:
            return outcome is not None and outcome.ended

        outcome = in_turns(self._fetch_in_steps(request, is_cancelled)).chain(_as_later)
        return outcome

    def _fetch_in_steps(self, request: m.FetchRequest, is_cancelled: Callable[[], bool]) -> Steps[Outcome]:
        requested = ((topic.topic_id, each) for topic in request.topics for each in topic.partitions)
        slices = in_slices(requested, REQUESTED_PER_STEP)
        while not self._has_ended and (some := next(slices, None)):
            for topic_id, each in some:
                self._request((topic_id, each.partition), each)
            yield None
            if is_cancelled() and not self._has_ended:
                # The connection has closed: nothing would release the files of a response.
                self.end()
        if self._has_ended:
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        # Another request of the session may be pending by now, on another connection.
        self.answer()
        return self._answer_or_wait(request)

    def _answer_or_wait(self, request: m.FetchRequest) -> Outcome:
        reads = self._read()
        has_many = len(self._advanced) >= ADVANCED_MAX
        if reads or has_many or request.max_wait_ms <= 0 or not self._requested or self._is_urgent:
            return self._response(reads)
        self._pending = pending = PendingReplicaFetch(self._source, self)
        if self._is_unfinished:
            pending.wake()
        pending.wait(min(request.max_wait_ms, self._source.settings()[FETCH_WAIT_MAX_MS]))
        return pending

    def _request(self, key: _Key, partition_request: m.FetchRequest.FetchPartition) -> None:
        requested = _RequestedPartition(
            key,
            partition_request.fetch_offset,
            partition_request.last_fetched_epoch,
            partition_request.current_leader_epoch,
            partition_request.log_start_offset,
            partition_request.partition_max_bytes,
        )
        self._unwatch(self._requested.get(key))
        self._requested[key] = requested
        self._ready.pop(key, None)
        self._ready[key] = None
        partition = self._source.partitions.by_id(*key)
        if partition is None:
            return
        requested.partition = partition
        partition.replica_watchers[self] = None
        self._check_repeats(requested, partition)
        try:
            is_same_epoch = requested.leader_epoch == partition.leader_epoch
            requested.is_consistent = self._divergence(requested, partition) is None and is_same_epoch
        except Refused:
            # The response has the error.
            return
        if requested.is_consistent and partition.leader_role is not None:
            # The follower has everything below its fetch offset.
            partition.leader_role.on_fetch(self.node_id, self.broker_epoch, requested.offset, requested.start_offset)

    def _check_repeats(self, requested: _RequestedPartition, partition: Partition) -> None:
        sent = self._sent.get(requested.key)
        if sent is None:
            return
        if (sent.leader_epoch, sent.offset) != (requested.leader_epoch, requested.offset):
            del self._sent[requested.key]
            return
        sent.repeats += 1
        # At powers of two: the follower may just be out of disk space.
        if sent.repeats > 1 and sent.repeats & (sent.repeats - 1) == 0:
            self._sessions.on_repeated_fetch(partition, requested.offset)

    def _drop(self, key: _Key) -> None:
        self._unwatch(self._requested.pop(key, None))
        self._ready.pop(key, None)
        self._advanced.pop(key, None)

    def _unwatch(self, requested: _RequestedPartition | None) -> None:
        if requested is not None and requested.partition is not None:
            requested.partition.replica_watchers.pop(self, None)
            requested.partition = None

    def end(self) -> None:
        """The follower starts another session, or is gone."""
        self._has_ended = True
        self.answer()
        for requested in self._requested.values():
            self._unwatch(requested)
        self._requested, self._ready, self._advanced = {}, {}, {}
        self._sessions.remove(self)

    # Called by partitions.

    def on_append(self, partition: Partition, size: int) -> None:
        requested = self._requested.get((partition.topic_id, partition.name.partition))
        if requested is None or requested.is_sent or requested.key in self._ready:
            return
        if requested.is_consistent and partition.leader_role is not None:
            partition.leader_role.on_caught_up(self.node_id, self.broker_epoch, requested.offset)
        # The follower had caught up, and what is new has just been written.
        requested.is_warm = True
        self._mark_ready(requested)

    def on_commit(self, partition: Partition) -> None:
        self._advanced[partition.topic_id, partition.name.partition] = None
        if partition.leader_role is not None and partition.leader_role.is_read_at(self.node_id):
            self._is_urgent = True
            self._wake()

    def on_change(self, partition: Partition) -> None:
        """Send the new role or log start offset soon."""
        requested = self._requested.get((partition.topic_id, partition.name.partition))
        if requested is not None:
            # What the follower had in another epoch says nothing about this one.
            requested.is_consistent = requested.is_consistent and requested.leader_epoch == partition.leader_epoch
            self._mark_ready(requested)

    def _mark_ready(self, requested: _RequestedPartition) -> None:
        self._ready[requested.key] = None
        self._wake()

    def _wake(self) -> None:
        if self._pending is not None:
            self._pending.wake()

    # Waiting.

    def on_end(self, pending: PendingReplicaFetch) -> None:
        if self._pending is pending:
            # It was cancelled: the connection has closed, and the session ends with it.
            self._pending = None
            self.end()

    def answer_changes(self) -> None:
        """Answer the pending fetch if there is anything to send."""
        reads = self._read()
        if reads or self._is_urgent:
            self._answer(reads)
        elif self._is_unfinished:
            self._wake()

    def answer(self) -> None:
        """Answer the pending fetch, if there is one, with what is available."""
        if self._pending is not None:
            self._answer(self._read())

    def _answer(self, reads: list[_Read]) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        pending.finish(self._response(reads))

    # Reading.

    def _read(self) -> list[_Read]:
        """What to send of the partitions that are ready, as far as it fits into one response."""
        reads: list[_Read] = []
        bytes_left = self._bytes_max
        # A single partition gets all it requests; among many, one that is far behind must not delay the others.
        share = max(bytes_left // max(len(self._ready), 1), SHARE_BYTES_MIN)
        ready_count = len(self._ready)
        for key in list(islice(self._ready, READ_AT_ONCE)):
            requested = self._requested[key]
            is_first = bytes_left == self._bytes_max
            data, ranges = self._read_one(requested, min(share, bytes_left), is_first=is_first)
            bytes_left -= sum(part.length for part in ranges)
            if ranges:
                requested.is_sent = True
                if key not in self._sent:
                    self._sent[key] = _SentRecords(requested.leader_epoch, requested.offset)
            must_send = bool(ranges) or self._must_send(requested, data)
            if must_send:
                reads.append((requested, data))
            elif requested.sent_high_watermark != data.high_watermark:
                self._advanced[key] = None
            if must_send or not self._has_more(requested):
                del self._ready[key]
            if bytes_left <= 0:
                break
        self._is_unfinished = ready_count > READ_AT_ONCE and len(self._ready) < ready_count
        return reads

    def _must_send(self, requested: _RequestedPartition, data: m.FetchResponse.PartitionData) -> bool:
        """Whether to send it now, though it has no records."""
        is_start_moved = requested.start_offset < data.log_start_offset != requested.sent_start_offset
        return bool(data.error_code) or data.diverging_epoch.epoch >= 0 or is_start_moved

    def _has_more(self, requested: _RequestedPartition) -> bool:
        """Whether there are records that did not fit into the response."""
        partition = requested.partition
        return partition is not None and not requested.is_sent and requested.offset < partition.log.end_offset

    def _read_one(
        self, requested: _RequestedPartition, bytes_left: int, *, is_first: bool
    ) -> tuple[m.FetchResponse.PartitionData, list[FileRange]]:
        partition, index = requested.partition, requested.key[1]
        if partition is None or self._source.partitions.by_id(*requested.key) is not partition:
            return failed_partition(index, self._source.absence(*requested.key)), []
        ranges: list[FileRange] = []
        try:
            if requested.fault:
                raise Refused(requested.fault)
            diverging = self._divergence(requested, partition)
            if diverging is None:
                bytes_max = min(requested.bytes_max, max(bytes_left, 0))
                ranges, _ = partition.log.read_ranges(requested.offset, bytes_max, min_one=is_first, is_whole=True)
        except Refused as refusal:
            return failed_partition(index, refusal.code, partition), []
        if ranges and not requested.is_warm:
            ranges = self._warm(requested, ranges)
        if ranges and partition.throttles(self.node_id):
            ranges = self._throttle(requested, ranges)
        data = _partition_data(partition, [*ranges])
        if requested.offset < partition.log.evidence_floor:
            # Like a snapshot of the metadata log: below this offset the log has been compacted.
            data.snapshot_id = m.FetchResponse.SnapshotId(
                end_offset=partition.log.evidence_floor, epoch=max(partition.log.last_epoch, 0)
            )
        if diverging is not None:
            data.diverging_epoch = m.FetchResponse.EpochEndOffset(
                epoch=diverging.epoch, end_offset=diverging.end_offset
            )
        return data, ranges

    def _divergence(self, requested: _RequestedPartition, partition: Partition) -> EpochEnd | None:
        """Where the follower's log diverges from ours, if it does. Refused if this is not its leader."""
        partition.check_leader_epoch(requested.leader_epoch)
        partition.check_leads()
        if partition.leader_role is None:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition.name} has no other replica")
        partition.leader_role.check_replica(self.node_id, self.broker_epoch)
        diverging = partition.leader_role.divergence(requested.offset, requested.last_epoch)
        if diverging is None and partition.leader_role.must_start_over(
            self.node_id, self.broker_epoch, requested.offset, requested.start_offset, requested.last_epoch
        ):
            return FROM_SCRATCH
        return diverging

    def _warm(self, requested: _RequestedPartition, ranges: list[FileRange]) -> list[FileRange]:
        """The ranges if they are in memory. If not, none, and the partition is ready once a worker has read them."""
        cold = cold_ranges(ranges)
        if not cold:
            return ranges

        def on_warm(is_readable: bool) -> None:
            release_ranges(ranges)
            requested.is_warm = True
            if not is_readable:
                requested.fault = ErrorCode.KAFKA_STORAGE_ERROR
            self._resume(requested)

        # Appends do not make it ready meanwhile.
        requested.is_sent = True
        warm(self._source.workers, cold).then(on_warm)
        return []

    def _throttle(self, requested: _RequestedPartition, ranges: list[FileRange]) -> list[FileRange]:
        """The ranges if they may be sent now. If not, none: the partition is ready again when they may."""
        throttle, now_ms = self._sessions.throttle, self._clock.monotonic_ms()
        held_ms = throttle.held_ms(now_ms)
        if not held_ms:
            throttle.count(sum(part.length for part in ranges), now_ms)
            return ranges
        release_ranges(ranges)
        # Appends do not make it ready meanwhile.
        requested.is_sent = True
        self._clock.call_later(held_ms, partial(self._resume, requested))
        return []

    def _resume(self, requested: _RequestedPartition) -> None:
        if self._requested.get(requested.key) is requested:
            self._mark_ready(requested)

    # Answering.

    def _response(self, reads: list[_Read]) -> m.FetchResponse:
        topics: TopicResponses = {}
        for requested, data in reads:
            self._put(requested, data, topics)
        for key in list(islice(self._advanced, ADVANCED_MAX)):
            del self._advanced[key]
            self._put_advanced(key, topics)
        self._is_urgent = False
        response = m.FetchResponse(session_id=self.id, responses=list(topics.values()))
        if self.id == NO_SESSION:
            self.end()
        return response

    def _put_advanced(self, key: _Key, topics: TopicResponses) -> None:
        requested = self._requested.get(key)
        partition = None if requested is None else requested.partition
        if requested is None or partition is None or not requested.is_consistent or key in self._ready:
            return
        if requested.sent_high_watermark != partition.committed_offset and partition.is_leader:
            self._put(requested, _partition_data(partition, b""), topics)

    def _put(
        self, requested: _RequestedPartition, data: m.FetchResponse.PartitionData, topics: TopicResponses
    ) -> None:
        requested.sent_high_watermark, requested.sent_start_offset = data.high_watermark, data.log_start_offset
        add_to_topic(topics, "", requested.key[0], data)


def _partition_data(partition: Partition, records: Any) -> m.FetchResponse.PartitionData:
    return m.FetchResponse.PartitionData(
        partition_index=partition.name.partition,
        high_watermark=partition.committed_offset,
        log_start_offset=partition.log.start_offset,
        aborted_transactions=None,
        records=records,
    )


def _as_later(outcome: Outcome) -> Later[Any]:
    return outcome if isinstance(outcome, Later) else done(outcome)


def _refused(code: ErrorCode) -> m.FetchResponse:
    return m.FetchResponse(error_code=code, session_id=NO_SESSION, responses=[])
