"""A consumer's fetch: reads all of its partitions, now and again once enough has been appended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ports import FileRange
from millpond.broker.fetch.closest_replica import closest_replica
from millpond.broker.fetch.consumer_sessions import TOPIC_IDS_FROM, FetchContext, RequestedPartition
from millpond.broker.fetch.page_cache import cold_ranges, warm
from millpond.broker.fetch.partition_reads import READ_COMMITTED, TopicResponses, add_to_topic, read_committed
from millpond.broker.fetch.pending_fetch import LaterFetch
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.requests.replies import Outcome, release_ranges
from millpond.config.node import FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS, REPLICA_SELECTOR_CLASS
from millpond.log.partition_log import ABORTED_MAX
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.fetch.source import FetchSource
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call

AT_ONCE_MAX: Final = 500
"""A fetch of more partitions is read in steps: each partition takes ten microseconds or more."""

STEP_PARTITIONS: Final = 300

_Read: TypeAlias = "tuple[RequestedPartition, m.FetchResponse.PartitionData, list[FileRange]]"


class Responder(Protocol):
    """The part of a fetch that depends on the client: its rights, and the shape of its response."""

    def may_read(self, requested: RequestedPartition, partition: Partition | None) -> bool: ...

    def failed(
        self, requested: RequestedPartition, code: ErrorCode, partition: Partition | None = None
    ) -> m.FetchResponse.PartitionData: ...

    def response(self, topics: TopicResponses) -> m.FetchResponse: ...


class _Watched:
    """What a pending fetch knows of a partition, so that an append costs it no read."""

    __slots__ = ("_stable_offset", "_unstable_bytes", "room")

    def __init__(self, partition: Partition, room: int) -> None:
        self.room = room
        """How many more bytes count: a response has at most the client's limit of one partition."""
        self._stable_offset = partition.last_stable_offset
        # Bytes of open transactions, or more.
        is_stable = self._stable_offset >= partition.committed_offset
        self._unstable_bytes = 0 if is_stable else partition.log.size_from(self._stable_offset)

    def take_stable(self, stable_offset: int, size: int) -> int:
        """How many more bytes are below the LSO after an append of `size`."""
        self._unstable_bytes += size
        if stable_offset == self._stable_offset:
            return 0
        self._stable_offset = stable_offset
        stable_bytes, self._unstable_bytes = self._unstable_bytes, 0
        return stable_bytes


class ConsumerFetch(LaterFetch):
    __slots__ = (
        "_by_id",
        "_bytes_max",
        "_bytes_min",
        "_bytes_missing",
        "_checks_rights",
        "_connection",
        "_context",
        "_has_grown",
        "_is_from_node",
        "_is_reading",
        "_quota",
        "_rack",
        "_reads",
        "_responder",
        "_stable_only",
        "_wait_ms",
        "_watched",
    )

    def __init__(
        self, source: FetchSource, call: Call, request: m.FetchRequest, context: FetchContext, responder: Responder
    ) -> None:
        LaterFetch.__init__(self, source)
        settings = source.settings()
        self._connection = call.connection
        self._context = context
        self._responder = responder
        self._by_id = call.version >= TOPIC_IDS_FROM
        self._checks_rights = call.access.is_on and not call.is_unlimited
        self._is_from_node = call.is_from_node
        self._quota = None if call.meter is None else call.meter.consumer
        self._rack = request.rack_id if settings[REPLICA_SELECTOR_CLASS] else ""
        self._stable_only = request.isolation_level == READ_COMMITTED
        self._bytes_max = min(request.max_bytes, settings[FETCH_MAX_BYTES])
        self._wait_ms = min(request.max_wait_ms, settings[FETCH_WAIT_MAX_MS])
        # A response cannot have more than its limit, so waiting for more would be in vain.
        self._bytes_min = 0 if request.max_wait_ms <= 0 else min(request.min_bytes, self._bytes_max)
        self._bytes_missing = 0
        self._reads: list[_Read] = []
        self._watched: dict[Partition, _Watched] = {}
        self._is_reading = False
        """Whether a read in steps is under way."""
        self._has_grown = False
        """Whether a partition has grown meanwhile."""

    def begin(self) -> Outcome:
        if self._is_in_steps:
            self._begin_steps()
            self.wait(max(self._wait_ms, 0))
        elif self._read(self._bytes_min):
            return self._outcome()
        else:
            self.wait(self._wait_ms)
        return self

    def answer_now(self) -> Outcome:
        """Answer with what is available, without waiting for more."""
        self._read(0)
        return self._outcome()

    # Reading.

    def _read(self, bytes_min: int) -> bool:
        """Read every partition. Without enough bytes and without an error, keep nothing and return False."""
        read_bytes, is_urgent = self._read_some(self._context.partitions, self._room_bytes(), 0)
        self._bytes_missing = bytes_min - read_bytes
        if read_bytes >= bytes_min or is_urgent or not self._context.partitions:
            return True
        self._watch(self._reads)
        self._release()
        return False

    def _room_bytes(self) -> int:
        if self._quota is None:
            return self._bytes_max
        # What is left of the quota; of a larger batch only the first is sent.
        return min(self._bytes_max, max(int(self._quota.left(self._source.clock.monotonic_ms())), 0))

    def _read_some(
        self, partitions: Iterable[RequestedPartition], bytes_max: int, read_bytes: int
    ) -> tuple[int, bool]:
        """The bytes read so far, and whether one of these partitions must be answered at once."""
        is_urgent = False
        aborted_count = 0
        for requested in partitions:
            # The others have to wait for the next fetch, as they do when the response has no room for more bytes.
            bytes_left = bytes_max - read_bytes if aborted_count < ABORTED_MAX else 0
            data, ranges = self._read_one(requested, bytes_left, is_first=read_bytes == 0)
            for part in ranges:
                read_bytes += part.length
            if data.aborted_transactions:
                aborted_count += len(data.aborted_transactions)
            if data.error_code or data.preferred_read_replica >= 0:
                is_urgent = True
            self._reads.append((requested, data, ranges))
        return read_bytes, is_urgent

    def _read_one(
        self, requested: RequestedPartition, bytes_left: int, *, is_first: bool
    ) -> tuple[m.FetchResponse.PartitionData, list[FileRange]]:
        partition = self._partition(requested)
        if self._checks_rights and not self._responder.may_read(requested, partition):
            return self._responder.failed(requested, ErrorCode.TOPIC_AUTHORIZATION_FAILED), []
        name, topic_id, index = requested.key
        if partition is None:
            code = self._source.absence(topic_id if self._by_id else name, index)
            return self._responder.failed(requested, code), []
        offset = requested.fetch_offset
        try:
            partition.check_leader_epoch(requested.leader_epoch)
            partition.check_reads(by_rack=bool(self._rack))
            if self._rack:
                replica = closest_replica(self._source, partition, self._rack, offset)
                if replica is not None:
                    return self._redirected(replica, partition), []
            if not partition.is_leader and not partition.contains(offset):
                # Only the leader's log decides: each replica deletes old segments at its own time.
                raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE)
            high_watermark, stable_offset, start_offset, ranges, aborted = read_committed(
                partition, offset, requested.bytes_max, bytes_left, self._stable_only, is_first
            )
        except Refused as refusal:
            return self._responder.failed(requested, refusal.code, partition), []
        data = m.FetchResponse.PartitionData(
            partition_index=index,
            high_watermark=high_watermark,
            last_stable_offset=stable_offset,
            log_start_offset=start_offset,
            aborted_transactions=[
                m.FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in aborted
            ]
            if self._stable_only
            else None,
            records=[*ranges],
        )
        return data, ranges

    def _redirected(self, node_id: int, partition: Partition) -> m.FetchResponse.PartitionData:
        return m.FetchResponse.PartitionData(
            partition_index=partition.name.partition,
            high_watermark=partition.committed_offset,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=[] if self._stable_only else None,
            preferred_read_replica=node_id,
            records=b"",
        )

    def _partition(self, requested: RequestedPartition) -> Partition | None:
        name, topic_id, index = requested.key
        partitions = self._source.partitions
        return partitions.by_id(topic_id, index) if self._by_id else partitions.get(name, index)

    def _release(self) -> None:
        for _, _, ranges in self._reads:
            release_ranges(ranges)
        self._reads = []

    # Waiting.

    def wait(self, wait_ms: int) -> None:
        self._connection.add_pending_partitions(len(self._context.partitions))
        super().wait(wait_ms)

    def _stop_waiting(self) -> None:
        if self._is_counted:
            self._connection.add_pending_partitions(-len(self._context.partitions))
        super()._stop_waiting()

    def _watch(self, reads: Iterable[_Read]) -> None:
        for requested, _, ranges in reads:
            partition = self._partition(requested)
            if partition is not None:
                partition.watchers[self] = None
                # One batch is read, however small the limit.
                room = max(requested.bytes_max, 1) - sum(part.length for part in ranges)
                self._watched[partition] = _Watched(partition, max(room, 0))

    def _unwatch(self) -> None:
        for partition in self._watched:
            partition.watchers.pop(self, None)
        self._watched = {}

    def on_append(self, partition: Partition, size: int) -> None:
        """A watched partition has grown: read again once there may be enough."""
        if self._is_reading:
            self._has_grown = True
            return
        if not self._is_waiting():
            return
        watched = self._watched[partition]
        if self._stable_only:
            size = watched.take_stable(partition.last_stable_offset, size)
        counted = min(size, watched.room)
        watched.room -= counted
        self._bytes_missing -= counted
        if counted and self._bytes_missing <= 0:
            self.wake()

    def _read_again(self) -> None:
        if self._is_reading or not self._is_waiting():
            return
        if self._is_in_steps:
            self._begin_steps()
        elif self._read(0 if self._is_late else self._bytes_min):
            self._stop_waiting()
            response = self._response_if_warm()
            if response is not None:
                self.finish(response)

    def _is_waiting(self) -> bool:
        """False once there are reads: while a worker warms them the deadline may pass, and partitions may grow."""
        return not self.ended and not self._reads

    # A fetch of very many partitions reads some of them in each turn of the loop. What has been read is watched at
    # once, so that no append to it is missed while others are read.

    @property
    def _is_in_steps(self) -> bool:
        return len(self._context.partitions) > AT_ONCE_MAX

    def _begin_steps(self) -> None:
        self._is_reading = True
        self._connection.run_in_turns(self._read_in_steps()).then(self._end_read)

    def _read_in_steps(self) -> Steps[bool]:
        """Whether there is enough to answer."""
        bytes_min = 0 if self._is_late else self._bytes_min
        while True:
            self._has_grown = False
            bytes_max, read_bytes, is_any_urgent = self._room_bytes(), 0, False
            for some in in_slices(self._context.partitions, STEP_PARTITIONS):
                if self.ended:
                    return False
                begin = len(self._reads)
                read_bytes, is_urgent = self._read_some(some, bytes_max, read_bytes)
                is_any_urgent |= is_urgent
                self._watch(self._reads[begin:])
                yield None
            self._bytes_missing = bytes_min - read_bytes
            if self._bytes_missing <= 0 or is_any_urgent or self._is_late:
                return True
            if not self._has_grown:
                return False
            self._release()

    def _end_read(self, is_enough: bool) -> None:
        self._is_reading = False
        if is_enough and not self.ended:
            self._stop_waiting()
            self._connection.run_in_turns(self._answer_in_steps()).then(self._end_steps)
            return
        self._release()
        if self.ended:
            self._unwatch()

    def _answer_in_steps(self) -> Steps[m.FetchResponse | None]:
        """The response; None if its client is gone."""
        cold: list[FileRange] = []
        for some in in_slices(self._reads, STEP_PARTITIONS):
            cold += _cold_ranges(some)
            yield None
        if cold and not (yield warm(self._source.workers, cold)):
            self._release()
            return _unreadable()
        topics: TopicResponses = {}
        for some in in_slices(self._reads, STEP_PARTITIONS):
            if self.ended:
                return None
            self._put(some, topics)
            yield None
        return self._responder.response(topics)

    def _end_steps(self, response: m.FetchResponse | None) -> None:
        if response is None or self.ended:
            self._release()
        else:
            self._reads = []
            self.finish(response)

    # Answering.

    def _outcome(self) -> Outcome:
        response = self._response_if_warm()
        return self if response is None else response

    def _response_if_warm(self) -> m.FetchResponse | None:
        """The response; None if a worker has to warm cold ranges first."""
        cold = _cold_ranges(self._reads)
        if not cold:
            return self._response()
        warm(self._source.workers, cold).then(self._on_warm)
        return None

    def _on_warm(self, is_readable: bool) -> None:
        if is_readable and not self.ended:
            self.finish(self._response())
        else:
            self._release()
            self.finish(_unreadable())

    def _response(self) -> m.FetchResponse:
        topics: TopicResponses = {}
        self._put(self._reads, topics)
        self._reads = []
        return self._responder.response(topics)

    def _put(self, reads: Iterable[_Read], topics: TopicResponses) -> None:
        for requested, data, ranges in reads:
            if ranges and not self._is_from_node and (partition := self._partition(requested)) is not None:
                partition.read_bytes += sum(part.length for part in ranges)
            if self._context.must_send(requested, data):
                name, topic_id, _ = requested.key
                add_to_topic(topics, name, topic_id, data)


def _cold_ranges(reads: Iterable[_Read]) -> list[FileRange]:
    return cold_ranges(part for _, _, ranges in reads for part in ranges)


def _unreadable() -> m.FetchResponse:
    return m.FetchResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, responses=[])
