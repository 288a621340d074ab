"""The group coordinator of one partition of `__consumer_offsets`: finds the group, lets it decide, keeps the clock.

Each kind of request has its own file beside this one. Here they only meet: what a request needs to know about is
looked up, a refusal becomes the answer that its request has for it, and records find their way back to what they are
about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ports import Entropy
from millpond.coordinators.groups import committing, describing, expiry, fetching, refusals
from millpond.coordinators.groups.classic import ClassicGroup, State
from millpond.coordinators.groups.group import Group, Shared, Turn
from millpond.coordinators.groups.history import Cause, Rebalance, Why
from millpond.coordinators.groups.join import check_join, join
from millpond.coordinators.groups.leave import leave, on_session_end
from millpond.coordinators.groups.members import NO_MEMBER_ID
from millpond.coordinators.groups.offsets import Committed, Offsets
from millpond.coordinators.groups.rebalance import (
    answer_join,
    answer_sync,
    expect_heartbeat,
    on_join_timeout,
    on_sync_timeout,
    prepare,
    refused_join,
)
from millpond.coordinators.groups.records import (
    GROUP_KEY_VERSION,
    OFFSET_KEY_VERSIONS,
    OffsetKey,
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    decode_offset_value,
    key_version,
)
from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.groups.sync import heartbeat, sync
from millpond.coordinators.groups.timers import TimerKey
from millpond.coordinators.shard import Effects, Request
from millpond.metadata.image import Image
from millpond.wire import messages as m

RETENTION: Final = "retention"


class GroupShard:
    """Groups, their offsets and their timers. `image` is read, never changed."""

    def __init__(self, image: Image, settings: GroupSettings, entropy: Entropy) -> None:
        self.shared = Shared(image, settings, entropy)
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()

    # Requests.

    def step(self, request: Request, now_ms: int) -> Effects:
        turn = Turn(self.shared, now_ms)
        try:
            self._decide(turn, request)
        except Refused as refused:
            turn.reply(request.token, refusals.refusal(request, refused.code))
        return turn.effects

    def _decide(self, turn: Turn, request: Request) -> None:
        body = request.body
        match body:
            case m.JoinGroupRequest():
                self._join(turn, request, body)
            case m.SyncGroupRequest():
                sync(turn, self._classic(body.group_id), request, body)
            case m.HeartbeatRequest():
                heartbeat(turn, self._classic(body.group_id), request, body)
            case m.LeaveGroupRequest():
                self._leave(turn, request, body)
            case m.OffsetCommitRequest():
                self._commit(turn, request, body)
            case m.TxnOffsetCommitRequest():
                self._commit_in_transaction(turn, request, body)
            case m.OffsetFetchRequest():
                self._fetch(turn, request, body)
            case m.OffsetDeleteRequest():
                group = self._known(body.group_id)
                turn.reply(request.token, committing.delete_offsets(turn, group, self.offsets, body))
            case m.DescribeGroupsRequest():
                self._describe(turn, request, body)
            case m.DeleteGroupsRequest():
                self._delete(turn, request, body)
            case _:
                raise AssertionError(f"{type(body).__name__} is none of a group coordinator's requests")

    def _join(self, turn: Turn, request: Request, body: m.JoinGroupRequest) -> None:
        check_join(turn, body)
        group = self.groups.get(body.group_id)
        if group is None:
            if body.member_id != NO_MEMBER_ID:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._created(body.group_id)
        assert isinstance(group, ClassicGroup)
        try:
            join(turn, group, request, body)
        finally:
            self._drop_if_hollow(group)

    def _leave(self, turn: Turn, request: Request, body: m.LeaveGroupRequest) -> None:
        if not body.group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(body.group_id)
        assert group is None or isinstance(group, ClassicGroup)
        leave(turn, group, request, body)
        if group is not None:
            self._drop_if_hollow(group)

    def _commit(self, turn: Turn, request: Request, body: m.OffsetCommitRequest) -> None:
        generation = body.generation_id_or_member_epoch
        group = self.groups.get(body.group_id)
        if group is not None:
            group.check_commit(
                body.member_id, body.group_instance_id, generation, version=request.version, transactional=False
            )
            self._keep_alive(turn, group, body.member_id)
        elif generation >= 0:
            is_told = request.version >= committing.GROUP_ID_NOT_FOUND_FROM
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.ILLEGAL_GENERATION)
        turn.reply(request.token, committing.commit(turn, body, request.version))

    def _keep_alive(self, turn: Turn, group: Group, member_id: str) -> None:
        """A commit is a sign of life in a classic group."""
        if isinstance(group, ClassicGroup) and group.state in (State.STABLE, State.PREPARING):
            member = group.members.get(member_id)
            if member is not None:
                expect_heartbeat(turn, group, member)

    def _commit_in_transaction(self, turn: Turn, request: Request, body: m.TxnOffsetCommitRequest) -> None:
        group = self.groups.get(body.group_id)
        if group is not None:
            group.check_commit(
                body.member_id,
                body.group_instance_id,
                body.generation_id,
                version=request.version,
                transactional=True,
            )
        elif body.generation_id >= 0:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        turn.reply(request.token, committing.commit_in_transaction(turn, self.offsets, body))

    def _fetch(self, turn: Turn, request: Request, body: m.OffsetFetchRequest) -> None:
        asked = fetching.asked_groups(body, request.version)
        answered = [self.fetch_offsets(each, request.version, body.require_stable) for each in asked]
        turn.reply(request.token, fetching.fetch_reply(answered, request.version))

    def _describe(self, turn: Turn, request: Request, body: m.DescribeGroupsRequest) -> None:
        described = [
            describing.describe_classic(each, self.groups.get(each), request.version) for each in body.groups
        ]
        turn.reply(request.token, m.DescribeGroupsResponse(groups=described))

    def _delete(self, turn: Turn, request: Request, body: m.DeleteGroupsRequest) -> None:
        results = []
        for group_id in dict.fromkeys(body.groups_names):
            code = ErrorCode.NONE
            try:
                group = self._known(group_id)
                group.check_delete()
                expiry.forget_group(turn, group, self.offsets)
            except Refused as refused:
                code = refused.code
            results.append(m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
        turn.reply(request.token, m.DeleteGroupsResponse(results=results))

    # Questions that need no step.

    def fetch_offsets(
        self, asked: m.OffsetFetchRequest.OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
        """How far one group has read, by all records that were replayed."""
        reader = fetching.OffsetReader(
            self.shared.image, self.offsets, version=version, require_stable=require_stable
        )
        return reader.read(self.groups.get(asked.group_id), asked)

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[m.ListGroupsResponse.ListedGroup]:
        return describing.list_groups(self.groups.values(), states, types)

    def history(self, group_id: str) -> list[Rebalance]:
        """Why the group rebalanced, oldest first; empty when it is not known."""
        group = self.groups.get(group_id)
        return list(group.history.rebalances) if isinstance(group, ClassicGroup) else []

    # Time, and news from elsewhere.

    def next_deadline_ms(self) -> int | None:
        return self.shared.timers.next_ms()

    def on_time(self, now_ms: int) -> Effects:
        """Handle what has come due, up to the first records: what is due next may depend on their replay."""
        turn = Turn(self.shared, now_ms)
        while not turn.effects.records and (key := self.shared.timers.pop_due(now_ms)):
            self._on_timer(turn, key)
        return turn.effects

    def _on_timer(self, turn: Turn, key: TimerKey) -> None:
        if key.kind == RETENTION:
            self._expire(turn)
            return
        group = self.groups.get(key.group_id)
        if not isinstance(group, ClassicGroup):
            return
        match key.kind:
            case "session":
                on_session_end(turn, group, key.member_id)
                self._drop_if_hollow(group)
            case "join":
                on_join_timeout(turn, group)
            case "sync":
                on_sync_timeout(turn, group)
            case _:
                raise AssertionError(key)

    def _expire(self, turn: Turn) -> None:
        for group in self.groups.values():
            if expiry.expire_offsets(turn, group, self.offsets) and group.is_empty:
                turn.record(*group.tombstones())
        turn.timers.set(TimerKey(RETENTION), turn.now_ms + turn.settings.offsets_retention_check_interval_ms)

    def on_topics_deleted(self, names: Iterable[str], now_ms: int) -> Effects:
        """Topics are gone from the image: their offsets go too."""
        turn = Turn(self.shared, now_ms)
        expiry.forget_topics(turn, self.offsets, frozenset(names))
        return turn.effects

    def on_loaded(self, now_ms: int) -> Effects:
        turn = Turn(self.shared, now_ms)
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self._wake(turn, group)
        turn.timers.set(TimerKey(RETENTION), now_ms + turn.settings.offsets_retention_check_interval_ms)
        return turn.effects

    def _wake(self, turn: Turn, group: ClassicGroup) -> None:
        for member in group.members.values():
            expect_heartbeat(turn, group, member)
        if len(group.members) > turn.settings.group_size_max:
            group.history.note(Cause(Why.OVER_CAPACITY, "", turn.now_ms))
            prepare(turn, group)

    def unload(self) -> Effects:
        """Another node takes over: whoever waits here is sent there."""
        turn = Turn(self.shared, 0)
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    answer_join(turn, member, refused_join(member.joining, ErrorCode.NOT_COORDINATOR, member.id))
                    answer_sync(turn, member, ErrorCode.NOT_COORDINATOR)
        return turn.effects

    # Records.

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        version = key_version(key)
        if version in OFFSET_KEY_VERSIONS:
            self._replay_offset(offset, decode_offset_key(key), value)
        elif version == GROUP_KEY_VERSION:
            self._replay_group(decode_group_key(key), value)
        # Kinds that a later program wrote are left to it.

    def replay_transactional(
        self, producer_id: int, epoch: int, offset: int, key: bytes, value: bytes | None
    ) -> None:
        """An offset that a transaction will commit. Nothing else is ever written in one."""
        if key_version(key) not in OFFSET_KEY_VERSIONS or value is None:
            return
        offset_key = decode_offset_key(key)
        committed = Committed.from_record(decode_offset_value(value), offset)
        self._created(offset_key.group_id)
        self.offsets.replay_pending(producer_id, epoch, offset_key, committed)

    def replay_marker(self, producer_id: int, epoch: int, committed: bool, offset: int) -> None:
        for group_id in {key.group_id: None for key in self.offsets.replay_marker(producer_id, epoch, committed)}:
            self._drop_if_hollow(self.groups[group_id])

    def _replay_offset(self, offset: int, key: OffsetKey, value: bytes | None) -> None:
        if value is not None:
            self._created(key.group_id)
            self.offsets.replay(key, Committed.from_record(decode_offset_value(value), offset))
            return
        self.offsets.replay(key, None)
        if key.group_id in self.groups:
            self._drop_if_hollow(self.groups[key.group_id])

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self.groups.pop(group_id, None)
            if self.offsets.has_any(group_id):
                self._created(group_id)
            return
        group = self._created(group_id)
        assert isinstance(group, ClassicGroup)
        group.replay(decode_group_value(value))

    # Groups.

    def _classic(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _known(self, group_id: str) -> Group:
        if group_id not in self.groups:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        return self.groups[group_id]

    def _created(self, group_id: str) -> Group:
        """The group, made if need be: one that only keeps its offsets here has no members and no protocol."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self.shared.settings.history_length)
        return group

    def _drop_if_hollow(self, group: Group) -> None:
        """A group that neither the log nor a client knows of costs memory for nothing."""
        if (
            isinstance(group, ClassicGroup)
            and group.is_empty
            and not group.is_written
            and not group.pending
            and not self.offsets.has_any(group.group_id)
        ):
            del self.groups[group.group_id]
