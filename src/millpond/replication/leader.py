"""One partition on the node that leads it: who is in sync, and below which offset everything is committed.

Fetches of followers, appends, metadata and time go in. The high watermark moves, and at most one request to change
the ISR is under way.
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
    """What the metadata says of a partition."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_recovering: bool = False
    adding_replicas: tuple[int, ...] = ()
    """Those who are there only while the partition moves to them."""
    removing_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """Those who have everything committed while too few are in sync (KIP-966)."""

    @property
    def is_to_be_alone(self) -> bool:
        """Whether it has, or moves to, a single replica."""
        return len(self.replicas) - len(self.removing_replicas) == 1

    @property
    def factor(self) -> int:
        """How many replicas it has, but for those that a move adds: so the controller counts, too."""
        return len(self.replicas) - len(self.adding_replicas)


@dataclass(frozen=True, slots=True)
class IsrRequest:
    """The ISR that the leader wants, each member with the broker epoch that it came with."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    withdrawn: tuple[int, ...] = ()
    """Of a request for no change, which takes an earlier one back: those whom the earlier one may still let in."""

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker for broker, _ in self.isr)


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower has come, as its fetches say; nothing of it outlives the leader epoch."""

    end_offset: int = -1
    caught_up_ms: int = 0
    broker_epoch: int = ANY_BROKER_EPOCH
    fetched_ms: int = 0
    leader_end: int = 0
    """Where our log ended when it fetched last."""


@dataclass(slots=True)
class Rules:
    min_isr: int = 1
    lag_ms_max: int = 30_000


CanJoin = Callable[[int, int], bool]
"""Whether the broker with this id and epoch is unfenced, not on its way out, and the one that the metadata knows."""


@dataclass(slots=True)
class PartitionLeader:
    """The leader's half. `own_end` is what this node counts as its own: written, or synced where that asked for."""

    me: int
    view: PartitionView
    own_end: int
    high_watermark: int
    rules: Rules
    can_join: CanJoin
    elected_ms: int
    log_end: int = 0
    epoch_start: int = 0
    """Where our log ended when this epoch began."""
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    pending: IsrRequest | None = None
    """The request that is under way; there is never a second one."""

    def __post_init__(self) -> None:
        for broker in self.view.replicas:
            if broker != self.me:
                # A member of the ISR is trusted for a while; anybody else has yet to show how far it is.
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
        """All who may be in the ISR now or soon: nothing is committed without them.

        Whoever is asked to leave counts until the controller agrees, whoever is asked to join counts at once.
        """
        pending = self.pending
        return self.view.isr if pending is None else {*self.view.isr, *pending.members, *pending.withdrawn}

    # Events. Each returns whether the high watermark moved.

    def on_append(self, log_end: int, own_end: int) -> bool:
        self.log_end, self.own_end = log_end, own_end
        return self._advance()

    def on_fetch(self, broker: int, broker_epoch: int, offset: int, now_ms: int) -> bool:
        """A follower has everything below `offset`, and asks for more."""
        progress = self.followers.get(broker)
        if progress is None or broker_epoch < progress.broker_epoch:
            return False
        if broker_epoch > progress.broker_epoch and progress.broker_epoch != ANY_BROKER_EPOCH:
            # It has started anew: what its earlier life had may be gone.
            progress = self.followers[broker] = FollowerProgress()
        progress.broker_epoch = broker_epoch
        if offset >= self.log_end:
            progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
        elif offset >= progress.leader_end and progress.fetched_ms:
            # It has what we had when it asked the last time: it keeps up, one step behind.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.end_offset = offset
        progress.fetched_ms, progress.leader_end = now_ms, self.log_end
        return self._advance()

    def on_view(self, view: PartitionView) -> bool:
        """The metadata has changed within our leader epoch; what is older than what we know is no news."""
        assert view.leader == self.me, "another leads"
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

    def on_isr_response(self, asked: IsrRequest, error: ErrorCode) -> IsrRequest | None:
        """The controller said no, or the request was lost. Returns what to ask for instead. A yes comes as a view.

        An earlier copy of the request may be in flight, and may be granted once the replica is eligible again. So
        INELIGIBLE_REPLICA does not settle it: the leader asks for the ISR that there is, which raises the partition
        epoch. After that no copy can be granted. Until then all members count.
        """
        if self.pending is not asked or error is not ErrorCode.INELIGIBLE_REPLICA or asked.withdrawn:
            return None
        withdrawn = tuple(each for each in asked.members if each not in self.view.isr)
        if not withdrawn:
            # Nobody was to join: all who might be in the ISR by an earlier copy are members now.
            self.pending = None
            return None
        self.pending = IsrRequest(
            asked.leader_epoch,
            asked.partition_epoch,
            tuple((each, ANY_BROKER_EPOCH) for each in self.view.isr),
            withdrawn,
        )
        return self.pending

    def on_ignored(self, asked: IsrRequest) -> bool:
        """A controller of an earlier version granted no change, and raised no epoch: it knows no withdrawals."""
        if self.pending is not asked or not asked.withdrawn:
            return False
        self.pending = None
        return self._advance()

    # The ISR.

    def isr_request(self, now_ms: int) -> IsrRequest | None:
        """A change of the ISR to ask for now, if there is one and none is under way."""
        if self.pending is not None:
            return None
        staying = [broker for broker in self.view.isr if broker == self.me or not self._is_behind(broker, now_ms)]
        joining = [] if self.view.is_recovering else [each for each in self.followers if self._may_join(each)]
        wanted = tuple(each for each in self.view.replicas if each in staying or each in joining)
        # Whoever was elected although it may lack records says so itself once it leads: there is nobody to ask.
        if set(wanted) == set(self.view.isr) and not self.view.is_recovering:
            return None
        self.pending = IsrRequest(
            self.view.leader_epoch,
            self.view.partition_epoch,
            tuple((each, self._broker_epoch(each)) for each in wanted),
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
        # Below the least number of replicas nothing is committed: that is what lets an eligible replica lead later.
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
