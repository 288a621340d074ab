"""The leader's side of a replicated partition.

Drives `replication.leader.PartitionLeader` with appends, syncs, fetches and metadata changes, and completes requests
that wait for the high watermark. Each leader epoch gets a new role; no state outlives the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import EpochEnd
from millpond.base.later import Later, done, end_all
from millpond.log.epochs import NO_EPOCH
from millpond.replication.leader import IsrRequest, PartitionLeader, PartitionView, Rules

if TYPE_CHECKING:
    from uuid import UUID

    from millpond.broker.replication.partition_context import PartitionContext
    from millpond.log.partition_log import PartitionLog

T = TypeVar("T")

SYNC_AGAIN_MS = 50
"""Delay before retrying a sync that failed for lack of file descriptors or disk space."""

AILING_MS = 1_000
"""How long every write may fail before this node gives the leadership away."""

NEVER_MS = 1 << 62

LEADERSHIP_MOVED = "leadership has moved; it is not known whether the write was committed"

CUT_OFF = "this node is cut off from the others, which may have elected another leader"

READ_ELSEWHERE_MS = 600_000
"""How long a consumer redirected to a follower counts as reading there; clients refresh every five minutes."""

SPARE_MAX = 64
"""Size the heap may reach before entries of cancelled waits are removed."""


class LeaderRole:
    """One leader epoch of one partition on this node."""

    def __init__(
        self,
        partition: tuple[UUID, int],
        log: PartitionLog,
        view: PartitionView,
        context: PartitionContext,
        *,
        high_watermark: int,
        flush_ack: str,
        min_isr: int,
        on_commit: Callable[[int], None],
    ) -> None:
        self.log = log
        self._partition = partition
        self.flush_ack = flush_ack
        self._context = context
        self._on_commit = on_commit
        """Called with the previous high watermark when it has moved."""
        self._pending: dict[int, tuple[Later[Any], object]] = {}
        self._order: list[tuple[int, int]] = []
        self._numbers = count()
        self._starts: dict[int, int] = {}
        """Log start offset by follower."""
        self._copies: dict[int, tuple[int, int]] = {}
        """Followers that started from an empty log in this leader epoch and have not passed the evidence floor yet:
        the broker epoch in which they started, and the floor."""
        self._start_waits: dict[Later[None], int] = {}
        self._read_until_ms: dict[int, int] = {}
        """Followers to which this leader has redirected consumers, and until when that counts."""
        self._is_syncing = False
        self._is_refusing = False
        self._is_over = False
        self._elected_ms = context.clock.monotonic_ms()
        self._rules = Rules(min_isr, context.lag_ms_max())
        self._machine = PartitionLeader(
            me=context.node_id,
            view=view,
            own_end=self._own_end(view),
            high_watermark=high_watermark,
            rules=self._rules,
            can_join=self._can_join,
            elected_ms=self._elected_ms,
            log_end=log.end_offset,
            epoch_start=log.begin_epoch(view.leader_epoch),
        )
        self._sync()
        if view.is_recovering:
            context.on_isr_change(*partition)

    # Facts.

    @property
    def age_ms(self) -> int:
        """How long this node has led in this epoch."""
        return self._context.clock.monotonic_ms() - self._elected_ms

    @property
    def view(self) -> PartitionView:
        return self._machine.view

    @property
    def high_watermark(self) -> int:
        return self._machine.high_watermark

    @property
    def is_writable(self) -> bool:
        """Whether acks=all writes are accepted now."""
        return self._machine.is_writable

    @property
    def is_doubtful(self) -> bool:
        """Whether another node may lead by now: heartbeats have failed and the ISR has stopped fetching.

        During a controller failover no broker's heartbeats succeed. A leader that is still followed waits longer: its
        followers have not learned of a new leader.
        """
        missed = self._context.sessions_missed()
        if not missed:
            return False
        others = [each for each in self._machine.view.isr if each != self._context.node_id]
        followed = sum(map(self._context.is_followed_by, others))
        return followed < len(others) if missed > 1 else bool(others) and not followed

    def readable_at(self, offset: int) -> list[int]:
        """Followers from which a consumer could read at this offset: in the ISR, alive, and with that offset."""
        followers, starts = self._machine.followers, self._starts
        return [
            each
            for each in self._machine.view.isr
            if each != self._context.node_id
            and starts.get(each, offset + 1) <= offset <= followers[each].end_offset
            and self._is_there(each)
        ]

    def send_reader_to(self, node_id: int) -> None:
        """Note that a consumer was redirected to this follower, which now gets high watermark updates at once."""
        self._read_until_ms[node_id] = self._context.clock.monotonic_ms() + READ_ELSEWHERE_MS

    def is_read_at(self, node_id: int) -> bool:
        until_ms = self._read_until_ms.get(node_id)
        return until_ms is not None and self._context.clock.monotonic_ms() < until_ms

    @property
    def is_certain(self) -> bool:
        """Whether this node is sure that no other node leads or has led since its election."""
        return len(self._machine.view.replicas) == 1 or self._context.has_lease()

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark covers everything that earlier leaders may have exposed to consumers."""
        return self._machine.high_watermark >= self._machine.epoch_start

    @property
    def pending(self) -> IsrRequest | None:
        """The ISR change in flight to the controller."""
        return self._machine.pending

    def _own_end(self, view: PartitionView) -> int:
        """How much of the leader's log counts for the high watermark (docs/decisions/0009)."""
        return self.log.synced_offset if self._counts_synced(view) else self.log.end_offset

    def _counts_synced(self, view: PartitionView) -> bool:
        return self.flush_ack == "always" or (self.flush_ack == "auto" and len(view.isr) == 1)

    # Events.

    def configure(self, flush_ack: str, min_isr: int) -> None:
        self.flush_ack = flush_ack
        self._rules.min_isr = min_isr
        self._count()

    def on_append(self) -> None:
        self._is_refusing = False
        self._count()

    def _count(self) -> None:
        """Recount the leader's log, which may move the high watermark."""
        before = self._machine.high_watermark
        if self._machine.on_append(self.log.end_offset, self._own_end(self._machine.view)):
            self._committed(before)
        self._sync()

    def check_replica(self, broker: int, broker_epoch: int) -> None:
        """Refuse a broker that is not a replica, or an earlier incarnation of one."""
        if broker not in self._machine.followers:
            # Its metadata may be newer than ours.
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"node {broker} has no replica as far as this node knows")
        known = self._context.broker_epoch_of(broker)
        if broker_epoch < 0 or broker_epoch < known:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {broker} has restarted since")
        if broker_epoch > known:
            # If the epoch is real, our metadata catches up soon. If it is forged, accepting it would lock out the
            # real follower.
            raise Refused(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"the broker epoch of node {broker} is newer than this node's metadata",
            )

    def divergence(self, offset: int, last_epoch: int) -> EpochEnd | None:
        """Where a follower's log diverges from ours, if it does. It ends at `offset`, with a record of
        `last_epoch`."""
        end_offset: int = self.log.end_offset
        if offset >= self.log.start_offset and last_epoch >= 0:
            end = EpochEnd(*self.log.end_offset_for_epoch(last_epoch))
            if 0 <= end.end_offset < offset or NO_EPOCH < end.epoch < last_epoch:
                return end
            end_offset = min(end_offset, end.end_offset)
        if not self.log.start_offset <= offset <= end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside of the leader's log")
        return None

    def must_start_over(
        self, broker: int, broker_epoch: int, offset: int, start_offset: int, last_epoch: int
    ) -> bool:
        """Whether a follower may hold records whose tombstone or marker is no longer here for it to copy.

        Members of the ISR and the ELR have copied all such evidence: compaction stops at the high watermark. A log
        that DeleteRecords has emptied is not new: it still has epochs, and producers with open transactions.
        """
        floor, view = self.log.evidence_floor, self._machine.view
        is_new = start_offset >= offset and last_epoch < 0
        if offset >= floor or is_new or broker in view.isr or broker in view.elr:
            return False
        return self._copies.get(broker) != (broker_epoch, floor)

    @property
    def evidence_upto(self) -> int:
        """Compaction must keep evidence from this offset on: a follower that is catching up has not reached it.

        Without this, each compaction during a long catch-up would make the follower start over.
        """
        since_ms = self._context.clock.monotonic_ms() - self._context.lag_ms_max()
        return min(
            (
                progress.end_offset
                for broker, progress in self._machine.followers.items()
                if progress.end_offset >= 0 and progress.fetched_ms >= since_ms and self._is_there(broker)
            ),
            default=self.log.end_offset,
        )

    def on_fetch(self, broker: int, broker_epoch: int, offset: int, start_offset: int) -> None:
        """A follower has everything from `start_offset` to `offset`; its fetch has been validated."""
        before = self._machine.high_watermark
        self._starts[broker] = start_offset
        if self._machine.on_fetch(broker, broker_epoch, offset, self._context.clock.monotonic_ms()):
            self._committed(before)
        if offset >= self.log.evidence_floor:
            self._copies.pop(broker, None)
        elif start_offset >= offset:
            self._copies[broker] = broker_epoch, self.log.evidence_floor
        if self._start_waits:
            self._look_at_starts()
        if broker not in self._machine.view.isr and self._machine.pending is None:
            self._context.on_isr_change(*self._partition)

    def on_caught_up(self, broker: int, broker_epoch: int, offset: int) -> None:
        """A follower has been caught up until now, though its last fetch may be long ago."""
        self._machine.on_fetch(broker, broker_epoch, offset, self._context.clock.monotonic_ms())

    def on_view(self, view: PartitionView) -> None:
        """The metadata has changed within this leader epoch."""
        before = self._machine.high_watermark
        # With this node alone in the ISR, before or after the change, only its synced records count.
        own_end = self._own_end(view)
        self._machine.on_append(self.log.end_offset, min(own_end, self._own_end(self._machine.view)))
        self._machine.on_view(view)
        self._machine.on_append(self.log.end_offset, own_end)
        if self._machine.high_watermark > before:
            self._committed(before)
        if self._start_waits:
            # A follower that has left the ISR may be gone for good.
            self._look_at_starts()
        self._sync()

    @property
    def is_ailing(self) -> bool:
        """Whether this node cannot write to its log."""
        return self.log.failed is not None or self._is_refusing

    def on_unwritten(self) -> None:
        """A write or sync has failed. Some causes pass as other files are closed or removed."""
        if self.log.failed is not None:
            self._context.resign_leadership(*self._partition)
        elif not self._is_refusing:
            self._is_refusing = True
            self._context.clock.call_later(AILING_MS, self._resign_leadership)

    def _resign_leadership(self) -> None:
        if self.is_ailing and not self._is_over:
            self._context.resign_leadership(*self._partition)

    def resignation(self) -> IsrRequest | None:
        """An ISR without this node, which gives the leadership away; None while no other replica could lead.

        If no other replica is in the ISR, it names those in the ELR, which have everything committed.
        """
        view = self._machine.view
        others = [each for each in view.isr if each != self._context.node_id and self._is_there(each)]
        members = tuple((each, self._machine.followers[each].broker_epoch) for each in others)
        if not members:
            members = tuple((each, self._context.broker_epoch_of(each)) for each in view.elr if self._is_there(each))
        return IsrRequest(view.leader_epoch, view.partition_epoch, members) if members else None

    def isr_request(self) -> IsrRequest | None:
        """An ISR change to request now; from here on it counts as in flight."""
        # Followers cannot fetch from a leader that cannot write: the followers' lag is not their fault.
        self._rules.lag_ms_max = NEVER_MS if self.is_ailing else self._context.lag_ms_max()
        return self._machine.isr_request(self._context.clock.monotonic_ms())

    def on_isr_response(self, asked: IsrRequest, error: ErrorCode) -> IsrRequest | None:
        """The controller refused the change; returns what to request instead."""
        return self._machine.on_isr_response(asked, error)

    def on_isr_ignored(self, asked: IsrRequest) -> None:
        before = self._machine.high_watermark
        if self._machine.on_ignored(asked):
            self._committed(before)

    def on_cut_off(self) -> None:
        """Fail pending acknowledgements: their records may be committed later or never, and a retry will tell."""
        if self._pending and self.is_doubtful:
            self._fail_pending(
                Refused(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{CUT_OFF}; it is not known whether the write was committed"
                )
            )

    def end(self) -> None:
        """The leader epoch is over: refuse pending requests, whose outcome is unknown."""
        self._is_over = True
        moved = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, LEADERSHIP_MOVED)
        self._fail_pending(moved)
        end_all([(later, None) for later in self._start_waits], moved)

    # Waiting.

    def after_commit(self, end_offset: int, value: T) -> Later[T]:
        """`value`, once everything below `end_offset` is committed."""
        if self._machine.high_watermark >= end_offset:
            return done(value)
        number = next(self._numbers)
        later: Later[T] = Later(lambda: self._forget(number))
        self._pending[number] = (later, value)
        heappush(self._order, (end_offset, number))
        return later

    def after_start(self, offset: int) -> Later[None]:
        """Ends once all live followers have a log start offset of at least `offset`, and the ISR is large enough.

        A follower that left an ISR now below its minimum may lead again, since nothing is committed without it.
        Records deleted without it would come back.
        """
        later: Later[None] = Later(lambda: self._forget_start(later))
        self._start_waits[later] = offset
        self._look_at_starts()
        return later

    def _forget_start(self, later: Later[None]) -> None:
        self._start_waits.pop(later, None)

    def _look_at_starts(self) -> None:
        if not self._machine.is_writable:
            return
        lowest = min(
            (self._starts.get(each, -1) for each in self._machine.followers if self._is_there(each)), default=None
        )
        ended = [later for later, offset in self._start_waits.items() if lowest is None or lowest >= offset]
        end_all([(later, None) for later in ended])

    def _can_join(self, broker: int, broker_epoch: int) -> bool:
        """Whether a follower may join the ISR.

        Its checkpointed log start offset must have reached ours: otherwise, if it led next, records would come back
        whose deletion was acknowledged while it was away. A follower with a full disk must wait for space, because
        the controller would remove it from the ISR again, unless the leader's disk is full, too.
        """
        if self._starts.get(broker, -1) < self.log.start_offset:
            return False
        is_welcome = self._context.has_room(broker) or not self._context.has_room(self._context.node_id)
        return is_welcome and self._context.can_join(broker, broker_epoch)

    def _is_there(self, broker: int) -> bool:
        return self._context.can_join(broker, self._context.broker_epoch_of(broker))

    def _forget(self, number: int) -> None:
        self._pending.pop(number, None)
        if len(self._order) > SPARE_MAX and len(self._order) > 2 * len(self._pending):
            self._order = [entry for entry in self._order if entry[1] in self._pending]
            heapify(self._order)

    def _committed(self, before: int) -> None:
        ready = []
        while self._order and self._order[0][0] <= self._machine.high_watermark:
            pending = self._pending.pop(heappop(self._order)[1], None)
            if pending is not None:
                ready.append(pending)
        self._on_commit(before)
        end_all(ready)

    def _fail_pending(self, failure: Exception) -> None:
        pending, self._pending, self._order = self._pending, {}, []
        end_all(pending.values(), failure)

    # The leader's disk.

    def _sync(self) -> None:
        """Sync the log if only synced records count; one sync at a time covers everything written meanwhile."""
        if self._is_syncing or self._is_over or not self._counts_synced(self._machine.view):
            return
        if self.log.synced_offset >= self.log.end_offset:
            return
        self._is_syncing = True
        synced = self._context.flusher.after_sync(self.log, self.log.end_offset, None)
        synced.then(self._on_synced, self._on_unsynced)

    def _on_synced(self, _: None) -> None:
        self._is_syncing = False
        if not self._is_over:
            self._count()

    def _on_unsynced(self, failure: Exception) -> None:
        self._is_syncing = False
        if not isinstance(failure, OSError):
            raise failure
        if self._is_over:
            return
        self._fail_pending(failure)
        self.on_unwritten()
        if self.log.failed is None and not self.log.closed:
            # Lack of descriptors or space: the log itself is sound.
            self._context.clock.call_later(SYNC_AGAIN_MS, self._sync)
