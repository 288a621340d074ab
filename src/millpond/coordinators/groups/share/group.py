"""A share group, as the shard of all groups sees it.

Every method that decides reads the durable state and returns records and replies; the replies are already those of
the state after the records. `replay` of exactly these records, before the next decision, is the only thing that
changes the durable state.

A partition is assigned once the share coordinator has delivery state for it. So a heartbeat that subscribes to a new
topic orders that state (`InitializeState`) and asks the member to return soon; `on_initialized` notes that it exists,
and the next heartbeat assigns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn
from uuid import UUID

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.config.node import GROUP_SHARE_MAX_SIZE
from millpond.config.quota import GROUP_MEMBER_MAX_BYTES
from millpond.coordinators.groups.consumer.members import (
    LEAVING_EPOCH,
    Member,
    MemberMetadata,
    Partitions,
    TopicIdPartition,
    by_topic,
)
from millpond.coordinators.groups.consumer.state import member_bytes
from millpond.coordinators.groups.consumer.watch import Watch
from millpond.coordinators.groups.history import History
from millpond.coordinators.groups.memory import HELD_BYTES, TARGET_BYTES, GroupMemory
from millpond.coordinators.groups.share import assignor
from millpond.coordinators.groups.share.settings import ShareGroupSettings
from millpond.coordinators.groups.share.state import PARTITION_BYTES, ShareDraft, SharedTopic, ShareGroupState
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.coordinators.shares.keys import GROUP_ID_LENGTH_MAX
from millpond.metadata.image import Image, Resource
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.coordinators.groups.offsets import Committed

PROTOCOL: Final = "share"

MEMBER_ID_LENGTH_MAX: Final = 36
"""Members make their own ids, as UUIDs in text form."""

SOON_MS: Final = 50
"""When a member returns that waits for delivery state."""
INITIALIZE_AGAIN_MS: Final = 5_000
"""After how long an order without a result is given again."""


class InitializeState(NamedTuple):
    """An order: the share coordinator shall keep delivery state of these partitions."""

    group_id: str
    partitions: Partitions


class ShareGroup:
    type_name: Final = "share"
    protocol_type: Final = PROTOCOL

    def __init__(
        self,
        group_id: str,
        image: Callable[[], Image],
        settings: ShareGroupSettings,
        memory: GroupMemory | None = None,
    ) -> None:
        self.group_id = group_id
        self.memory = memory or GroupMemory()
        self.state = ShareGroupState()
        self.watch = Watch()
        self.history = History(1, self.memory)
        """Always empty: nobody waits for a rebalance of a share group."""
        self._image = image
        self._settings = settings
        self._ordered_ms: dict[TopicIdPartition, int] = {}
        """When delivery state was ordered, of partitions that have none yet."""
        self._being_deleted: Counter[UUID] = Counter()
        """The topics whose delivery state this coordinator is deleting, by the number of requests."""

    # Facts.

    @property
    def settings(self) -> ShareGroupSettings:
        own = self._image().config_of(Resource(ResourceType.GROUP, self.group_id))
        return self._settings.changed_by(own) if own else self._settings

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

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return self.state.topic_names

    def subscribed_among(self, topics: Iterable[str]) -> frozenset[str]:
        return self.state.topic_names.intersection(topics)

    def is_concerned_by(self, topics: Collection[str], matched: Callable[[str], bool]) -> bool:
        return not self.state.topic_names.isdisjoint(topics) or any(
            topic.name in topics for topic in self.state.initialized.values()
        )

    def describe(self) -> m.ShareGroupDescribeResponse.DescribedGroup:
        kind = m.ShareGroupDescribeResponse
        return kind.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state_name,
            group_epoch=self.state.epoch,
            assignment_epoch=max(self.state.assignment_epoch, 0),
            assignor_name=assignor.NAME,
            members=[
                kind.Member(
                    member_id=member.id,
                    rack_id=member.metadata.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.metadata.client_id,
                    client_host=member.metadata.client_host,
                    subscribed_topic_names=list(member.metadata.topics),
                    assignment=kind.Assignment(topic_partitions=self._named(member.current.assigned)),
                )
                for member in self.state.members.values()
            ],
        )

    def _named(self, partitions: Partitions) -> list[m.ShareGroupDescribeResponse.TopicPartitions]:
        """Partitions of deleted topics have no name to show."""
        topics = self._image().topics_by_id
        return [
            m.ShareGroupDescribeResponse.TopicPartitions(
                topic_id=topic_id, topic_name=topics[topic_id].name, partitions=numbers
            )
            for topic_id, numbers in by_topic(partitions)
            if topic_id in topics
        ]

    # Offsets: a share group has none of the kind that consumers commit.

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        raise self._is_other_kind()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        raise self._is_other_kind()

    def check_offset_delete(self) -> None:
        raise self._is_other_kind()

    def _is_other_kind(self) -> Refused:
        return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"{self.group_id} is a share group")

    def check_delete(self) -> None:
        if not self.is_empty:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "the group has members: stop them first")
        if self.state.initialized:
            # It would be that of a new group with this name.
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "the group still has delivery state: delete that first")

    def retained_since_ms(self, committed: Committed) -> int | None:
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        draft = ShareDraft(self.group_id, self.state)
        if self.exists:
            draft.remove_group()
        return draft.records

    # Requests.

    def heartbeat(self, request: Request, now_ms: int) -> Effects:
        """ShareGroupHeartbeat."""
        body = request.body
        assert isinstance(body, m.ShareGroupHeartbeatRequest)
        draft, effects = ShareDraft(self.group_id, self.state), Effects()
        try:
            check_request(body, self.settings)
            if body.member_epoch == LEAVING_EPOCH:
                response = self._leave(draft, body)
            else:
                response = self._stay(draft, effects, request, body, now_ms)
        except Refused as refused:
            effects = Effects(limit_met=refused if isinstance(refused, LimitMet) else None)
            effects.reply(request.reply_to, refusal(refused))
            return effects
        effects.records += draft.records
        effects.reply(request.reply_to, response)
        return effects

    def _leave(self, draft: ShareDraft, body: m.ShareGroupHeartbeatRequest) -> m.ShareGroupHeartbeatResponse:
        if body.member_id not in self.state.members:
            raise _unknown(body.member_id)
        self._remove(draft, [body.member_id])
        return m.ShareGroupHeartbeatResponse(member_id=body.member_id, member_epoch=LEAVING_EPOCH)

    def _stay(
        self, draft: ShareDraft, effects: Effects, request: Request, body: m.ShareGroupHeartbeatRequest, now_ms: int
    ) -> m.ShareGroupHeartbeatResponse:
        settings = self.settings
        before = self.state.members.get(body.member_id)
        if before is None:
            if body.member_epoch > 0:
                raise _unknown(body.member_id)
            if self.member_count >= settings.max_size:
                limit = GROUP_SHARE_MAX_SIZE.name
                text = f"the group has all of its {limit}={settings.max_size} members"
                raise LimitMet(ErrorCode.GROUP_MAX_SIZE_REACHED, limit, settings.max_size, text)
        elif body.member_epoch > 0:
            check_epoch(before, body.member_epoch)
        old = before or Member(body.member_id)
        metadata = _metadata(old.metadata, request, body)
        self._check_memory(before, metadata)
        if before is None or metadata != old.metadata:
            draft.set_metadata(old.id, metadata)
        if before is None or metadata.topics != old.metadata.topics:
            draft.set_epoch(draft.state.epoch + 1)
        is_waiting = self._order_state(draft, effects, metadata.topics, now_ms)
        self._ensure_target(draft)
        current = draft.state.members[old.id].current
        target = draft.state.target(old.id)
        if current.epoch != draft.state.epoch or current.assigned != target:
            current = replace(current.at_epoch(draft.state.epoch), assigned=target)
            draft.set_current(old.id, current)
        self.watch.session(old.id, now_ms + settings.session_timeout_ms)
        response = m.ShareGroupHeartbeatResponse(
            member_id=old.id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=min(SOON_MS, settings.heartbeat_interval_ms)
            if is_waiting
            else settings.heartbeat_interval_ms,
        )
        if body.member_epoch == 0 or body.subscribed_topic_names is not None or target != old.current.assigned:
            kind = m.ShareGroupHeartbeatResponse
            response.assignment = kind.Assignment(
                topic_partitions=[
                    kind.TopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in by_topic(target)
                ]
            )
        return response

    def _check_memory(self, before: Member | None, metadata: MemberMetadata) -> None:
        """The resulting assignment counts as well, and delivery state that will be ordered."""
        if before is not None and metadata == before.metadata:
            return
        topics = self._image().topics
        known = [topics[name] for name in metadata.topics if name in topics]
        partitions = min(sum(len(topic.partitions) for topic in known), assignor.PARTITIONS_EACH)
        old_bytes = 0 if before is None else before.metadata.kept_bytes
        new_bytes = metadata.kept_bytes + (member_bytes(Member("")) if before is None else 0)
        missing = sum(max(len(topic.partitions) - len(self.state.ready(topic.id)), 0) for topic in known)
        more_bytes = (TARGET_BYTES + HELD_BYTES) * partitions + PARTITION_BYTES * missing
        self.memory.check(new_bytes - old_bytes + more_bytes)

    def _order_state(self, draft: ShareDraft, effects: Effects, topics: Iterable[str], now_ms: int) -> bool:
        """Order delivery state for partitions of these topics that have none; whether there are any."""
        image, missing, is_waiting = self._image(), set[TopicIdPartition](), False
        for name in topics:
            topic = image.topics.get(name)
            if topic is not None:
                known = draft.state.ready(topic.id)
                if topic.id in self._being_deleted:
                    is_waiting = True
                elif len(known) < len(topic.partitions):
                    numbers = set(range(len(topic.partitions))) - known
                    missing.update(TopicIdPartition(topic.id, number) for number in numbers)
        due = [each for each in missing if now_ms >= self._ordered_ms.get(each, 0)]
        if due:
            self._ordered_ms.update(dict.fromkeys(due, now_ms + INITIALIZE_AGAIN_MS))
            effects.orders.append(InitializeState(self.group_id, frozenset(due)))
        return is_waiting or bool(missing)

    def _ensure_target(self, draft: ShareDraft) -> None:
        """Compute a target for the group epoch if there is none yet."""
        if draft.state.epoch <= draft.state.assignment_epoch:
            return
        for member_id, target in self._desired(draft.state).items():
            if target != draft.state.targets.get(member_id):
                draft.set_target(member_id, target)
        draft.set_assignment_epoch(draft.state.epoch)

    def _desired(self, state: ShareGroupState) -> dict[str, Partitions]:
        image = self._image()
        topics: dict[str, tuple[UUID, int]] = {}
        for name in state.topic_names:
            topic = image.topics.get(name)
            if topic is not None:
                ready = state.ready(topic.id)
                numbers = range(len(topic.partitions))
                topics[name] = topic.id, next((each for each in numbers if each not in ready), len(numbers))
        return assignor.assign(state.members.values(), topics)

    def _remove(self, draft: ShareDraft, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            draft.remove_member(member_id)
            self.watch.forget(member_id)
        draft.set_epoch(draft.state.epoch + 1)

    # Delivery state.

    def on_initialized(self, partitions: Partitions) -> Effects:
        """The share coordinator has state of these partitions; the next heartbeats assign them."""
        draft, topics = ShareDraft(self.group_id, self.state), self._image().topics_by_id
        initialized, deleting = dict(self.state.initialized), dict(self.state.deleting)
        for each in partitions:
            self._ordered_ms.pop(each, None)
        for topic_id, numbers in by_topic(partitions):
            topic = topics.get(topic_id)
            if topic is not None and topic_id not in self._being_deleted:
                initialized[topic_id] = SharedTopic(topic.name, self.state.ready(topic_id).union(numbers))
                deleting.pop(topic_id, None)
        # A group that was deleted meanwhile must not return.
        if self.exists and (initialized, deleting) != (self.state.initialized, self.state.deleting):
            draft.set_topics(initialized, deleting)
            draft.set_epoch(draft.state.epoch + 1)
        return Effects(records=draft.records)

    def on_not_initialized(self, partitions: Partitions) -> None:
        """The next heartbeat orders it again."""
        for each in partitions:
            self._ordered_ms.pop(each, None)

    def raise_epoch(self) -> Effects:
        """State that is initialised in the new epoch replaces all earlier state."""
        draft = ShareDraft(self.group_id, self.state)
        draft.set_epoch(draft.state.epoch + 1)
        return Effects(records=draft.records)

    def begin_deletion(self, topic_ids: Collection[UUID]) -> Effects:
        """The delivery state of these topics is about to be deleted. Note it first: what an interrupted deletion has
        left is ordered again for the next member, which would otherwise wait for state that is gone."""
        self._being_deleted.update(topic_ids)
        draft = ShareDraft(self.group_id, self.state)
        names = {each: SharedTopic(topic.name) for each, topic in self.state.initialized.items() if each in topic_ids}
        draft.set_topics(self.state.initialized, {**self.state.deleting, **names})
        return Effects(records=draft.records)

    def end_deletion(self, topic_ids: Collection[UUID], *, is_done: bool) -> Effects:
        self._being_deleted -= Counter(topic_ids)
        draft, state = ShareDraft(self.group_id, self.state), self.state
        if is_done and not state.initialized.keys().isdisjoint(topic_ids):
            kept = {each: topic for each, topic in state.initialized.items() if each not in topic_ids}
            draft.set_topics(kept, {each: topic for each, topic in state.deleting.items() if each not in topic_ids})
            draft.set_epoch(draft.state.epoch + 1)
        return Effects(records=draft.records)

    # Timers and topic changes.

    def next_deadline_ms(self) -> int | None:
        return self.watch.next_ms()

    def on_timer(self, now_ms: int) -> Effects:
        """Remove members whose session has ended."""
        draft = ShareDraft(self.group_id, self.state)
        gone = [member_id for _, member_id in self.watch.due(now_ms) if member_id in self.state.members]
        if gone:
            self._remove(draft, gone)
        return Effects(records=draft.records)

    def on_topics_changed(self, now_ms: int) -> Effects:
        """Handle created, deleted or extended topics: the next heartbeat assigns. The share coordinator forgets the
        state of deleted topics by itself."""
        draft, topics = ShareDraft(self.group_id, self.state), self._image().topics_by_id
        kept: Mapping[UUID, SharedTopic] = {
            topic_id: topic for topic_id, topic in self.state.initialized.items() if topic_id in topics
        }
        if len(kept) < len(self.state.initialized):
            draft.set_topics(kept, {each: topic for each, topic in self.state.deleting.items() if each in topics})
        effects = Effects()
        if not self.is_empty:
            self._order_state(draft, effects, self.state.topic_names, now_ms)
            if self._desired(draft.state) != dict(draft.state.targets):
                draft.set_epoch(draft.state.epoch + 1)
        effects.records += draft.records
        return effects

    def on_loaded(self, now_ms: int) -> None:
        """Start the timers of all members; `on_topics_changed` follows."""
        for member_id in self.state.members:
            self.watch.session(member_id, now_ms + self.settings.session_timeout_ms)

    # The only method that changes durable state.

    def replay(self, key: m.Message, value: m.Message | None, at_ms: int) -> None:
        kept_bytes = self.state.kept_bytes
        self.state.replay(key, value)
        self.memory.take(self.state.kept_bytes - kept_bytes)

    def release(self) -> None:
        """Free its memory when it is removed."""
        self.memory.take(-self.kept_bytes)
        self.memory = GroupMemory()
        self.history.release()


def check_request(body: m.ShareGroupHeartbeatRequest, settings: ShareGroupSettings) -> None:
    """Checks that do not need the group."""
    topics = body.subscribed_topic_names
    if not body.group_id.strip():
        _invalid("a group id cannot be empty")
    if len(body.group_id) > GROUP_ID_LENGTH_MAX:
        _invalid(f"the id of a share group has at most {GROUP_ID_LENGTH_MAX} characters")
    if not body.member_id or len(body.member_id) > MEMBER_ID_LENGTH_MAX:
        _invalid(f"a member id has 1 to {MEMBER_ID_LENGTH_MAX} characters")
    if body.member_epoch < LEAVING_EPOCH:
        _invalid(f"{body.member_epoch} is not a member epoch")
    if body.rack_id is not None and not body.rack_id.strip():
        _invalid("a rack id cannot be empty")
    if body.member_epoch == 0 and not topics:
        _invalid("a member says what it subscribes to when it joins")
    if sum(map(len, topics or ())) > settings.member_max_bytes:
        limit, bytes_max = GROUP_MEMBER_MAX_BYTES.name, settings.member_max_bytes
        text = f"the names of its topics are longer than {limit}={bytes_max}"
        raise LimitMet(ErrorCode.POLICY_VIOLATION, limit, bytes_max, text)


def check_epoch(member: Member, epoch: int) -> None:
    """A member sends its current epoch, or the previous one if it missed the last response."""
    if epoch not in (member.epoch, member.current.previous_epoch):
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH, f"the member's epoch is {member.epoch}, not {epoch}; it must join again"
        )


def refusal(refused: Refused) -> m.ShareGroupHeartbeatResponse:
    return m.ShareGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message)


def _metadata(old: MemberMetadata, request: Request, body: m.ShareGroupHeartbeatRequest) -> MemberMetadata:
    """The member's metadata; omitted fields are unchanged."""
    topics = body.subscribed_topic_names
    return MemberMetadata(
        rack_id=old.rack_id if body.rack_id is None else body.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=old.topics if topics is None else tuple(sorted(set(topics))),
    )


def _unknown(member_id: str) -> Refused:
    return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")


def _invalid(why: str) -> NoReturn:
    raise Refused(ErrorCode.INVALID_REQUEST, why)
