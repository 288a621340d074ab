"""The partition replicas on this node: each has a log, a role in the cluster and watchers that wait for it to
grow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final, Protocol, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.histogram import Histogram
from millpond.base.ids import LeaderEpoch, TopicPartition
from millpond.base.later import Later, done, failed
from millpond.base.ports import Buffer
from millpond.base.settings import Settings
from millpond.base.words import counted
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.replication.leader_role import CUT_OFF, LEADERSHIP_MOVED, LeaderRole
from millpond.broker.replication.partition_context import PartitionContext
from millpond.broker.replication.refusals import TRANSIENT, Refusals, UnopenedRefusals
from millpond.broker.replication.throttle import UNTHROTTLED, throttle_of
from millpond.config import topic as topic_settings
from millpond.log.checks import RecordFaults
from millpond.log.limits import FOREVER
from millpond.log.partition_log import Appended, LogRanges, PartitionLog
from millpond.log.producers import FirstBatchMissing, Verification, WrittenBefore
from millpond.metadata.image import ALIKE_MAX, COORDINATOR_TOPICS, INTERNAL_TOPICS
from millpond.metadata.image import Partition as ImagePartition
from millpond.metadata.leadership import NO_LEADER
from millpond.replication.follower import Fetched, PartitionFollower
from millpond.replication.leader import PartitionView
from millpond.wire import batch
from millpond.wire.kernel import ShortProduce

T = TypeVar("T")

ACKS_ALL: Final = -1

ZSTD = 4

NO_LEADER_EPOCH: Final = LeaderEpoch(-1)

FATAL_PRODUCER_ERRORS: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors fatal to a producer or its transaction. Only a leader certain of its leadership returns them: a deposed
leader may see a sequence gap where the missing batches went to its successor."""

UNCERTAIN: Final = "another node may lead by now, and this one cannot judge"

FIRST_BATCH_GRACE_MS: Final = 60_000
"""How long after an election a producer may still retry batches it sent to the previous leader, as librdkafka
does."""

_INDEX = Struct(">i")

WOKEN_AT_ONCE: Final = 500
"""Clients choose how many reads wait for a partition. More than this are woken in steps, two microseconds each."""

ENDED_AT_ONCE: Final = 10
"""Fewer than are woken at once, because hundreds of partitions may be deleted in one turn."""

MARKER_BYTES = batch.HEADER_BYTES + 17
"""Approximate size of a transaction's end marker in the log."""


class Watcher(Protocol):
    """A pending read that waits for a partition to grow."""

    def on_append(self, partition: Partition, size: int) -> None:
        """The partition has grown by `size` bytes. Called for every append, so it must be cheap."""
        ...

    def answer(self) -> None:
        """Stop waiting and respond."""
        ...


class ReplicaWatcher(Protocol):
    """A follower's fetch session."""

    def on_append(self, partition: Partition, size: int) -> None:
        """The log has grown; the leader role has not seen it yet. Called for every append."""
        ...

    def on_commit(self, partition: Partition) -> None:
        """The high watermark has moved."""
        ...

    def on_change(self, partition: Partition) -> None:
        """The role or the log start offset has changed, or the partition is gone."""
        ...


class Partition:
    """A replica on this node: it leads, follows the leader, or waits until there is a leader."""

    __slots__ = (
        "_clock",
        "_context",
        "_high_watermark",
        "_is_waking",
        "_min_isr",
        "_unwoken_bytes",
        "acknowledged",
        "acknowledges_after_sync",
        "copied_bytes",
        "flush_ack",
        "flush_messages",
        "follower",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "leader_role",
        "log",
        "name",
        "read_bytes",
        "refusals",
        "replica_watchers",
        "throttle",
        "topic_id",
        "view",
        "watchers",
        "written_bytes",
        "written_records",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        context: PartitionContext,
        *,
        high_watermark: int = 0,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.view: PartitionView | None = None
        """The latest metadata applied."""
        self.leader_epoch = NO_LEADER_EPOCH
        self.is_leader = False
        self.leader_role: LeaderRole | None = None
        """Set while this node leads; None if the partition has a single replica."""
        self.follower: PartitionFollower | None = None
        """Set while another node leads."""
        self.is_internal = name.topic in INTERNAL_TOPICS
        self.refusals = Refusals(log, context.clock)
        # A dict rather than a set: wake-up order must not differ from run to run.
        self.watchers: dict[Watcher, None] = {}
        """Reads that wait for the high watermark to move."""
        self._unwoken_bytes: int | None = None
        """By how much the log has grown since the watchers were last woken, if they are being woken in steps."""
        self._is_waking = False
        self.replica_watchers: dict[ReplicaWatcher, None] = {}
        """Fetch sessions that wait for the log end offset to move."""
        self.acknowledges_after_sync = True
        self.flush_messages = FOREVER
        self.flush_ack = "auto"
        self._min_isr = 1
        self._high_watermark = high_watermark
        self.throttle = UNTHROTTLED
        self.acknowledged = Histogram()
        """Produce acknowledgement latency. All partitions of a topic share one histogram."""
        self.written_bytes = self.written_records = 0
        """Appended as leader since the partition was opened."""
        self.copied_bytes = self.read_bytes = 0
        """Bytes fetched from the leader; bytes sent to consumers."""
        self._context = context
        self._clock = context.clock

    # Role.

    def apply_metadata(self, view: PartitionView) -> None:
        """Take the role that the metadata gives this node: leader, follower, or neither. Ignores stale metadata."""
        known = self.view
        if known is None:
            self.view = view
            self._take_role(view)
            return
        if view.partition_epoch <= known.partition_epoch or view.leader_epoch < known.leader_epoch:
            return
        self.view = view
        if view.leader_epoch > known.leader_epoch or _is_alone(view) != _is_alone(known):
            self._take_role(view)
            if _is_alone(view) and self.flush_ack == "auto" and self.log.synced_offset < self.log.end_offset:
                # Records that were safe on several replicas must now be synced on the only one left.
                self._context.flush(self.log)
        elif self.leader_role is not None:
            self.leader_role.on_view(view)

    def _take_role(self, view: PartitionView) -> None:
        log = self.log
        self._high_watermark = max(min(self.committed_offset, log.end_offset), log.start_offset)
        lost = self.leader_role
        self.leader_role = self.follower = None
        # The coordinator verified transactions with the previous leader; they may have ended since.
        log.producers.void_verifications()
        self.leader_epoch = LeaderEpoch(view.leader_epoch)
        self.is_leader = view.leader == self._context.node_id
        if self.is_leader:
            if not _is_alone(view):
                self.leader_role = LeaderRole(
                    (self.topic_id, self.name.partition),
                    log,
                    view,
                    self._context,
                    high_watermark=self._high_watermark,
                    flush_ack=self.flush_ack,
                    min_isr=self._min_isr,
                    on_commit=self._on_commit,
                )
        elif view.leader != NO_LEADER:
            self.follower = PartitionFollower(view.leader, view.leader_epoch, log, self._high_watermark)
        log.producers.awaits_first_batches = self.leader_role is not None and view.leader_epoch > 0
        # Last: the callbacks look at the new role.
        if lost is not None:
            lost.end()
        self.end_waits()

    def end_role(self) -> None:
        """The replica has left this node: end its pending requests now instead of at their timeout."""
        self._high_watermark = self.committed_offset
        lost, self.leader_role, self.is_leader = self.leader_role, None, False
        if lost is not None:
            lost.end()
        self.end_waits()

    @property
    def is_replicated(self) -> bool:
        return self.view is not None and not _is_alone(self.view)

    def check_leads(self) -> None:
        """Refuse the request unless this node leads."""
        if not self.is_leader:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this node does not lead {self.name}")

    def check_reads(self, *, by_rack: bool) -> None:
        """Refuse consumers that may not read here. Rack-aware consumers (KIP-392) may read from a follower, too.

        The follower must be in the ISR and in contact with the controller: a lagging one would hold its readers back.
        The error is the one that sends every client back to the leader, without implying that the leader has changed.
        """
        if self.is_leader:
            return
        if not by_rack or self.follower is None or self.view is None:
            self.check_leads()
        elif self._context.node_id not in self.view.isr or self._context.sessions_missed():
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"this replica of {self.name} is not in sync")

    def check_settled(self) -> None:
        """Refuse to return the high watermark while a new leader's may be below one that consumers have seen."""
        if self.leader_role is not None and not self.leader_role.is_settled:
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader does not know yet how much is committed")

    @property
    def committed_offset(self) -> int:
        """The high watermark: records below it survive the failures the topic tolerates; consumers read no further.

        With one replica every appended record counts as committed (docs/decisions/0002).
        """
        if self.leader_role is not None:
            return self.leader_role.high_watermark
        if self.is_leader:
            return self.log.end_offset
        return self._high_watermark if self.follower is None else self.follower.high_watermark

    def follow_high_watermark(self, follower: PartitionFollower, fetched: Fetched) -> None:
        """Take the leader's high watermark, after the rest of its response has been applied."""
        before = follower.high_watermark
        follower.follow_high_watermark(fetched)
        if follower is self.follower and follower.high_watermark > before and self.watchers:
            self._wake_readers(before)

    @property
    def last_stable_offset(self) -> int:
        """The LSO: every transaction below it has been committed or aborted."""
        return self.log.stable_offset(self.committed_offset)

    def after_commit(self, end_offset: int, value: T) -> Later[T]:
        """`value`, once everything below `end_offset`, appended here as leader, is committed.

        Refused with NOT_LEADER_OR_FOLLOWER if leadership is lost meanwhile; an OSError if the disk fails.
        """
        if self.leader_role is not None:
            return self.leader_role.after_commit(end_offset, value)
        if not self.is_leader:
            return failed(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, LEADERSHIP_MOVED))
        if not self.acknowledges_after_sync:
            return done(value)
        return self._context.flusher.after_sync(self.log, end_offset, value)

    @property
    def is_committed(self) -> bool:
        """Whether `after_commit` at the log end offset would return at once."""
        if self.leader_role is not None:
            return self.leader_role.high_watermark >= self.log.end_offset
        log = self.log
        is_synced = log.failed is None and log.synced_offset >= log.end_offset
        return self.is_leader and (is_synced or not self.acknowledges_after_sync)

    @property
    def follows_synced(self) -> bool:
        """Whether the leader may count only the synced part of this replica's log (docs/decisions/0009).

        A replica that is about to be the only one will soon hold the only copy of acknowledged records.
        """
        if self.flush_ack == "auto":
            return self.view is not None and self.view.is_to_be_alone
        return self.flush_ack == "always"

    @property
    def acknowledges_at_once(self) -> bool:
        """Whether a write with acks=all is acknowledged without waiting."""
        return not self.acknowledges_after_sync and self.leader_role is None

    def configure(self, settings: Settings) -> None:
        """Apply changed settings, effective from the next request."""
        self.flush_ack = settings[topic_settings.FLUSH_ACK]
        self._min_isr = settings[topic_settings.MIN_INSYNC_REPLICAS]
        self.throttle = throttle_of(settings, self.name.partition, self._context.node_id)
        self.acknowledges_after_sync = self.flush_ack != "never"
        self.flush_messages = settings[topic_settings.FLUSH_MESSAGES]
        if self.leader_role is not None:
            self.leader_role.configure(self.flush_ack, self._min_isr)

    def throttles(self, follower: int) -> bool:
        """Whether this leader throttles a follower that is not in sync."""
        return self.throttle.as_leader and self.view is not None and follower not in self.view.isr

    @property
    def is_throttled(self) -> bool:
        """Whether this follower, not in sync, throttles its own fetches."""
        return self.throttle.as_follower and self.view is not None and self._context.node_id not in self.view.isr

    # Writing.

    def append(
        self,
        records: Buffer | None,
        *,
        zstd: bool,
        verification: Verification | None = None,
        acks_all: bool = False,
        by_node: bool = False,
        faults: RecordFaults | None = None,
    ) -> Appended:
        """Append a producer's batches and wake pending reads. Refused leaves the partition unchanged.

        `by_node` allows another node of the cluster to write to an internal topic other than a coordinator's. See
        `checks.checked_headers` for `faults`.
        """
        if not self.is_leader:
            self.refusals.note(records, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.check_leads()
        if not records:
            raise Refused(ErrorCode.INVALID_RECORD, "the request has no records for this partition")
        assert isinstance(records, memoryview), "a decoded request holds its records as a view"
        if self.is_internal and not (by_node and self.name.topic not in COORDINATOR_TOPICS):
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the broker itself writes to {self.name.topic}")
        attributes = _attributes(records)
        if attributes & batch.CODEC_MASK == ZSTD and not zstd:
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")
        if (
            acks_all
            and self.leader_role is not None
            and (not self.leader_role.is_writable or self.leader_role.is_doubtful)
        ):
            is_doubtful = self.leader_role.is_doubtful
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_doubtful else ErrorCode.NOT_ENOUGH_REPLICAS
            self.refusals.note(records, code)
            self._check_writable()
        try:
            appended = self.log.append(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=self._clock.wall_ms(),
                verification=verification,
                faults=faults,
            )
        except Refused as refused:
            raise self._refusal(refused, records) from None
        if appended.duplicate and attributes & batch.TRANSACTIONAL:
            # The transaction open here may have ended at a newer leader. Then this is not a duplicate but a batch of
            # the next transaction, and it is in no log.
            self.check_certain()
        self.refusals.on_written(records)
        if not appended.duplicate:
            self.written_records += appended.last_offset - appended.first_offset + 1
            self._on_grown(len(records))
            # Unsynced files stay open: too many of them would exhaust the file descriptors.
            if self.log.files.is_pressed or self.log.end_offset - self.log.synced_offset >= self.flush_messages:
                self._context.flush(self.log)
        return appended

    def append_short(self, short: ShortProduce) -> int | None:
        """The fast path of `append` for a small batch; returns its offset.

        None changes nothing: call `append` instead.
        """
        leader_role = self.leader_role
        if not self.is_leader or self.is_internal:
            return None
        if (
            leader_role is not None
            and short.acks == ACKS_ALL
            and (not leader_role.is_writable or leader_role.is_doubtful)
        ):
            return None
        log = self.log
        try:
            offset = log.append_short(short, self.leader_epoch, self._clock.wall_ms())
        except Refused:
            return None
        if offset is None:
            return None
        if short.producer_id >= 0 and self.refusals.by_producer:
            self.refusals.on_written(short.records)
        self.written_records += short.record_count
        if leader_role is None and not self.watchers:
            self.written_bytes += short.size
        else:
            self._on_grown(short.size)
        if log.files.is_pressed or log.end_offset - log.durability.synced_offset >= self.flush_messages:
            self._context.flush(log)
        return offset

    def _refusal(self, refused: Refused, records: memoryview) -> Refused:
        """The error for a producer whose batch the log refused."""
        self._on_unwritten(refused)
        if isinstance(refused, WrittenBefore) and not self._survives(refused.end_offset):
            return Refused(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{refused}, and may not survive yet")
        if isinstance(refused, FirstBatchMissing) and (
            self.leader_role is None or self.leader_role.age_ms >= FIRST_BATCH_GRACE_MS
        ):
            self.log.producers.awaits_first_batches = False
        if refused.code in TRANSIENT:
            self.refusals.note(records, refused.code)
        elif refused.code in FATAL_PRODUCER_ERRORS:
            if self.leader_role is not None and not self.leader_role.is_certain:
                return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{UNCERTAIN}; {refused}")
            if refused.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                code = self.refusals.before(records)
                if code is not None:
                    return Refused(code, f"an earlier batch was refused; resend that one first; {refused}")
        return refused

    def _survives(self, end_offset: int) -> bool:
        """Whether everything below `end_offset` is as durable as acks=all promises."""
        if self.leader_role is None and self.acknowledges_after_sync:
            return self.log.synced_offset >= end_offset
        return self.committed_offset >= end_offset

    def _on_unwritten(self, refused: Refused) -> None:
        if self.leader_role is not None and refused.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self.leader_role.on_unwritten()

    def _check_writable(self) -> None:
        if self.leader_role is None:
            return
        if self.leader_role.is_doubtful:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, CUT_OFF)
        if not self.leader_role.is_writable:
            assert self.view is not None
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{counted(len(self.view.isr), 'replica')} of {self.name} in sync, "
                f"and min.insync.replicas is {self._min_isr}",
            )

    def append_marker(
        self, producer_id: int, epoch: int, committed: bool, coordinator_epoch: int, transaction_version: int
    ) -> Appended:
        """Append the control record that commits or aborts a producer's transaction."""
        self.check_leads()
        self._check_writable()
        try:
            appended = self.log.append_marker(
                producer_id,
                epoch,
                committed,
                coordinator_epoch,
                now_ms=self._clock.wall_ms(),
                leader_epoch=self.leader_epoch,
                transaction_version=transaction_version,
            )
        except Refused as refused:
            self._on_unwritten(refused)
            raise
        self._on_grown(MARKER_BYTES)
        return appended

    def append_own(self, batch: bytes, verification: Verification | None = None) -> Appended:
        """Append a batch written by the broker itself, under the same ISR minimum as acks=all."""
        self.check_leads()
        self._check_writable()
        try:
            appended = self.log.append(
                memoryview(bytearray(batch)),
                leader_epoch=self.leader_epoch,
                now_ms=self._clock.wall_ms(),
                from_client=False,
                verification=verification,
            )
        except Refused as refused:
            self._on_unwritten(refused)
            raise
        self.written_records += appended.last_offset - appended.first_offset + 1
        self._on_grown(len(batch))
        return appended

    def delete_before(self, offset: int) -> Later[None]:
        """Advance the log start offset; ends once the live followers have done so, too."""
        self.log.delete_before(offset)
        if self.leader_role is None:
            return done(None)
        # Followers confirm with their next fetch.
        self.tell_start()
        return self.leader_role.after_start(self.log.start_offset)

    def tell_start(self) -> None:
        """Send the followers the log start offset. A replica that has not applied it cannot join the ISR."""
        for watcher in list(self.replica_watchers):
            watcher.on_change(self)

    def append_fetched(self, batches: memoryview, evidence_floor: int = 0) -> None:
        """Append the leader's batches unchanged. Refused leaves the partition unchanged."""
        log = self.log
        log.append_follower(batches, now_ms=self._clock.wall_ms(), evidence_floor=evidence_floor)
        self.copied_bytes += len(batches)
        if log.files.is_pressed or log.end_offset - log.synced_offset >= self.flush_messages:
            self._context.flush(log)

    # Watchers.

    def _on_grown(self, size: int) -> None:
        """The log has grown by `size` bytes."""
        self.written_bytes += size
        leader_role = self.leader_role
        if leader_role is None:
            if self.watchers:
                self._wake(size)
            return
        for watcher in self.replica_watchers:
            watcher.on_append(self, size)
        leader_role.on_append()

    def _on_commit(self, before: int) -> None:
        """The high watermark of a replicated partition has moved from `before`."""
        for watcher in self.replica_watchers:
            watcher.on_commit(self)
        if self.watchers:
            self._wake_readers(before)

    def _wake_readers(self, before: int) -> None:
        """Wake the readers: the high watermark has moved from `before`."""
        whole = self.log.size_from(before)
        # If positions are not in memory, overestimate rather than report none: readers check for themselves.
        self._wake(whole - self.log.size_from(self.committed_offset) or whole)

    def _wake(self, size: int) -> None:
        if self._is_waking:
            self._unwoken_bytes = (self._unwoken_bytes or 0) + size
        elif len(self.watchers) <= WOKEN_AT_ONCE:
            for watcher in list(self.watchers):
                watcher.on_append(self, size)
        else:
            self._is_waking, self._unwoken_bytes = True, size
            self._context.turns.run(self._wake_in_steps(), _ignore).then(_ignore)

    def _wake_in_steps(self) -> Steps[None]:
        """Wake the watchers, and again if the log grows meanwhile."""
        while (size := self._unwoken_bytes) is not None:
            self._unwoken_bytes = None
            for some in in_slices(list(self.watchers), WOKEN_AT_ONCE):
                for watcher in some:
                    watcher.on_append(self, size)
                yield None
        self._is_waking = False

    def end_waits(self) -> None:
        """End all waits: the role has changed, or the partition is gone."""
        watchers = list(self.watchers)
        if len(watchers) <= ENDED_AT_ONCE:
            for watcher in watchers:
                watcher.answer()
        else:
            # Reads that begin to wait from now on have seen the new role.
            self._context.turns.run(_answer_in_steps(watchers), _ignore).then(_ignore)
        for replica in list(self.replica_watchers):
            replica.on_change(self)

    # Reading.

    def read(
        self, offset: int, bytes_max: int, *, at_least_one_batch: bool, upper_offset: int | None = None
    ) -> LogRanges:
        """File ranges from `offset` on, not read yet; no ranges if there are no records there yet."""
        if offset > self.log.end_offset:
            self.check_certain()
        return self.log.read_ranges(offset, bytes_max, upper_offset=upper_offset, min_one=at_least_one_batch)

    def contains(self, offset: int) -> bool:
        """Whether `offset` is within the log or at its end."""
        return self.log.start_offset <= offset <= self.log.end_offset

    def check_certain(self) -> None:
        """Refuse, unless leadership is certain, before an answer that is final for the client and may be wrong.

        A consumer that gets an unknown offset or epoch resets its position. One that is ahead of this leader's log
        may have read from a newer leader.
        """
        if self.leader_role is not None and not self.leader_role.is_certain:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, UNCERTAIN)

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a request (consumer or follower) whose leader epoch is older or newer than ours; -1 skips it."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset at which it ended; -1 and -1 when unknown."""
        if epoch == self.leader_epoch:
            return epoch, self.log.end_offset
        if self.log.last_epoch < epoch < self.leader_epoch:
            # Nothing was written in this epoch or later. Answering "unknown" would make a consumer reset its
            # position, perhaps to offset 0.
            return max(self.log.last_epoch, 0), self.log.end_offset
        return self.log.end_offset_for_epoch(epoch)


def _ignore(_: object) -> None: ...


def _answer_in_steps(watchers: list[Watcher]) -> Steps[None]:
    for some in in_slices(watchers, WOKEN_AT_ONCE):
        for watcher in some:
            watcher.answer()
        yield None


def _attributes(records: memoryview) -> int:
    """The attributes of the first batch; 0 without a whole header, which the log then refuses."""
    return records[22] if len(records) >= batch.HEADER_BYTES else 0


def _is_alone(view: PartitionView) -> bool:
    return len(view.replicas) == 1


@lru_cache(ALIKE_MAX)
def view_of(partition: ImagePartition) -> PartitionView:
    """A partition's metadata as replication needs it. Cached: thousands of equal partitions share one value."""
    return PartitionView(
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.replicas,
        partition.isr,
        partition.is_recovering,
        partition.adding_replicas,
        partition.removing_replicas,
        partition.elr,
    )


class Partitions:
    """All partitions of this node, by name and by topic ID."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_topic: dict[UUID, dict[int, Partition]] = {}
        self._by_raw_name: dict[bytes, Partition] = {}
        self._by_raw_id: dict[bytes, Partition] = {}
        self._acknowledged: dict[UUID, Histogram] = {}
        self._raw: dict[UUID, tuple[bytes, bytes]] = {}
        """The name and ID of each topic as bytes, shared by its partitions."""
        self.unopened_refusals = UnopenedRefusals()

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def by_id(self, topic_id: UUID, index: int) -> Partition | None:
        topic = self._by_topic.get(topic_id)
        return None if topic is None else topic.get(index)

    def by_raw(self, key: bytes, *, is_id: bool) -> Partition | None:
        """Look up by the topic's name or ID as encoded in a frame, followed by the partition index in four bytes."""
        return (self._by_raw_id if is_id else self._by_raw_name).get(key)

    def of_topic(self, topic_id: UUID) -> list[Partition]:
        return list(self._by_topic.get(topic_id, {}).values())

    def add(self, partition: Partition) -> None:
        self._by_name[partition.name] = partition
        name, index = partition.name
        self._by_topic.setdefault(partition.topic_id, {})[index] = partition
        partition.acknowledged = self._acknowledged.setdefault(partition.topic_id, partition.acknowledged)
        raw = self._raw.get(partition.topic_id)
        if raw is None:
            raw = self._raw[partition.topic_id] = (name.encode(), partition.topic_id.bytes)
        self._by_raw_name[raw[0] + _INDEX.pack(index)] = partition
        self._by_raw_id[raw[1] + _INDEX.pack(index)] = partition
        if headers := self.unopened_refusals.take(name, partition.topic_id, index):
            partition.log.producers.note_unwritten(headers)

    def remove(self, partition: Partition) -> None:
        """Remove a partition and end the requests pending on it."""
        self.unlist(partition)
        partition.end_role()

    def unlist(self, partition: Partition) -> None:
        """Remove a partition from lookups; requests pending on it are ended later, by `end_role`."""
        del self._by_name[partition.name]
        name, index = partition.name
        del self._by_raw_name[name.encode() + _INDEX.pack(index)]
        del self._by_raw_id[partition.topic_id.bytes + _INDEX.pack(index)]
        topic = self._by_topic[partition.topic_id]
        del topic[index]
        if not topic:
            del self._by_topic[partition.topic_id]
            del self._acknowledged[partition.topic_id]
            del self._raw[partition.topic_id]
