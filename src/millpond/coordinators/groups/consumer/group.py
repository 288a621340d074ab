"""A consumer group of the new protocol, as the shard of all groups sees it.

Every method that decides (`heartbeat`, the four of the classic protocol, `on_timer`, `on_topics_changed`,
`on_loaded`) reads the durable state and returns records and replies; the replies are already those of the state after
the records (see `draft`). `replay` of exactly these records, in order, before the next decision, is the only thing
that changes the durable state. Clocks and the history are soft and change as decisions are made.

- A group that the log does not know yet is made by the shard when a member joins (epoch 0), and dropped again if
  nothing was written (`exists` is false).
- `upgrade_from` is called on a new group when a member joins a classic one; on success (`records`) it takes the
  classic group's place before the records are replayed.
- When only classic members remain, the last record converts the group to classic; replaying it makes the shard
  create the classic group and rebalance it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.ports import Entropy
from millpond.coordinators.groups.consumer.changes import look_again, remove_members
from millpond.coordinators.groups.consumer.checks import check_member_epoch
from millpond.coordinators.groups.consumer.classic_members import (
    decide_classic_heartbeat,
    decide_join,
    decide_leave,
    decide_sync,
)
from millpond.coordinators.groups.consumer.describe import described
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.heartbeat import decide_heartbeat, refusal
from millpond.coordinators.groups.consumer.members import Member, MemberState
from millpond.coordinators.groups.consumer.migration import (
    ClassicGroupView,
    answer_pending,
    check_upgrade,
    go_on_without,
    write_upgrade,
)
from millpond.coordinators.groups.consumer.pattern_topics import PatternTopics
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.state import GroupState
from millpond.coordinators.groups.consumer.surroundings import Surroundings
from millpond.coordinators.groups.consumer.watch import REJOIN, REVOCATION, SESSION, SYNC
from millpond.coordinators.groups.group import CONSUMER_PROTOCOL
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.memory import GroupMemory
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.coordinators.groups.offsets import Committed

R = TypeVar("R", bound=m.Message)
Decide = Callable[["ConsumerGroup", Draft, Request, int], R]

COMMIT_BY_EPOCH_VERSION: Final = 9

WHY_DUE: Final = {
    SESSION: Why.TIMED_OUT,
    REVOCATION: Why.DID_NOT_REVOKE,
    REJOIN: Why.DID_NOT_JOIN,
    SYNC: Why.DID_NOT_SYNC,
}


class ConsumerGroup(Surroundings):
    type_name: Final = "consumer"
    protocol_type: Final = CONSUMER_PROTOCOL

    def __init__(
        self,
        group_id: str,
        patterns: PatternTopics,
        settings: ConsumerGroupSettings,
        entropy: Entropy,
        history_length: int = 100,
        memory: GroupMemory | None = None,
    ) -> None:
        super().__init__(group_id, patterns, settings, entropy, history_length, memory)
        self.state = GroupState()
        self.emptied_ms = 0
        """When its last member left, in coordinator time."""

    # Facts.

    @property
    def exists(self) -> bool:
        """Whether the log has records of it."""
        return self.state.epoch > 0 or bool(self.state.members)

    @property
    def member_count(self) -> int:
        return len(self.state.members)

    @property
    def kept_bytes(self) -> int:
        return self.state.kept_bytes

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def state_name(self) -> str:
        return self.state.name

    def subscribed_among(self, topics: Iterable[str]) -> frozenset[str]:
        return frozenset(topics).intersection(chain.from_iterable(self.state.subscriptions()))

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(self.state.subscriptions()))

    def is_concerned_by(self, topics: Collection[str], matched: Callable[[str], bool]) -> bool:
        """Whether the group reads, or would read, any of these topics; `matched` decides that for a pattern."""
        return any(map(matched, self.state.patterns)) or any(
            topic in topics for member in self.state.members.values() for topic in member.metadata.topics
        )

    def describe(self, version: int = 1) -> m.ConsumerGroupDescribeResponse.DescribedGroup:
        return described(self.group_id, self.state, self.settings, self.image)

    # Offsets.

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        """Members commit in their epoch. Transactions may come without one: their producer is fenced separately."""
        if transactional and generation < 0 and not member_id and instance_id is None:
            return
        member = self.state.members.get(member_id)
        if member is not None and not member.is_classic and not transactional and version < COMMIT_BY_EPOCH_VERSION:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, "older versions of the request have no member epoch")
        check_member_epoch(self.state, member_id, generation, stale=ErrorCode.STALE_MEMBER_EPOCH)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        check_member_epoch(self.state, member_id or "", member_epoch, stale=ErrorCode.STALE_MEMBER_EPOCH)

    def check_offset_delete(self) -> None:
        """Offsets of topics without subscribers may be deleted at any time."""

    def check_delete(self) -> None:
        if not self.is_empty:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "the group has members: stop them first")

    def retained_since_ms(self, committed: Committed) -> int | None:
        return max(committed.since_ms, self.emptied_ms) if self.is_empty else committed.since_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        draft = self._draft()
        draft.remove_group()
        return draft.records if self.exists else []

    # Requests.

    def heartbeat(self, request: Request, now_ms: int) -> Effects:
        """ConsumerGroupHeartbeat."""
        return self._answer(decide_heartbeat, request, now_ms, refusal)

    def beat(self, member_id: str, epoch: int, client_id: str, client_host: str, now_ms: int) -> bool:
        """Handle a heartbeat without changes. If anything else is due, return False and change nothing."""
        state = self.state
        member = state.members.get(member_id)
        if (
            member is None
            or epoch <= 0
            or epoch != member.current.epoch
            or state.epoch > state.assignment_epoch
            or not member.current.is_reconciled(state.assignment_epoch)
        ):
            return False
        metadata = member.metadata
        if metadata.classic is not None or metadata.client_id != client_id or metadata.client_host != client_host:
            return False
        if metadata.regex is not None and self.settings.hides_topics:
            # The permissions must be checked again.
            return False
        self.watch.session(member_id, now_ms + self.settings.session_timeout_ms)
        return True

    def upgrade_from(self, classic: ClassicGroupView, request: Request, now_ms: int) -> Effects:
        """ConsumerGroupHeartbeat with epoch 0 to a group that is still classic; this one is new."""
        assert not self.exists

        def decide(group: ConsumerGroup, draft: Draft, request: Request, now_ms: int) -> m.Message:
            check_upgrade(classic, group.settings)
            write_upgrade(draft, classic, group.image)
            group.memory.check(draft.state.kept_bytes - classic.kept_bytes)
            return decide_heartbeat(group, draft, request, now_ms)

        effects = self._answer(decide, request, now_ms, refusal)
        if effects.records:
            answer_pending(classic, effects)
            for each in classic.members.values():
                self.watch.session(each.id, now_ms + each.session_timeout_ms)
        return effects

    def classic_join(self, request: Request, now_ms: int) -> Effects:
        """JoinGroup, after the checks that do not need the group (group id, bounds of the session timeout)."""

        def refused(why: Refused) -> m.Message:
            body = request.body
            assert isinstance(body, m.JoinGroupRequest)
            return m.JoinGroupResponse(error_code=why.code, member_id=body.member_id, protocol_name="")

        return self._answer(decide_join, request, now_ms, refused)

    def classic_sync(self, request: Request, now_ms: int) -> Effects:
        """SyncGroup."""
        return self._answer(
            decide_sync, request, now_ms, lambda why: m.SyncGroupResponse(error_code=why.code, assignment=b"")
        )

    def classic_heartbeat(self, request: Request, now_ms: int) -> Effects:
        """Heartbeat."""
        return self._answer(
            decide_classic_heartbeat, request, now_ms, lambda why: m.HeartbeatResponse(error_code=why.code)
        )

    def classic_leave(self, request: Request, now_ms: int) -> Effects:
        """LeaveGroup."""
        return self._answer(decide_leave, request, now_ms, lambda why: m.LeaveGroupResponse(error_code=why.code))

    def _answer(
        self, decide: Decide[R], request: Request, now_ms: int, refused: Callable[[Refused], m.Message]
    ) -> Effects:
        draft = self._draft()
        try:
            response: m.Message = decide(self, draft, request, now_ms)
        except Refused as why:
            effects = Effects(limit_met=why if isinstance(why, LimitMet) else None)
            effects.reply(request.reply_to, refused(why))
            return effects
        effects = self._decided(draft, now_ms)
        effects.reply(request.reply_to, response)
        return effects

    # Timers and topic changes.

    def next_deadline_ms(self) -> int | None:
        return self.watch.next_ms()

    def on_timer(self, now_ms: int) -> Effects:
        """Remove members whose time is up, in one epoch unless they are very many."""
        gone: dict[str, tuple[Member, Why, str]] = {}
        for kind, member_id in self.watch.due(now_ms):
            member = self.state.members.get(member_id)
            if member is not None:
                gone.setdefault(member_id, (member, WHY_DUE[kind], ""))
        draft = self._draft()
        if gone:
            remove_members(self, draft, gone.values(), now_ms)
            go_on_without(self, draft, now_ms)
        return self._decided(draft, now_ms)

    def on_topics_changed(self, now_ms: int) -> Effects:
        """Handle created, deleted or extended topics. If they concern the group, its epoch is bumped; the next
        heartbeat assigns."""
        draft = self._draft()
        if not self.is_empty:
            look_again(self, draft, now_ms)
        return self._decided(draft, now_ms)

    def on_loaded(self, now_ms: int) -> None:
        """Start the timers of all members; `on_topics_changed` follows, as topics may have changed in the
        meantime."""
        for member in self.state.members.values():
            classic = member.metadata.classic
            session_ms = self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
            self.watch.session(member.id, now_ms + session_ms)
            # Old records of an absent static member may demand a revocation although nothing is left.
            if classic is None and member.current.state is MemberState.UNREVOKED and member.current.revoking:
                self.watch.revocation(member.id, now_ms + member.metadata.rebalance_timeout_ms)

    # The only method that changes durable state.

    def replay(self, key: m.Message, value: m.Message | None, at_ms: int) -> None:
        had_members, kept_bytes = bool(self.state.members), self.state.kept_bytes
        self.state.replay(key, value)
        self.memory.take(self.state.kept_bytes - kept_bytes)
        if had_members and not self.state.members:
            self.emptied_ms = at_ms

    def release(self) -> None:
        """Free its memory when it is removed."""
        self.memory.take(-self.kept_bytes)
        self.memory = GroupMemory()
        self.history.release()

    def _draft(self) -> Draft:
        return Draft(self.group_id, self.state)

    def _decided(self, draft: Draft, now_ms: int) -> Effects:
        if draft.records:
            self.history.settled(draft.state, now_ms)
        return Effects(records=draft.records)
