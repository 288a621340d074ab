"""Followers that fetch from this node: one session for each, that looks only at partitions with news.

A session watches its partitions: one that has grown, changed its role or got another start is looked at for the next
answer, nobody else. The next request of a session ends the wait of the one before it. Records leave as file ranges; a
range that is not in memory is read by a worker first, and its partition waits for that alone: a follower that is far
behind in one partition does not get the others later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import EpochEnd
from millpond.base.later import Later, done
from millpond.base.ports import Clock, Entropy, FileRange, Workers
from millpond.base.settings import Settings
from millpond.base.values import dataclass
from millpond.broker.fetch_sessions.consumer_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from millpond.broker.loop.steps import Steps, in_slices, run_steps
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.broker.replication.throttle import Throttle
from millpond.broker.requests.replies import Outcome, release_ranges
from millpond.config.node import BROKER_SESSION_TIMEOUT_MS, FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS
from millpond.replication.follower import FROM_SCRATCH
from millpond.wire import messages as m

WARM_STEP_BYTES: Final = 1 << 20

SHARE_BYTES_MIN: Final = 1 << 20
"""So much of one answer each partition may have, however many have something."""

WISHES_AT_ONCE: Final = 1_000
"""A request that says what it wants of more partitions is taken in steps. One with fewer may be cancelled while it
waits, and a cancelled request must not leave steps behind whose files nobody gives back."""

WISHES_PER_STEP: Final = 500

LOOKED_AT_ONCE: Final = 500
"""This many partitions are looked at for one answer, or in one turn of the loop while there is nothing to tell."""

MOVED_MAX: Final = 500
"""Of how many partitions without records one answer tells that their high watermark has moved."""

_Key: TypeAlias = tuple[UUID, int]
"""Topic id and index of a partition."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """What a follower wants of one partition, and what it was last told about it."""

    key: _Key
    offset: int
    last_epoch: int
    leader_epoch: int
    start_offset: int
    bytes_max: int
    partition: Partition | None = None
    """The one that is watched."""
    told_high_watermark: int = -1
    told_start_offset: int = -1
    """Since it said what it wants."""
    is_sound: bool = False
    """Whether the follower's log is the beginning of ours: then what it wants tells how far it is."""
    is_served: bool = False
    """It has been sent records, and has to say what it wants next."""
    is_warm: bool = False
    fault: ErrorCode = ErrorCode.NONE
    """What kept the worker from reading it."""


@dataclass(slots=True)
class _Served:
    """The records that a follower was sent last of one partition."""

    leader_epoch: int
    offset: int
    times: int = 0
    """How often it has asked for them again."""


InTurns: TypeAlias = "Callable[[Steps[Any]], Later[Any]]"

_Read: TypeAlias = "tuple[_Wanted, m.FetchResponse.PartitionData, list[FileRange]]"


@dataclass(frozen=True, slots=True)
class Source:
    """What sessions need of the node that they fetch from."""

    clock: Clock
    workers: Workers
    entropy: Entropy
    partitions: Partitions
    settings: Callable[[], Settings]
    absence: Callable[[UUID, int], ErrorCode]
    """Why a partition is not open here."""
    broker_epoch_of: Callable[[int], int]
    """As the metadata knows it; -1 for a node that it does not know."""
    doubt: Callable[[Partition, int], None]
    """Hears of records that a follower is sent, and asks for again."""
    throttle: Throttle = field(default_factory=Throttle)
    """Of followers that are to be held back."""


class ReplicaSessions:
    """The sessions of all followers, at most one for each."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sessions: dict[int, _Session] = {}
        """By the id of the follower's node."""
        self._fetched_ms: dict[int, int] = {}

    def is_followed_by(self, node_id: int) -> bool:
        """Whether it has fetched lately: whoever follows does so more often than that."""
        fetched_ms = self._fetched_ms.get(node_id)
        lately_ms = self._source.settings()[BROKER_SESSION_TIMEOUT_MS] // 2
        return fetched_ms is not None and self._source.clock.monotonic_ms() - fetched_ms < lately_ms

    def fetch(
        self, request: m.FetchRequest, node_id: int, broker_epoch: int, in_turns: InTurns | None = None
    ) -> Outcome:
        """Serve one request of a follower. `in_turns` takes the steps of a large one."""
        session = self._sessions.get(node_id)
        is_stranger = broker_epoch < 0 or broker_epoch != self._source.broker_epoch_of(node_id)
        if request.session_epoch == FINAL_EPOCH or (request.session_epoch == INITIAL_EPOCH and is_stranger):
            # A session is kept only for nodes that the metadata knows, and nobody else ends it.
            session = _Session(self, self._source, node_id, NO_SESSION)
        elif request.session_epoch == INITIAL_EPOCH:
            if session is not None:
                session.end()
            session_id = 1 + self._source.entropy.below((1 << 31) - 2)
            session = self._sessions[node_id] = _Session(self, self._source, node_id, session_id)
        elif session is None or session.id != request.session_id:
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif session.broker_epoch != broker_epoch:
            # Who has registered anew says of every partition how far it is: nothing else counts for its new epoch.
            session.end()
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif session.epoch != request.session_epoch:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if not is_stranger:
            self._fetched_ms[node_id] = self._source.clock.monotonic_ms()
        return session.fetch(request, broker_epoch, in_turns or partial(run_steps, self._source.clock))

    def forget(self, session: _Session) -> None:
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]


class _Session:
    """One follower's session."""

    def __init__(self, sessions: ReplicaSessions, source: Source, node_id: int, session_id: int) -> None:
        self.node_id = node_id
        self.id = session_id
        self.epoch = INITIAL_EPOCH
        self._sessions = sessions
        self._source = source
        self._clock = source.clock
        self.broker_epoch = -1
        self._wanted: dict[_Key, _Wanted] = {}
        self._ready: dict[_Key, None] = {}
        """Those to be looked at for the next answer; whoever has been served comes back at the end."""
        self._served: dict[_Key, _Served] = {}
        self._moved: dict[_Key, None] = {}
        """Those whose high watermark has moved: told when there is something else to say."""
        self._waiting: Later[m.FetchResponse] | None = None
        self._bytes_max = 0
        self._is_called = False
        self._is_awaited = False
        """Whether a consumer that reads at the follower can be shown more as soon as that hears of it."""
        self._is_unfinished = False
        """Whether partitions were ready that nobody has looked at for want of time."""
        self._has_ended = False

    # What the follower asks.

    def fetch(self, request: m.FetchRequest, broker_epoch: int, in_turns: InTurns) -> Outcome:
        self.answer()
        self.broker_epoch = broker_epoch
        self._bytes_max = min(request.max_bytes, self._source.settings()[FETCH_MAX_BYTES])
        self.epoch = self.epoch % ((1 << 31) - 1) + 1
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                self._drop((topic.topic_id, index))
        if sum(len(wished.partitions) for wished in request.topics) > WISHES_AT_ONCE:
            return in_turns(self._fetch_in_steps(request)).chain(_as_later)
        for wished in request.topics:
            for wish in wished.partitions:
                self._take_wish((wished.topic_id, wish.partition), wish)
        return self._answer_or_wait(request)

    def _fetch_in_steps(self, request: m.FetchRequest) -> Steps[Outcome]:
        wishes = ((topic.topic_id, wish) for topic in request.topics for wish in topic.partitions)
        for some in in_slices(wishes, WISHES_PER_STEP):
            if self._has_ended:
                return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            for topic_id, wish in some:
                self._take_wish((topic_id, wish.partition), wish)
            yield None
        if self._has_ended:
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        # Another request of the session may have come by another connection meanwhile, and may wait.
        self.answer()
        return self._answer_or_wait(request)

    def _answer_or_wait(self, request: m.FetchRequest) -> Outcome:
        reads = self._read()
        has_much = len(self._moved) >= MOVED_MAX
        if reads or has_much or request.max_wait_ms <= 0 or not self._wanted or self._is_awaited:
            return self._response(reads)
        return self._wait(min(request.max_wait_ms, self._source.settings()[FETCH_WAIT_MAX_MS]))

    def _take_wish(self, key: _Key, wish: m.FetchRequest.FetchPartition) -> None:
        before = self._wanted.get(key)
        wanted = _Wanted(
            key,
            wish.fetch_offset,
            wish.last_fetched_epoch,
            wish.current_leader_epoch,
            wish.log_start_offset,
            wish.partition_max_bytes,
        )
        self._unwatch(before)
        self._wanted[key] = wanted
        self._ready.pop(key, None)
        self._ready[key] = None
        partition = self._source.partitions.by_id(*key)
        if partition is None:
            return
        wanted.partition = partition
        partition.replica_watchers[self] = None
        self._look_for_doubt(wanted, partition)
        try:
            is_same_epoch = wanted.leader_epoch == partition.leader_epoch
            wanted.is_sound = self._divergence(wanted, partition) is None and is_same_epoch
        except Refused:
            # The answer says why.
            return
        if wanted.is_sound and partition.leading is not None:
            # The follower has all that comes before what it wants.
            partition.leading.on_fetch(self.node_id, self.broker_epoch, wanted.offset, wanted.start_offset)

    def _look_for_doubt(self, wanted: _Wanted, partition: Partition) -> None:
        served = self._served.get(wanted.key)
        if served is None:
            return
        if (served.leader_epoch, served.offset) != (wanted.leader_epoch, wanted.offset):
            del self._served[wanted.key]
            return
        served.times += 1
        # It may have no room for them, too: so less and less often.
        if served.times > 1 and served.times & (served.times - 1) == 0:
            self._source.doubt(partition, wanted.offset)

    def _drop(self, key: _Key) -> None:
        self._unwatch(self._wanted.pop(key, None))
        self._ready.pop(key, None)
        self._moved.pop(key, None)

    def _unwatch(self, wanted: _Wanted | None) -> None:
        if wanted is not None and wanted.partition is not None:
            wanted.partition.replica_watchers.pop(self, None)
            wanted.partition = None

    def end(self) -> None:
        """The follower begins anew, or is gone."""
        self._has_ended = True
        self.answer()
        for wanted in self._wanted.values():
            self._unwatch(wanted)
        self._wanted, self._ready, self._moved = {}, {}, {}
        self._sessions.forget(self)

    # What partitions tell.

    def on_append(self, partition: Partition, size: int) -> None:
        wanted = self._wanted.get((partition.topic_id, partition.name.partition))
        if wanted is None or wanted.is_served or wanted.key in self._ready:
            return
        if wanted.is_sound and partition.leading is not None:
            partition.leading.on_caught_up(self.node_id, self.broker_epoch, wanted.offset)
        # It had all there was, and what is new has just been written.
        wanted.is_warm = True
        self._look_at(wanted)

    def on_commit(self, partition: Partition) -> None:
        self._moved[partition.topic_id, partition.name.partition] = None
        if partition.leading is not None and partition.leading.is_read_at(self.node_id):
            self._is_awaited = True
            self._call_soon()

    def on_change(self, partition: Partition) -> None:
        """Its role or the start of its log is another one now: the follower should hear of it soon."""
        wanted = self._wanted.get((partition.topic_id, partition.name.partition))
        if wanted is not None:
            # What it had of another epoch's log says nothing about this one.
            wanted.is_sound = wanted.is_sound and wanted.leader_epoch == partition.leader_epoch
            self._look_at(wanted)

    def _look_at(self, wanted: _Wanted) -> None:
        self._ready[wanted.key] = None
        self._call_soon()

    def _call_soon(self) -> None:
        if self._waiting is not None and not self._is_called:
            # What else happens in this turn goes with it.
            self._is_called = True
            self._clock.call_soon(self._answer_news)

    # Waiting.

    def _wait(self, wait_ms: int) -> Outcome:
        waiting: Later[m.FetchResponse] = Later(lambda: self._on_end(waiting))
        self._waiting = waiting
        self._look_further()
        waiting.expire_after(self._clock, wait_ms, self.answer)
        return waiting

    def _on_end(self, waiting: Later[m.FetchResponse]) -> None:
        if self._waiting is waiting:
            # Nobody has answered it: the connection is gone, and the session with it.
            self._waiting = None
            self.end()

    def _answer_news(self) -> None:
        self._is_called = False
        if self._waiting is not None:
            reads = self._read()
            if reads or self._is_awaited:
                self._answer(reads)
            else:
                self._look_further()

    def _look_further(self) -> None:
        """Partitions that are ready, and that nobody has looked at for want of time, have their turn."""
        if self._is_unfinished:
            self._call_soon()

    def answer(self) -> None:
        """Answer whoever waits with what there is, however little."""
        if self._waiting is not None:
            self._answer(self._read())

    def _answer(self, reads: list[_Read]) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        waiting.finish(self._response(reads))

    # Reading.

    def _read(self) -> list[_Read]:
        """What there is to tell of the partitions that are ready, as far as one answer can hold it."""
        reads: list[_Read] = []
        bytes_left = self._bytes_max
        # One that is alone gets as much as it wants; among many nobody waits long for one that is far behind.
        share = max(bytes_left // max(len(self._ready), 1), SHARE_BYTES_MIN)
        ready = len(self._ready)
        for key in list(islice(self._ready, LOOKED_AT_ONCE)):
            wanted = self._wanted[key]
            reply, ranges = self._read_one(wanted, min(share, bytes_left), first=bytes_left == self._bytes_max)
            bytes_left -= sum(part.length for part in ranges)
            if ranges:
                wanted.is_served = True
                if key not in self._served:
                    self._served[key] = _Served(wanted.leader_epoch, wanted.offset)
            is_told = bool(ranges) or self._is_news(wanted, reply)
            if is_told:
                reads.append((wanted, reply, ranges))
            elif wanted.told_high_watermark != reply.high_watermark:
                self._moved[key] = None
            if is_told or not self._has_more(wanted):
                del self._ready[key]
            if bytes_left <= 0:
                break
        self._is_unfinished = ready > LOOKED_AT_ONCE and len(self._ready) < ready
        return reads

    def _is_news(self, wanted: _Wanted, reply: m.FetchResponse.PartitionData) -> bool:
        """Whether it must be told now, though it has no records."""
        is_start_moved = wanted.start_offset < reply.log_start_offset != wanted.told_start_offset
        return bool(reply.error_code) or reply.diverging_epoch.epoch >= 0 or is_start_moved

    def _has_more(self, wanted: _Wanted) -> bool:
        """Whether there are records for which the answer had no room."""
        partition = wanted.partition
        return partition is not None and not wanted.is_served and wanted.offset < partition.log.end_offset

    def _read_one(
        self, wanted: _Wanted, bytes_left: int, *, first: bool
    ) -> tuple[m.FetchResponse.PartitionData, list[FileRange]]:
        partition = wanted.partition
        if partition is None or self._source.partitions.by_id(*wanted.key) is not partition:
            return self._failed(wanted, self._source.absence(*wanted.key)), []
        ranges: list[FileRange] = []
        try:
            if wanted.fault:
                raise Refused(wanted.fault)
            diverging = self._divergence(wanted, partition)
            if diverging is None:
                bytes_max = min(wanted.bytes_max, max(bytes_left, 0))
                ranges, _ = partition.log.read_ranges(wanted.offset, bytes_max, min_one=first, is_whole=True)
        except Refused as refusal:
            return self._failed(wanted, refusal.code, partition), []
        if ranges and not wanted.is_warm:
            ranges = self._warm(wanted, ranges)
        if ranges and partition.holds_back(self.node_id):
            ranges = self._hold_back(wanted, ranges)
        reply = m.FetchResponse.PartitionData(
            partition_index=wanted.key[1],
            high_watermark=partition.committed_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=None,
            records=[*ranges],
        )
        if wanted.offset < partition.log.evidence_floor:
            # As in the metadata log: what was there below this offset exists only in condensed form.
            reply.snapshot_id = m.FetchResponse.SnapshotId(
                end_offset=partition.log.evidence_floor, epoch=max(partition.log.last_epoch, 0)
            )
        if diverging is not None:
            reply.diverging_epoch = m.FetchResponse.EpochEndOffset(
                epoch=diverging.epoch, end_offset=diverging.end_offset
            )
        return reply, ranges

    def _divergence(self, wanted: _Wanted, partition: Partition) -> EpochEnd | None:
        """Where the follower's log parts from ours, if it does. Refused if that is not the question."""
        partition.check_leader_epoch(wanted.leader_epoch)
        partition.check_leads()
        if partition.leading is None:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition.name} has no other replica")
        partition.leading.check_replica(self.node_id, self.broker_epoch)
        diverging = partition.leading.divergence(wanted.offset, wanted.last_epoch)
        if diverging is None and partition.leading.must_start_over(
            self.node_id, self.broker_epoch, wanted.offset, wanted.start_offset, wanted.last_epoch
        ):
            return FROM_SCRATCH
        return diverging

    def _failed(
        self, wanted: _Wanted, code: ErrorCode, partition: Partition | None = None
    ) -> m.FetchResponse.PartitionData:
        return m.FetchResponse.PartitionData(
            partition_index=wanted.key[1],
            error_code=code,
            high_watermark=-1 if partition is None else partition.committed_offset,
            last_stable_offset=-1,
            log_start_offset=-1 if partition is None else partition.log.start_offset,
            records=b"",
        )

    def _warm(self, wanted: _Wanted, ranges: list[FileRange]) -> list[FileRange]:
        """The ranges if they are in memory. If not, none: a worker reads them, then the partition is ready again."""
        cold = [part for part in ranges if not part.file.is_cached(part.position, part.length)]
        if not cold:
            return ranges

        def fill_page_cache() -> None:
            for part in cold:
                for position in range(part.position, part.position + part.length, WARM_STEP_BYTES):
                    part.file.read_at(position, min(WARM_STEP_BYTES, part.position + part.length - position))

        def warmed(_: None) -> None:
            release_ranges(ranges)
            wanted.is_warm = True
            if self._wanted.get(wanted.key) is wanted:
                self._look_at(wanted)

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            wanted.fault = ErrorCode.KAFKA_STORAGE_ERROR
            warmed(None)

        # Not to be looked at for what is appended meanwhile.
        wanted.is_served = True
        self._source.workers.run(fill_page_cache).then(warmed, failed)
        return []

    def _hold_back(self, wanted: _Wanted, ranges: list[FileRange]) -> list[FileRange]:
        """The ranges if they may be sent now. If not, none: the partition is ready again when they may."""
        throttle, now_ms = self._source.throttle, self._clock.monotonic_ms()
        held_ms = throttle.held_ms(now_ms)
        if not held_ms:
            throttle.count(sum(part.length for part in ranges), now_ms)
            return ranges
        release_ranges(ranges)
        # Not to be looked at for what is appended meanwhile.
        wanted.is_served = True

        def go_on() -> None:
            if self._wanted.get(wanted.key) is wanted:
                self._look_at(wanted)

        self._clock.call_later(held_ms, go_on)
        return []

    # Answering.

    def _response(self, reads: list[_Read]) -> m.FetchResponse:
        topics: dict[UUID, list[m.FetchResponse.PartitionData]] = {}
        for wanted, reply, _ in reads:
            self._tell(wanted, reply, topics)
        for key in list(islice(self._moved, MOVED_MAX)):
            del self._moved[key]
            self._tell_moved(key, topics)
        self._is_awaited = False
        response = m.FetchResponse(
            session_id=self.id,
            responses=[
                m.FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=replies)
                for topic_id, replies in topics.items()
            ],
        )
        if self.id == NO_SESSION:
            self.end()
        return response

    def _tell_moved(self, key: _Key, topics: dict[UUID, list[m.FetchResponse.PartitionData]]) -> None:
        wanted = self._wanted.get(key)
        partition = None if wanted is None else wanted.partition
        if wanted is None or partition is None or not wanted.is_sound or key in self._ready:
            return
        if wanted.told_high_watermark != partition.committed_offset and partition.is_leader:
            reply = m.FetchResponse.PartitionData(
                partition_index=key[1],
                high_watermark=partition.committed_offset,
                log_start_offset=partition.log.start_offset,
                aborted_transactions=None,
                records=b"",
            )
            self._tell(wanted, reply, topics)

    def _tell(
        self,
        wanted: _Wanted,
        reply: m.FetchResponse.PartitionData,
        topics: dict[UUID, list[m.FetchResponse.PartitionData]],
    ) -> None:
        wanted.told_high_watermark, wanted.told_start_offset = reply.high_watermark, reply.log_start_offset
        topics.setdefault(wanted.key[0], []).append(reply)


def _as_later(outcome: Outcome) -> Later[Any]:
    return outcome if isinstance(outcome, Later) else done(outcome)


def _refused(code: ErrorCode) -> m.FetchResponse:
    return m.FetchResponse(error_code=code, session_id=NO_SESSION, responses=[])
