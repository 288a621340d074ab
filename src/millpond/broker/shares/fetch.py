"""A share fetch: acquires records of the session's partitions, now or once there are some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.broker.fetch.page_cache import warm
from millpond.broker.fetch.pending_fetch import PendingFetch
from millpond.broker.requests.replies import release_ranges
from millpond.broker.shares.acquisition import Acquired, AcquireMode
from millpond.config.node import FETCH_MAX_BYTES, FETCH_WAIT_MAX_MS
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.fetch.source import FetchSource
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call
    from millpond.broker.shares.log_reads import LogRead
    from millpond.broker.shares.sessions import PartitionKey, ShareSession
    from millpond.broker.shares.share_leader import ShareLeader

LOOKS_AT_ONCE: Final = 500
"""Partitions that are looked at in one turn of the loop."""
LOADS_AT_ONCE: Final = 100
"""Share partitions that begin to load in one turn of the loop."""
READ_COST: Final = 10
"""A read of the log costs as much as this many of its batches."""
READS_COST_MAX: Final = 500
"""No further partition is read in one turn of the loop once the reads have cost this much, with the ranges that were
acquired."""


class Served(NamedTuple):
    """What a member gets of one partition."""

    acquired: list[Acquired]
    records: list[FileRange]


class Responder(Protocol):
    """The part of a share fetch that depends on the client: its rights, and the shape of its response."""

    def may_read(self, key: PartitionKey, partition: Partition | None) -> bool: ...

    def response(
        self, served: Mapping[PartitionKey, Served], failed: Mapping[PartitionKey, ErrorCode], error: ErrorCode
    ) -> m.ShareFetchResponse: ...


class ShareFetch(PendingFetch[m.ShareFetchResponse], Later[m.ShareFetchResponse]):
    """Implements `share_leader.Waiter`."""

    __slots__ = (
        "_batch_size",
        "_bytes_left",
        "_bytes_min",
        "_connection",
        "_due",
        "_failed",
        "_is_counted",
        "_is_due",
        "_is_late",
        "_is_reading",
        "_is_warming",
        "_leaders",
        "_mode",
        "_pending_partitions",
        "_reads_cost",
        "_ready",
        "_records_left",
        "_responder",
        "_served",
        "_session",
        "_source",
        "_wait_ms",
        "_warmed",
    )

    def __init__(
        self,
        source: FetchSource,
        call: Call,
        request: m.ShareFetchRequest,
        session: ShareSession,
        responder: Responder,
        *,
        may_wait: bool,
    ) -> None:
        Later.__init__(self)
        settings = source.settings()
        self._source = source
        self._is_counted = self._is_due = self._is_reading = self._is_warming = False
        self._is_late = not may_wait or request.max_wait_ms <= 0
        self._connection = call.connection
        self._session = session
        self._responder = responder
        self._wait_ms = min(request.max_wait_ms, settings[FETCH_WAIT_MAX_MS])
        self._bytes_left = min(request.max_bytes, settings[FETCH_MAX_BYTES])
        if call.meter is not None and call.meter.consumer is not None:
            # What is left of the quota; of a larger batch only the first is sent.
            left = int(call.meter.consumer.left(source.clock.monotonic_ms()))
            self._bytes_left = min(self._bytes_left, max(left, 1))
        self._bytes_min = min(request.min_bytes, self._bytes_left)
        self._records_left = request.max_records
        self._batch_size = max(request.batch_size, 1)
        self._mode = AcquireMode(request.share_acquire_mode)
        self._served: dict[PartitionKey, Served] = {}
        self._failed: dict[PartitionKey, ErrorCode] = {}
        self._due: dict[PartitionKey, None] = {}
        """Partitions to look at: all of them at first, then those that have something."""
        self._ready: dict[PartitionKey, int] = {}
        """How many bytes are available, while these are too few."""
        self._leaders: dict[ShareLeader, None] = {}
        """Those that this fetch watches."""
        self._warmed: set[PartitionKey] = set()
        self._pending_partitions = 0
        self._reads_cost = 0
        """Of this turn of the loop."""

    def begin(self) -> Later[m.ShareFetchResponse]:
        self._due = dict.fromkeys(self._session.partitions)
        self._session.group.follow_settings()
        self._look()
        if not self.ended:
            self._pending_partitions = len(self._session.partitions)
            self._connection.add_pending_partitions(self._pending_partitions)
            self.wait(max(self._wait_ms, 0))
        return self

    # Waiting.

    def on_available(self, leader: ShareLeader) -> None:
        self._due[leader.key[1:]] = None
        if not self._is_reading and not self._is_warming:
            self.wake()

    def _read_again(self) -> None:
        if not self._is_reading and not self._is_warming:
            self._look()

    def _stop_waiting(self) -> None:
        if self._pending_partitions:
            self._connection.add_pending_partitions(-self._pending_partitions)
            self._pending_partitions = 0
        super()._stop_waiting()

    def _unwatch(self) -> None:
        for leader in self._leaders:
            leader.waiters.pop(self, None)
            leader.looked(self)
        self._leaders = {}

    def cancel(self) -> None:
        """The client is gone; its session, which ends with the connection, releases what was acquired."""
        if not self.ended:
            self._drop_records()
            Later.cancel(self)

    # Acquiring.

    def _look(self) -> None:
        """Look at the partitions that are due, and answer if that is enough."""
        self._is_reading = True
        try:
            is_done = self._look_at_some()
        finally:
            self._is_reading = False
        if self._is_warming:
            return
        if self._session.has_ended:
            self._drop_records()
            self.finish(self._responder.response({}, {}, ErrorCode.SHARE_SESSION_NOT_FOUND))
        elif self._served or self._failed or not self._session.partitions or (self._is_late and is_done):
            self.finish(self._responder.response(self._served, self._failed, ErrorCode.NONE))
        elif not is_done:
            # More than one turn may look at.
            self._source.clock.call_soon(self.wake)

    def _look_at_some(self) -> bool:
        """Whether no partition is due any longer."""
        looks = loads = 0
        self._reads_cost = 0
        while self._due and not self._session.has_ended:
            if not self._has_room():
                return True
            if looks == LOOKS_AT_ONCE or loads == LOADS_AT_ONCE or self._reads_cost >= READS_COST_MAX:
                return False
            looks += 1
            key = next(iter(self._due))
            del self._due[key]
            leader = self._leader(key) if key in self._session.partitions else None
            if leader is None:
                passed = self._session.group.leaders.get(key)
                if passed is not None:
                    passed.looked(self)
                continue
            leader.waiters[self] = None
            self._leaders[leader] = None
            if leader.window is None:
                loads += 1
            elif leader.has_available() and self._is_enough(key, leader) and not self._serve(key, leader):
                return True
            leader.looked(self)
        return True

    def _has_room(self) -> bool:
        return self._records_left > 0 and self._bytes_left > 0

    def _leader(self, key: PartitionKey) -> ShareLeader | None:
        """The leader of the share partition; None after an error."""
        partition = self._source.partitions.by_id(*key)
        if not self._responder.may_read(key, partition):
            self._failed[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif partition is None:
            self._failed[key] = self._source.absence(*key)
        elif not partition.is_leader:
            self._failed[key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            return self._session.group.leader_of(partition)
        return None

    def _is_enough(self, key: PartitionKey, leader: ShareLeader) -> bool:
        """Whether the partitions that were found to have something have enough together."""
        if self._is_late or self._bytes_min <= 1 or self._served:
            return True
        self._ready[key] = leader.available_bytes()
        if sum(self._ready.values()) < self._bytes_min:
            return False
        # Those that were passed over are due again.
        self._bytes_min = 0
        self._due |= dict.fromkeys(each for each in self._ready if each != key)
        return True

    def _serve(self, key: PartitionKey, leader: ShareLeader) -> bool:
        """Acquire from one partition; False if a worker has to read its records first."""
        try:
            read = leader.read(self._bytes_left, is_warm=key in self._warmed)
        except Refused as refusal:
            self._failed[key] = refusal.code
            return True
        self._reads_cost += READ_COST + read.batch_count
        if read.cold:
            self._warm(key, read)
            return False
        try:
            looking = leader.look(read)
        except Refused as refusal:
            read.release()
            self._failed[key] = refusal.code
            return True
        if looking is not None:
            self._wait_for_look(key, read, looking)
            return False
        if read.is_ahead:
            read.release()
            if leader.has_available():
                self._due[key] = None
            return True
        try:
            acquired = leader.acquire(
                self._session.holder,
                read,
                max_records=self._records_left,
                batch_size=self._batch_size,
                mode=self._mode,
            )
            if not acquired:
                if read.last >= read.first and leader.has_available():
                    # All that was read is invisible to members. Where nothing was, a repetition would not end.
                    self._due[key] = None
                return True
            self._reads_cost += len(acquired)
            records = read.records(acquired)
        finally:
            read.release()
        self._served[key] = Served(acquired, records)
        self._session.held[key] = None
        self._session.move_to_end(key)
        size = sum(part.length for part in records)
        self._records_left -= sum(each.last - each.first + 1 for each in acquired)
        self._bytes_left -= size
        leader.partition.read_bytes += size
        return True

    def _warm(self, key: PartitionKey, read: LogRead) -> None:
        self._warmed.add(key)
        self._wait_for_look(key, read, warm(self._source.workers, read.cold))

    def _wait_for_look(self, key: PartitionKey, read: LogRead, looking: Later[bool]) -> None:
        """A worker looks at what was read, or brings it into memory; then look at the partition again."""
        self._is_warming = True

        def on_looked(is_readable: bool) -> None:
            self._is_warming = False
            read.release()
            if self.ended:
                return
            if is_readable:
                self._due = {key: None, **self._due}
            else:
                self._failed[key] = ErrorCode.KAFKA_STORAGE_ERROR
            self._look()

        looking.then(on_looked)

    def _drop_records(self) -> None:
        for each in self._served.values():
            release_ranges(each.records)
        self._served = {}
