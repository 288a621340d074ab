"""The two phases of a rebalance: all members join, then all fetch the leader's assignment."""

from __future__ import annotations

from typing import Final

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.classic import CAN_REBALANCE, ClassicGroup, State
from millpond.coordinators.groups.group import GroupStep
from millpond.coordinators.groups.history import Cause, Why
from millpond.coordinators.groups.members import NO_MEMBER_ID, Member
from millpond.coordinators.groups.settings import ALONE_MS, CHOSEN_BY_GROUP, COMPANY_MS, GATHERING_MS
from millpond.coordinators.groups.timers import TimerKey
from millpond.coordinators.shard import Request
from millpond.wire.messages import JoinGroupResponse, SyncGroupResponse

SESSION = "session"
JOIN_PHASE = "join"
SYNC_PHASE = "sync"

ABSENT_WAIT_MS_MIN: Final = 1_000
"""The least time to wait again for absent static members, however short their timeout."""


def prepare_or_complete(step: GroupStep, group: ClassicGroup) -> None:
    """After a change: begin a rebalance, or check whether the current one has all members."""
    if group.state in CAN_REBALANCE:
        prepare(step, group)
    else:
        complete_if_all_joined(step, group)


def prepare(step: GroupStep, group: ClassicGroup) -> None:
    """Ask all members to rejoin. They learn of it with their next heartbeat."""
    for member in group.members.values():
        if member.syncing:
            answer_sync(step, member, ErrorCode.REBALANCE_IN_PROGRESS)
            expect_heartbeat(step, group, member)
    group.unsynced.clear()
    step.timers.cancel(TimerKey(SYNC_PHASE, group.group_id))
    is_initial = group.state is State.EMPTY
    delay_ms = _gathering_ms(step, group)
    group.began_alone_ms = None
    group.move_to(State.PREPARING, step.now_ms)
    if delay_ms > 0:
        # Members of a new group tend to start together: waiting for all of them saves a rebalance for each.
        group.initial_wait = delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0)
        group.has_newcomers = False
        _wait_for_joins(step, group, delay_ms)
    elif is_initial or group.all_joined:
        complete_join(step, group)
    else:
        _wait_for_joins(step, group, group.rebalance_timeout_ms)


def _gathering_ms(step: GroupStep, group: ClassicGroup) -> int:
    """How long to wait for further members.

    With the adaptive delay a single member waits only briefly, so that one consumer started by hand reads at once. If
    a second one joins soon after, or several were seen before, more are expected.
    """
    delay_ms = step.settings.initial_rebalance_delay_ms
    if delay_ms != CHOSEN_BY_GROUP:
        return delay_ms if group.state is State.EMPTY else 0
    if group.state is State.EMPTY:
        return GATHERING_MS if group.members_seen_max > 1 else ALONE_MS
    began_ms = group.began_alone_ms
    expects_more = len(group.members) > 1 and began_ms is not None and step.now_ms - began_ms < GATHERING_MS
    return COMPANY_MS if expects_more else 0


def _next_round_ms(step: GroupStep, group: ClassicGroup, lasted_ms: int) -> int:
    """How long the group continues to wait after a round of this length; 0 if no more members are expected.

    Kafka waits for another round of the same length whenever a member has joined in the last one.
    """
    if step.settings.initial_rebalance_delay_ms != CHOSEN_BY_GROUP:
        return lasted_ms if group.has_newcomers else 0
    # A member that was given an id joins with it next. Waiting for it once is enough: it may have died.
    expects_more = group.has_newcomers or (lasted_ms == ALONE_MS and bool(group.pending))
    return COMPANY_MS if expects_more else 0


def complete_if_all_joined(step: GroupStep, group: ClassicGroup) -> None:
    if group.state is State.PREPARING and group.initial_wait is None and group.all_joined:
        complete_join(step, group)


def on_join_timeout(step: GroupStep, group: ClassicGroup) -> None:
    if group.state is not State.PREPARING:
        return
    if group.initial_wait is None:
        complete_join(step, group)
        return
    lasted_ms, left_ms = group.initial_wait
    delay_ms = min(_next_round_ms(step, group, lasted_ms), left_ms)
    if delay_ms > 0:
        group.initial_wait = delay_ms, left_ms - delay_ms
        group.has_newcomers = False
        _wait_for_joins(step, group, delay_ms)
    elif left_ms > 0 and group.joining_count < len(group.members):
        # The member that began alone has not learned of the others yet.
        group.initial_wait = None
        _wait_for_joins(step, group, left_ms)
    else:
        if len(group.members) == 1:
            group.began_alone_ms = step.now_ms
        complete_join(step, group)


def complete_join(step: GroupStep, group: ClassicGroup) -> None:
    """Continue with the members that have joined. Absent static members keep their place for a while."""
    step.timers.cancel(TimerKey(JOIN_PHASE, group.group_id))
    for member in [each for each in group.members.values() if not each.joining and not each.is_static]:
        group.history.note(member.cause(Why.DID_NOT_JOIN, step.now_ms))
        drop_member(step, group, member)
    group.initial_wait = None
    if group.members and not group.elect_joined_leader():
        # Only absent static members are left: they return, or their sessions time out.
        _wait_for_joins(step, group, max(group.rebalance_timeout_ms, ABSENT_WAIT_MS_MIN))
        return
    if not group.members:
        step.record(group.emptied_record(step.wall_ms))
        group.history.generation_began(group.generation + 1, 0, None, None)
        group.history.finished(step.now_ms)
        return
    group.begin_generation(step.now_ms)
    group.history.generation_began(group.generation, len(group.members), group.leader, group.protocol)
    for member in group.members.values():
        answer_join(step, member, generation_reply(group, member))
        member.is_new = False
        expect_heartbeat(step, group, member)
    step.timers.set(TimerKey(SYNC_PHASE, group.group_id), step.now_ms + group.rebalance_timeout_ms)


def on_sync_timeout(step: GroupStep, group: ClassicGroup) -> None:
    """Members that joined and never requested their assignment are considered gone."""
    if group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
        return
    for member_id in list(group.unsynced):
        member = group.members[member_id]
        group.history.note(member.cause(Why.DID_NOT_SYNC, step.now_ms))
        drop_member(step, group, member)
    prepare(step, group)


def heard_sync(step: GroupStep, group: ClassicGroup, member: Member) -> None:
    """The member has requested its assignment."""
    group.unsynced.pop(member.id, None)
    if not group.unsynced:
        step.timers.cancel(TimerKey(SYNC_PHASE, group.group_id))


def drop_member(step: GroupStep, group: ClassicGroup, member: Member) -> None:
    """Remove a member and answer its pending requests. The caller decides what follows for the others."""
    answer_join(step, member, refused_join(member.joining, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID))
    answer_sync(step, member, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member.id)
    step.timers.cancel(TimerKey(SESSION, group.group_id, member.id))


def expect_heartbeat(step: GroupStep, group: ClassicGroup, member: Member, within_ms: int | None = None) -> None:
    """Restart the session timer."""
    timeout_ms = member.session_timeout_ms if within_ms is None else within_ms
    step.timers.set(TimerKey(SESSION, group.group_id, member.id), step.now_ms + timeout_ms)


def wake(step: GroupStep, group: ClassicGroup) -> None:
    """Start the session timers of a group that was loaded."""
    group.loaded_bytes = group.record_bytes
    for member in group.members.values():
        expect_heartbeat(step, group, member)
    if len(group.members) > step.settings.group_size_max:
        group.history.note(Cause(Why.OVER_CAPACITY, "", step.now_ms))
        prepare(step, group)
    elif group.members and group.leader is None:
        # It was a consumer group: one of its members has to compute an assignment.
        prepare(step, group)


def forget_timers(step: GroupStep, group: ClassicGroup) -> None:
    """The group is about to change its kind."""
    for kind in (JOIN_PHASE, SYNC_PHASE):
        step.timers.cancel(TimerKey(kind, group.group_id))
    for member_id in (*group.members, *group.pending):
        step.timers.cancel(TimerKey(SESSION, group.group_id, member_id))


def generation_reply(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """The generation as the member sees it; only the leader gets the member list."""
    leads = group.leader == member.id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol or "",
        leader=group.leader or "",
        member_id=member.id,
        members=[each.as_join_member(group.protocol) for each in group.members.values()] if leads else [],
    )


def refused_join(request: Request | None, code: ErrorCode, member_id: str) -> JoinGroupResponse:
    version = request.version if request else 0
    return JoinGroupResponse(
        error_code=code, member_id=member_id, protocol_name=None if version >= 7 else "", protocol_type=None
    )


def answer_join(step: GroupStep, member: Member, response: JoinGroupResponse) -> None:
    """Answer the member's pending join, if any."""
    if member.joining:
        step.reply(member.joining.reply_to, response)
        member.joining = None


def answer_sync(step: GroupStep, member: Member, code: ErrorCode) -> None:
    """Fail the member's pending sync, if any."""
    if member.syncing:
        step.reply(member.syncing.reply_to, SyncGroupResponse(error_code=code))
        member.syncing = None


def _wait_for_joins(step: GroupStep, group: ClassicGroup, within_ms: int) -> None:
    step.timers.set(TimerKey(JOIN_PHASE, group.group_id), step.now_ms + within_ms)
