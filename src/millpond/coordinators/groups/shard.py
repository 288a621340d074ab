"""The group coordinator of one partition of `__consumer_offsets`: dispatches to groups and keeps their timers.

Each kind of request has its own file. This one looks up what a request needs, turns refusals into responses, and
routes records to their groups.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.ports import Entropy
from millpond.coordinators.groups import description, expiry, offset_commit, offset_fetch, rebalance, refusals
from millpond.coordinators.groups.classic import ClassicGroup, State
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.deleted_topics import DELETED, DeletedTopics
from millpond.coordinators.groups.expiry import Expired
from millpond.coordinators.groups.group import GroupStep, Shared
from millpond.coordinators.groups.history import Rebalance
from millpond.coordinators.groups.join import check_join, join
from millpond.coordinators.groups.leave import leave, on_session_end
from millpond.coordinators.groups.members import NO_MEMBER_ID
from millpond.coordinators.groups.memory import GroupMemory
from millpond.coordinators.groups.rebalance import (
    answer_join,
    answer_sync,
    expect_heartbeat,
    on_join_timeout,
    on_sync_timeout,
    refused_join,
)
from millpond.coordinators.groups.registry import AnyGroup, Registry
from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.groups.share.group import InitializeState, ShareGroup
from millpond.coordinators.groups.share.state import Topics
from millpond.coordinators.groups.sync import heartbeat, sync
from millpond.coordinators.groups.timers import TimerKey
from millpond.coordinators.shard import Effects, Request
from millpond.metadata.image import Image
from millpond.wire import messages as m
from millpond.wire.kernel import ShortCommit

RETENTION: Final = "retention"
EXPIRE_GROUPS_MAX: Final = 500
EXPIRE_OFFSETS_MAX: Final = 2_000
"""Groups and offsets checked for retention per step. The last group may have more offsets, but no more than this are
removed."""
EXPIRE_PAUSE_MS: Final = 10

TOPICS: Final = "topics"
LOOK_AGAIN_WORK_MAX: Final = 1_500
LOOK_AGAIN_BYTES_MAX: Final = 16 << 10
"""How much work groups do in one step to re-evaluate their topics, in units of `PatternTopics.work`, and how much
they may have to write."""
LOOK_WORK: Final = 14
"""The cost of one group in the same units; its patterns are extra."""
LOOK_AGAIN_PAUSE_MS: Final = 1
NEVER: Final = -1
"""The topic change that a newly loaded group has seen."""

CONSUMER: Final = "consumer"
"""The timer of a group that manages its own deadlines."""


SelfTimed: TypeAlias = ConsumerGroup | ShareGroup
SELF_TIMED: Final = (ConsumerGroup, ShareGroup)
"""Groups that keep the timers of their members themselves."""


class GroupShard:
    """Groups, their offsets and their timers. `image` is read, never changed."""

    def __init__(
        self,
        image: Image,
        settings: GroupSettings,
        entropy: Entropy,
        check_room: Callable[[], None] = lambda: None,
        memory: GroupMemory | None = None,
    ) -> None:
        self.memory = memory or GroupMemory()
        self.shared = Shared(image, settings, entropy, self.memory)
        self.registry = Registry(self.shared)
        self.groups = self.registry.groups
        self.offsets = self.registry.offsets
        self._deleted_topics = DeletedTopics(self.offsets)
        self._check_room = check_room
        """Refused if the limit of groups is reached."""
        self._to_expire: deque[str] = deque()
        self._to_look_again: OrderedDict[str, int] = OrderedDict()
        """Groups that still have to re-evaluate their topics, with the latest change that they have seen."""

    # Requests.

    def step(self, request: Request, now_ms: int) -> Effects:
        step = self._begin_step(now_ms)
        try:
            self._decide(step, request)
        except Refused as refused:
            step.reply(request.reply_to, refusals.refusal(request, refused))
            if isinstance(refused, LimitMet):
                step.effects.limit_met = refused
        return step.effects

    def _decide(self, step: GroupStep, request: Request) -> None:
        body = request.body
        match body:
            case m.JoinGroupRequest():
                self._join(step, request, body)
            case m.SyncGroupRequest():
                self._sync(step, request, body)
            case m.HeartbeatRequest():
                self._heartbeat(step, request, body)
            case m.LeaveGroupRequest():
                self._leave(step, request, body)
            case m.OffsetCommitRequest():
                self._commit(step, request, body)
            case m.TxnOffsetCommitRequest():
                self._commit_in_transaction(step, request, body)
            case m.OffsetFetchRequest():
                self._fetch(step, request, body)
            case m.OffsetDeleteRequest():
                group = self.registry.known(body.group_id)
                step.reply(request.reply_to, offset_commit.delete_offsets(step, group, self.offsets, body))
            case m.DescribeGroupsRequest():
                self._describe(step, request, body)
            case m.DeleteGroupsRequest():
                self._delete(step, request, body)
            case m.ConsumerGroupHeartbeatRequest():
                self._consumer_heartbeat(step, request, body)
            case m.ConsumerGroupDescribeRequest():
                self._consumer_describe(step, request, body)
            case m.ShareGroupHeartbeatRequest():
                self._share_heartbeat(step, request, body)
            case m.ShareGroupDescribeRequest():
                described = [description.describe_share(each, self.groups.get(each)) for each in body.group_ids]
                step.reply(request.reply_to, m.ShareGroupDescribeResponse(groups=described))
            case _:
                raise AssertionError(f"{type(body).__name__} is not a request to a group coordinator")

    def _join(self, step: GroupStep, request: Request, body: m.JoinGroupRequest) -> None:
        check_join(step, body)
        group = self.groups.get(body.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            self._apply(step, group, group.classic_join(request, step.now_ms))
            return
        if isinstance(group, ShareGroup):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not isinstance(group, ClassicGroup):
            if body.member_id != NO_MEMBER_ID:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if group is not None:
                self._join_instead(step, group, request, body)
                return
            self._check_room()
            group = self.registry.new_classic(body.group_id)
        try:
            join(step, group, request, body)
        finally:
            self.registry.remove_if_unused(group)

    def _join_instead(
        self, step: GroupStep, empty: ConsumerGroup, request: Request, body: m.JoinGroupRequest
    ) -> None:
        """An empty consumer group becomes classic for a classic member, unless its join is refused."""
        joined = self._begin_step(step.now_ms)
        group = self.registry.prepared_classic(body.group_id)
        try:
            join(joined, group, request, body)
        except Refused:
            group.release()
            raise
        step.record(*empty.tombstones())
        step.effects.add(joined.effects)
        self.registry.put(group)

    def _sync(self, step: GroupStep, request: Request, body: m.SyncGroupRequest) -> None:
        group = self.registry.with_members(body.group_id)
        if isinstance(group, ConsumerGroup):
            self._apply(step, group, group.classic_sync(request, step.now_ms))
        else:
            sync(step, group, request, body)

    def _heartbeat(self, step: GroupStep, request: Request, body: m.HeartbeatRequest) -> None:
        group = self.registry.with_members(body.group_id)
        if isinstance(group, ConsumerGroup):
            self._apply(step, group, group.classic_heartbeat(request, step.now_ms))
        else:
            heartbeat(step, group, request, body)

    def _leave(self, step: GroupStep, request: Request, body: m.LeaveGroupRequest) -> None:
        if not body.group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(body.group_id)
        if isinstance(group, ConsumerGroup):
            self._apply(step, group, group.classic_leave(request, step.now_ms))
            return
        if isinstance(group, ShareGroup):
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        leave(step, group, request, body)
        if group is not None:
            self.registry.remove_if_unused(group)

    def _consumer_heartbeat(self, step: GroupStep, request: Request, body: m.ConsumerGroupHeartbeatRequest) -> None:
        existing = self.groups.get(body.group_id)
        if isinstance(existing, ConsumerGroup):
            self._apply(step, existing, existing.heartbeat(request, step.now_ms))
            return
        if (body.group_id and body.member_epoch != 0) or isinstance(existing, ShareGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"no such consumer group: {body.group_id}")
        if existing is None:
            self._check_room()
        group = self.registry.new_consumer(body.group_id)
        if existing is None:
            effects = group.heartbeat(request, step.now_ms)
        else:
            effects = group.upgrade_from(existing, request, step.now_ms)
        if effects.records:
            if existing is not None:
                rebalance.forget_timers(step, existing)
            self.registry.put(group)
            self._apply(step, group, effects)
        else:
            group.release()
            step.effects.add(effects)

    def _consumer_describe(self, step: GroupStep, request: Request, body: m.ConsumerGroupDescribeRequest) -> None:
        described = [description.describe_consumer(each, self.groups.get(each)) for each in body.group_ids]
        step.reply(request.reply_to, m.ConsumerGroupDescribeResponse(groups=described))

    def _share_heartbeat(self, step: GroupStep, request: Request, body: m.ShareGroupHeartbeatRequest) -> None:
        group = self.groups.get(body.group_id)
        if isinstance(group, ShareGroup):
            self._apply(step, group, group.heartbeat(request, step.now_ms))
            return
        if body.group_id and (group is not None or body.member_epoch != 0):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"no such share group: {body.group_id}")
        self._check_room()
        group = self.registry.new_share(body.group_id)
        effects = group.heartbeat(request, step.now_ms)
        if effects.records:
            self.registry.put(group)
            self._apply(step, group, effects)
        else:
            group.release()
            step.effects.add(effects)

    def _apply(self, step: GroupStep, group: SelfTimed, effects: Effects) -> None:
        """Apply the decisions of a group that keeps its own timers, and set its next deadline."""
        step.effects.add(effects)
        self._schedule(group)

    def _schedule(self, group: SelfTimed) -> None:
        timers, deadline_ms = self.shared.timers, group.next_deadline_ms()
        if deadline_ms is None:
            timers.cancel(TimerKey(CONSUMER, group.group_id))
        else:
            timers.set(TimerKey(CONSUMER, group.group_id), deadline_ms)

    def _commit(self, step: GroupStep, request: Request, body: m.OffsetCommitRequest) -> None:
        generation = body.generation_id_or_member_epoch
        group = self.groups.get(body.group_id)
        if group is not None:
            group.check_commit(
                body.member_id, body.group_instance_id, generation, version=request.version, transactional=False
            )
            self._keep_alive(step, group, body.member_id)
        elif generation >= 0:
            knows_code = request.version >= offset_commit.GROUP_ID_NOT_FOUND_FROM
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND if knows_code else ErrorCode.ILLEGAL_GENERATION)
        else:
            self._check_room()
        step.reply(request.reply_to, offset_commit.commit(step, self.offsets, body, request.version))

    def _keep_alive(self, step: GroupStep, group: AnyGroup, member_id: str) -> None:
        """A commit counts as a heartbeat in a classic group."""
        if isinstance(group, ClassicGroup) and group.state in (State.STABLE, State.PREPARING):
            member = group.members.get(member_id)
            if member is not None:
                expect_heartbeat(step, group, member)

    def _commit_in_transaction(self, step: GroupStep, request: Request, body: m.TxnOffsetCommitRequest) -> None:
        group = self.groups.get(body.group_id)
        generation = body.generation_id
        is_exact = request.version >= offset_commit.EXACT_GROUP_ERRORS_FROM
        if group is not None:
            try:
                group.check_commit(
                    body.member_id, body.group_instance_id, generation, version=request.version, transactional=True
                )
            except Refused as refused:
                # Older producers know only generations.
                is_stale = refused.code is ErrorCode.STALE_MEMBER_EPOCH and not is_exact
                raise Refused(ErrorCode.ILLEGAL_GENERATION) if is_stale else refused from None
        elif generation >= 0:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND if is_exact else ErrorCode.ILLEGAL_GENERATION)
        else:
            self._check_room()
        step.reply(request.reply_to, offset_commit.commit_in_transaction(step, self.offsets, body, request.version))

    def _fetch(self, step: GroupStep, request: Request, body: m.OffsetFetchRequest) -> None:
        groups = offset_fetch.asked_groups(body, request.version)
        answered = [self.fetch_offsets(each, request.version, body.require_stable) for each in groups]
        step.reply(request.reply_to, offset_fetch.fetch_reply(answered, request.version))

    def _describe(self, step: GroupStep, request: Request, body: m.DescribeGroupsRequest) -> None:
        described = [
            description.describe_classic(each, self.groups.get(each), request.version) for each in body.groups
        ]
        step.reply(request.reply_to, m.DescribeGroupsResponse(groups=described))

    def _delete(self, step: GroupStep, request: Request, body: m.DeleteGroupsRequest) -> None:
        results = []
        for group_id in dict.fromkeys(body.groups_names):
            result = m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
            try:
                group = self.registry.known(group_id)
                group.check_delete()
                expiry.forget_group(step, group, self.offsets)
            except Refused as refused:
                result.error_code, result.error_message = refused.code, refused.message
            results.append(result)
        step.reply(request.reply_to, m.DeleteGroupsResponse(results=results))

    # Short paths: whatever is unusual is left to `step`.

    def commit_one(self, request: ShortCommit, reply_to: Any, now_ms: int) -> Effects | None:
        """OffsetCommit of one offset by a member; None, with nothing changed, if it is not that simple."""
        group = self.groups.get(request.group_id)
        if group is None:
            return None
        try:
            group.check_commit(
                request.member_id, None, request.generation, version=request.version, transactional=False
            )
        except Refused:
            return None
        step = self._begin_step(now_ms)
        record = offset_commit.commit_one(step, self.offsets, request)
        if record is None:
            return None
        self._keep_alive(step, group, request.member_id)
        step.record(record)
        step.reply(reply_to, request.reply())
        return step.effects

    def beat(self, group_id: str, member_id: str, generation: int, now_ms: int) -> bool:
        """Heartbeat: whether the member is known and may continue. If not, nothing has changed."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup) or group.state is State.PREPARING or generation != group.generation:
            return False
        member = group.members.get(member_id)
        if member is None:
            return False
        self.shared.timers.set(TimerKey(rebalance.SESSION, group_id, member_id), now_ms + member.session_timeout_ms)
        return True

    def consumer_beat(
        self, group_id: str, member_id: str, epoch: int, client_id: str, client_host: str, now_ms: int
    ) -> int | None:
        """ConsumerGroupHeartbeat without changes on either side: when the next is due.

        None, with nothing changed, for any other.
        """
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not group.beat(member_id, epoch, client_id, client_host, now_ms):
            return None
        self._schedule(group)
        return group.settings.heartbeat_interval_ms

    # Queries.

    def fetch_offsets(
        self, request: m.OffsetFetchRequest.OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
        """The committed offsets of one group, from all replayed records."""
        reader = offset_fetch.OffsetReader(
            self.shared.image, self.offsets, version=version, require_stable=require_stable
        )
        return reader.read(self.groups.get(request.group_id), request)

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[m.ListGroupsResponse.ListedGroup]:
        return description.list_groups(self.groups.values(), states, types)

    # Delivery state of share groups, which the share coordinator keeps.

    def on_share_state(self, order: InitializeState, *, is_done: bool, now_ms: int) -> Effects:
        """The order was carried out, or failed and is given again."""
        step, group = self._begin_step(now_ms), self.groups.get(order.group_id)
        if isinstance(group, ShareGroup):
            if is_done:
                self._apply(step, group, group.on_initialized(order.partitions))
            else:
                group.on_not_initialized(order.partitions)
        return step.effects

    def share_topics(self, group_id: str) -> Topics:
        """The topics of which the share group has delivery state, by id."""
        return self._share_group(group_id).state.initialized

    def share_epoch(self, group_id: str) -> int:
        return self._share_group(group_id).state.epoch

    def check_no_share_members(self, group_id: str) -> None:
        if not self._share_group(group_id).is_empty:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "the group has members: stop them first")

    def raise_share_epoch(self, group_id: str, token: Any, now_ms: int) -> Effects:
        """Raise the epoch of a share group without members. The reply is the new epoch, or why there is none."""
        step = self._begin_step(now_ms)
        try:
            self.check_no_share_members(group_id)
        except Refused as refused:
            step.reply(token, refused)
            return step.effects
        group = self._share_group(group_id)
        step.effects.add(group.raise_epoch())
        step.reply(token, group.state.epoch + 1)
        return step.effects

    def _share_group(self, group_id: str) -> ShareGroup:
        group = self.registry.known(group_id)
        if not isinstance(group, ShareGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id} is not a share group")
        return group

    def begin_share_deletion(self, group_id: str, topic_ids: Collection[UUID], token: Any, now_ms: int) -> Effects:
        """The delivery state of these topics is about to be deleted. The reply is None, or why it must not be."""
        step = self._begin_step(now_ms)
        try:
            self.check_no_share_members(group_id)
        except Refused as refused:
            step.reply(token, refused)
            return step.effects
        self._apply(step, group := self._share_group(group_id), group.begin_deletion(topic_ids))
        step.reply(token, None)
        return step.effects

    def end_share_deletion(
        self, group_id: str, topic_ids: Collection[UUID], now_ms: int, *, is_done: bool
    ) -> Effects:
        """It was deleted, or not all of it."""
        step, group = self._begin_step(now_ms), self.groups.get(group_id)
        if isinstance(group, ShareGroup):
            self._apply(step, group, group.end_deletion(topic_ids, is_done=is_done))
        return step.effects

    def history(self, group_id: str) -> list[Rebalance]:
        """The group's rebalances, oldest first; empty for an unknown group."""
        group = self.groups.get(group_id)
        return list(group.history.rebalances) if group else []

    def take_finished(self) -> list[tuple[str, Rebalance]]:
        """Rebalances that have ended since the last call."""
        finished, self.shared.finished = self.shared.finished, []
        return finished

    # Timers and topic changes.

    def next_deadline_ms(self) -> int | None:
        return self.shared.timers.next_ms()

    def on_timer(self, now_ms: int) -> Effects:
        """Handle expired timers up to the first records: what is due next may depend on their replay."""
        step = self._begin_step(now_ms)
        # At most once each: a timer that expires again at once must not starve requests.
        for _ in range(len(self.shared.timers)):
            if step.effects.records or not (key := self.shared.timers.pop_due(now_ms)):
                break
            self._on_expired(step, key)
        return step.effects

    def _on_expired(self, step: GroupStep, key: TimerKey) -> None:
        if key.kind == RETENTION:
            self._expire(step)
            return
        if key.kind == TOPICS:
            self._look_again(step)
            return
        if key.kind == DELETED:
            self._deleted_topics.forget_some(step)
            return
        group = self.groups.get(key.group_id)
        if isinstance(group, SELF_TIMED):
            if key.kind == CONSUMER:
                self._apply(step, group, group.on_timer(step.now_ms))
            return
        if group is None:
            return
        match key.kind:
            case rebalance.SESSION:
                on_session_end(step, group, key.member_id)
                self.registry.remove_if_unused(group)
            case rebalance.JOIN_PHASE:
                on_join_timeout(step, group)
            case rebalance.SYNC_PHASE:
                on_sync_timeout(step, group)

    def _expire(self, step: GroupStep) -> None:
        """Check some groups now and the rest a little later, so as not to delay requests."""
        if not self._to_expire:
            self._to_expire.extend(self.groups)
        groups_left, offsets_left = EXPIRE_GROUPS_MAX, EXPIRE_OFFSETS_MAX
        while self._to_expire and groups_left > 0 and offsets_left > 0:
            groups_left -= 1
            group = self.groups.get(self._to_expire.popleft())
            if group is None:
                continue
            expired = expiry.expire_offsets(step, group, self.offsets, offsets_left)
            if expired is Expired.ENOUGH:
                self._to_expire.appendleft(group.group_id)
                break
            # Of a share group, the share coordinator keeps what it has finished.
            if expired is Expired.ALL and group.is_empty and not isinstance(group, ShareGroup):
                step.record(*group.tombstones())
            offsets_left -= self.offsets.count_of_group(group.group_id)
        pause_ms = EXPIRE_PAUSE_MS if self._to_expire else step.settings.offsets_retention_check_interval_ms
        step.timers.set(TimerKey(RETENTION), step.now_ms + pause_ms)

    def on_topics_deleted(self, names: Iterable[str], now_ms: int) -> Effects:
        """Remove the offsets of topics that are gone from the image."""
        step = self._begin_step(now_ms)
        self._deleted_topics.on_deleted(step, frozenset(names), self.registry.last_offset)
        return step.effects

    def on_topics_changed(self, names: Iterable[str], now_ms: int) -> Effects:
        """These topics were created, deleted or extended in the image: consumer groups soon re-evaluate."""
        step = self._begin_step(now_ms)
        patterns = self.shared.patterns
        seen = patterns.changes.count
        patterns.on_changed(names)
        for group in self.groups.values():
            if isinstance(group, SELF_TIMED):
                self._to_look_again.setdefault(group.group_id, seen)
        if self._to_look_again:
            step.timers.set(TimerKey(TOPICS), now_ms)
        else:
            patterns.forget_changes()
        return step.effects

    def _look_again(self, step: GroupStep) -> None:
        """Re-evaluate the topics of some groups now and the rest a little later, so as not to delay requests."""
        patterns = self.shared.patterns
        changed_since = cache(patterns.changes.since)
        work_max = patterns.work + LOOK_AGAIN_WORK_MAX
        written = 0
        while self._to_look_again and patterns.work < work_max and written < LOOK_AGAIN_BYTES_MAX:
            group_id, seen = self._to_look_again.popitem(last=False)
            group = self.groups.get(group_id)
            if not isinstance(group, SELF_TIMED):
                continue
            work_max -= 1 + group.member_count
            changed = changed_since(seen)
            if changed is None or group.is_concerned_by(changed, partial(patterns.has_changed, since=seen)):
                work_max -= LOOK_WORK
                decided = group.on_topics_changed(step.now_ms)
                written += sum(len(each.value or b"") for each in decided.records)
                self._apply(step, group, decided)
        if self._to_look_again:
            step.timers.set(TimerKey(TOPICS), step.now_ms + LOOK_AGAIN_PAUSE_MS)
        else:
            patterns.forget_changes()

    def on_loaded(self, now_ms: int) -> Effects:
        self.registry.is_loaded = True
        step = self._begin_step(now_ms)
        for group in self.groups.values():
            if isinstance(group, SELF_TIMED):
                group.on_loaded(now_ms)
                self._apply(step, group, Effects())
                self._to_look_again[group.group_id] = NEVER
            else:
                rebalance.wake(step, group)
        self._look_again(step)
        # Topics that were deleted while no coordinator was loaded, or just before the node stopped.
        gone = self.offsets.topics() - step.shared.image.topics.keys()
        self._deleted_topics.on_loaded(step, gone, self.registry.last_offset)
        step.timers.set(TimerKey(RETENTION), now_ms + step.settings.offsets_retention_check_interval_ms)
        return step.effects

    def unload(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Effects:
        """This shard is given up: fail pending requests with `code`, and clients retry elsewhere."""
        step = self._begin_step(self.registry.at_ms)
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    answer_join(step, member, refused_join(member.joining, code, member.id))
                    answer_sync(step, member, code)
        return step.effects

    # Records.

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        self.registry.replay(offset, key, value)

    def replay_transactional(
        self, producer_id: int, epoch: int, offset: int, key: bytes, value: bytes | None
    ) -> None:
        self.registry.replay_transactional(producer_id, epoch, offset, key, value)

    def replay_marker(self, producer_id: int, epoch: int, committed: bool, offset: int) -> None:
        self.registry.replay_marker(producer_id, epoch, committed)

    def set_time(self, now_ms: int, wall_ms: int) -> None:
        self.registry.at_ms = now_ms
        self.shared.wall_ahead_ms = wall_ms - now_ms

    def _begin_step(self, now_ms: int) -> GroupStep:
        self.registry.at_ms = now_ms
        return GroupStep(self.shared, now_ms)
