"""The leader side of a partition: the in-sync replicas, and the high watermark.

Fetches of followers, appends, metadata and time go in. The high watermark advances, and at most one AlterPartition
request is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.values import dataclass

ANY_BROKER_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The metadata of a partition."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_recovering: bool = False
    adding_replicas: tuple[int, ...] = ()
    """Replicas that are being added by a reassignment."""
    removing_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """Replicas with everything committed while the ISR is too small (KIP-966)."""

    @property
    def is_to_be_alone(self) -> bool:
        """Whether it has, or is being reassigned to, a single replica."""
        return len(self.replicas) - len(self.removing_replicas) == 1

    @property
    def factor(self) -> int:
        """The replication factor without replicas being added: the controller counts the same way."""
        return len(self.replicas) - len(self.adding_replicas)


@dataclass(frozen=True, slots=True)
class IsrRequest:
    """The ISR that the leader requests, each member with its broker epoch."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    withdrawn: tuple[int, ...] = ()
    """For a request without a change, which withdraws an earlier one: the replicas that the earlier one might
    still add."""

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker for broker, _ in self.isr)


@dataclass(slots=True)
class FollowerProgress:
    """A follower's progress according to its fetches; reset with every leader epoch."""

    end_offset: int = -1
    caught_up_ms: int = 0
    broker_epoch: int = ANY_BROKER_EPOCH
    fetched_ms: int = 0
    leader_end: int = 0
    """Our log end offset at its last fetch."""


@dataclass(slots=True)
class Rules:
    min_isr: int = 1
    lag_ms_max: int = 30_000


CanJoin = Callable[[int, int], bool]
"""Whether the broker with this id and epoch is unfenced, not shutting down, and the registered one."""


@dataclass(slots=True)
class PartitionLeader:
    """The leader side. `own_end` is what this node itself counts: written, or synced if that is required."""

    me: int
    view: PartitionView
    own_end: int
    high_watermark: int
    rules: Rules
    can_join: CanJoin
    elected_ms: int
    log_end: int = 0
    epoch_start: int = 0
    """Our log end offset when this epoch began."""
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    pending: IsrRequest | None = None
    """The request in flight; there is never a second one."""

    def __post_init__(self) -> None:
        for broker in self.view.replicas:
            if broker != self.me:
                # A member of the ISR is trusted for a while; any other replica has yet to show its progress.
                caught_up_ms = self.elected_ms if broker in self.view.isr else 0
                self.followers[broker] = FollowerProgress(caught_up_ms=caught_up_ms)
        self._advance()

    # Facts.

    @property
    def is_writable(self) -> bool:
        """Whether acks=all may be promised now."""
        return len(self.view.isr) >= self._min_isr

    @property
    def _min_isr(self) -> int:
        return min(self.rules.min_isr, self.view.factor)

    @property
    def maximal_isr(self) -> Collection[int]:
        """All replicas that may be in the ISR now or soon: nothing is committed without them.

        A replica being removed counts until the controller agrees, one being added counts at once.
        """
        pending = self.pending
        return self.view.isr if pending is None else {*self.view.isr, *pending.members, *pending.withdrawn}

    # Events. Each returns whether the high watermark moved.

    def on_append(self, log_end: int, own_end: int) -> bool:
        self.log_end, self.own_end = log_end, own_end
        return self._advance()

    def on_fetch(self, broker: int, broker_epoch: int, offset: int, now_ms: int) -> bool:
        """A follower has everything below `offset`, and fetches more."""
        progress = self.followers.get(broker)
        if progress is None or broker_epoch < progress.broker_epoch:
            return False
        if broker_epoch > progress.broker_epoch and progress.broker_epoch != ANY_BROKER_EPOCH:
            # It has restarted: what it had before may be gone.
            progress = self.followers[broker] = FollowerProgress()
        progress.broker_epoch = broker_epoch
        if offset >= self.log_end:
            progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
        elif offset >= progress.leader_end and progress.fetched_ms:
            # It has what we had at its last fetch: it keeps up, one step behind.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.end_offset = offset
        progress.fetched_ms, progress.leader_end = now_ms, self.log_end
        return self._advance()

    def on_view(self, view: PartitionView) -> bool:
        """Apply new metadata of the same leader epoch; older metadata is ignored."""
        assert view.leader == self.me, "another node leads"
        assert view.leader_epoch == self.view.leader_epoch, "another epoch is another leader"
        if view.partition_epoch <= self.view.partition_epoch:
            return False
        self.view = view
        self.pending = None
        for broker in view.replicas:
            if broker != self.me:
                self.followers.setdefault(broker, FollowerProgress())
        for broker in [each for each in self.followers if each not in view.replicas]:
            del self.followers[broker]
        return self._advance()

    def on_isr_response(self, request: IsrRequest, error: ErrorCode) -> IsrRequest | None:
        """The controller refused, or the request was lost; the next request to send. Success arrives as a view.

        An earlier copy of the request may be in flight, and may be granted once the replica is eligible again. So
        INELIGIBLE_REPLICA does not settle it: the leader requests the current ISR, which raises the partition epoch.
        After that no copy can be granted. Until then all members count.
        """
        if self.pending is not request or error is not ErrorCode.INELIGIBLE_REPLICA or request.withdrawn:
            return None
        withdrawn = tuple(each for each in request.members if each not in self.view.isr)
        if not withdrawn:
            # No replica was to be added: all that an earlier copy might put into the ISR are members now.
            self.pending = None
            return None
        self.pending = IsrRequest(
            request.leader_epoch,
            request.partition_epoch,
            tuple((each, ANY_BROKER_EPOCH) for each in self.view.isr),
            withdrawn,
        )
        return self.pending

    def on_ignored(self, request: IsrRequest) -> bool:
        """A controller of an earlier version granted no change and raised no epoch: it does not know withdrawals."""
        if self.pending is not request or not request.withdrawn:
            return False
        self.pending = None
        return self._advance()

    # The ISR.

    def isr_request(self, now_ms: int) -> IsrRequest | None:
        """A change of the ISR to request now, if there is one and none is in flight."""
        if self.pending is not None:
            return None
        staying = [broker for broker in self.view.isr if broker == self.me or not self._is_behind(broker, now_ms)]
        joining = [] if self.view.is_recovering else [each for each in self.followers if self._may_join(each)]
        isr = tuple(each for each in self.view.replicas if each in staying or each in joining)
        # A leader that was elected although it may lack records confirms itself once it leads: there is no one to
        # ask.
        if set(isr) == set(self.view.isr) and not self.view.is_recovering:
            return None
        self.pending = IsrRequest(
            self.view.leader_epoch,
            self.view.partition_epoch,
            tuple((each, self._broker_epoch(each)) for each in isr),
        )
        return self.pending

    def _broker_epoch(self, broker: int) -> int:
        return ANY_BROKER_EPOCH if broker == self.me else self.followers[broker].broker_epoch

    def _is_behind(self, broker: int, now_ms: int) -> bool:
        progress = self.followers[broker]
        return progress.end_offset != self.log_end and now_ms - progress.caught_up_ms > self.rules.lag_ms_max

    def _may_join(self, broker: int) -> bool:
        progress = self.followers[broker]
        return (
            broker not in self.view.isr
            and progress.end_offset >= max(self.high_watermark, self.epoch_start)
            and progress.broker_epoch != ANY_BROKER_EPOCH
            and self.can_join(broker, progress.broker_epoch)
        )

    # The high watermark.

    def _advance(self) -> bool:
        # Below min.insync.replicas nothing is committed: that is what lets an eligible replica lead later.
        if len(self.view.isr) < self._min_isr:
            return False
        offset = self.own_end
        for broker in self.maximal_isr:
            if broker != self.me:
                offset = min(offset, self.followers[broker].end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True
