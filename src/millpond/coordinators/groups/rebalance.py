"""The two phases of a rebalance: all members join, then all fetch the leader's assignment."""

from __future__ import annotations

from typing import Final

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.classic import CAN_REBALANCE, ClassicGroup, State
from millpond.coordinators.groups.group import Turn
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


def prepare_or_complete(turn: Turn, group: ClassicGroup) -> None:
    """After a change: begin a rebalance, or check whether the current one has all members."""
    if group.state in CAN_REBALANCE:
        prepare(turn, group)
    else:
        complete_if_all_joined(turn, group)


def prepare(turn: Turn, group: ClassicGroup) -> None:
    """Ask all members to rejoin. They learn of it with their next heartbeat."""
    for member in group.members.values():
        if member.syncing:
            answer_sync(turn, member, ErrorCode.REBALANCE_IN_PROGRESS)
            expect_heartbeat(turn, group, member)
    group.unsynced.clear()
    turn.timers.cancel(TimerKey(SYNC_PHASE, group.group_id))
    is_initial = group.state is State.EMPTY
    delay_ms = _gathering_ms(turn, group)
    group.began_alone_ms = None
    group.move_to(State.PREPARING, turn.now_ms)
    if delay_ms > 0:
        # Members of a new group tend to start together: waiting for all of them saves a rebalance for each.
        group.initial_wait = delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0)
        group.has_newcomers = False
        _wait_for_joins(turn, group, delay_ms)
    elif is_initial or group.all_joined:
        complete_join(turn, group)
    else:
        _wait_for_joins(turn, group, group.rebalance_timeout_ms)


def _gathering_ms(turn: Turn, group: ClassicGroup) -> int:
    """How long to wait for further members.

    With the adaptive delay a single member waits only briefly, so that one consumer started by hand reads at once. If
    a second one joins soon after, or several were seen before, more are expected.
    """
    delay_ms = turn.settings.initial_rebalance_delay_ms
    if delay_ms != CHOSEN_BY_GROUP:
        return delay_ms if group.state is State.EMPTY else 0
    if group.state is State.EMPTY:
        return GATHERING_MS if group.members_seen_max > 1 else ALONE_MS
    began_ms = group.began_alone_ms
    expects_more = len(group.members) > 1 and began_ms is not None and turn.now_ms - began_ms < GATHERING_MS
    return COMPANY_MS if expects_more else 0


def _next_round_ms(turn: Turn, group: ClassicGroup, lasted_ms: int) -> int:
    """How long the group continues to wait after a round of this length; 0 if no more members are expected.

    Kafka waits for another round of the same length whenever a member has joined in the last one.
    """
    if turn.settings.initial_rebalance_delay_ms != CHOSEN_BY_GROUP:
        return lasted_ms if group.has_newcomers else 0
    # A member that was given an id joins with it next. Waiting for it once is enough: it may have died.
    expects_more = group.has_newcomers or (lasted_ms == ALONE_MS and bool(group.pending))
    return COMPANY_MS if expects_more else 0


def complete_if_all_joined(turn: Turn, group: ClassicGroup) -> None:
    if group.state is State.PREPARING and group.initial_wait is None and group.all_joined:
        complete_join(turn, group)


def on_join_timeout(turn: Turn, group: ClassicGroup) -> None:
    if group.state is not State.PREPARING:
        return
    if group.initial_wait is None:
        complete_join(turn, group)
        return
    lasted_ms, left_ms = group.initial_wait
    delay_ms = min(_next_round_ms(turn, group, lasted_ms), left_ms)
    if delay_ms > 0:
        group.initial_wait = delay_ms, left_ms - delay_ms
        group.has_newcomers = False
        _wait_for_joins(turn, group, delay_ms)
    elif left_ms > 0 and group.joining_count < len(group.members):
        # The member that began alone has not learned of the others yet.
        group.initial_wait = None
        _wait_for_joins(turn, group, left_ms)
    else:
        if len(group.members) == 1:
            group.began_alone_ms = turn.now_ms
        complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Continue with the members that have joined. Absent static members keep their place for a while."""
    turn.timers.cancel(TimerKey(JOIN_PHASE, group.group_id))
    for member in [each for each in group.members.values() if not each.joining and not each.is_static]:
        group.history.note(member.cause(Why.DID_NOT_JOIN, turn.now_ms))
        drop_member(turn, group, member)
    group.initial_wait = None
    if group.members and not group.elect_joined_leader():
        # Only absent static members are left: they return, or their sessions time out.
        _wait_for_joins(turn, group, max(group.rebalance_timeout_ms, ABSENT_WAIT_MS_MIN))
        return
    if not group.members:
        turn.record(group.emptied_record(turn.wall_ms))
        group.history.generation_began(group.generation + 1, 0, None, None)
        group.history.finished(turn.now_ms)
        return
    group.begin_generation(turn.now_ms)
    group.history.generation_began(group.generation, len(group.members), group.leader, group.protocol)
    for member in group.members.values():
        answer_join(turn, member, generation_reply(group, member))
        member.is_new = False
        expect_heartbeat(turn, group, member)
    turn.timers.set(TimerKey(SYNC_PHASE, group.group_id), turn.now_ms + group.rebalance_timeout_ms)


def on_sync_timeout(turn: Turn, group: ClassicGroup) -> None:
    """Members that joined and never requested their assignment are considered gone."""
    if group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
        return
    for member_id in list(group.unsynced):
        member = group.members[member_id]
        group.history.note(member.cause(Why.DID_NOT_SYNC, turn.now_ms))
        drop_member(turn, group, member)
    prepare(turn, group)


def heard_sync(turn: Turn, group: ClassicGroup, member: Member) -> None:
    """The member has requested its assignment."""
    group.unsynced.pop(member.id, None)
    if not group.unsynced:
        turn.timers.cancel(TimerKey(SYNC_PHASE, group.group_id))


def drop_member(turn: Turn, group: ClassicGroup, member: Member) -> None:
    """Remove a member and answer its pending requests. The caller decides what follows for the others."""
    answer_join(turn, member, refused_join(member.joining, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID))
    answer_sync(turn, member, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member.id)
    turn.timers.cancel(TimerKey(SESSION, group.group_id, member.id))


def expect_heartbeat(turn: Turn, group: ClassicGroup, member: Member, within_ms: int | None = None) -> None:
    """Restart the session timer."""
    timeout_ms = member.session_timeout_ms if within_ms is None else within_ms
    turn.timers.set(TimerKey(SESSION, group.group_id, member.id), turn.now_ms + timeout_ms)


def wake(turn: Turn, group: ClassicGroup) -> None:
    """Start the session timers of a group that was loaded."""
    group.loaded_bytes = group.record_bytes
    for member in group.members.values():
        expect_heartbeat(turn, group, member)
    if len(group.members) > turn.settings.group_size_max:
        group.history.note(Cause(Why.OVER_CAPACITY, "", turn.now_ms))
        prepare(turn, group)
    elif group.members and group.leader is None:
        # It was a consumer group: one of its members has to compute an assignment.
        prepare(turn, group)


def forget_timers(turn: Turn, group: ClassicGroup) -> None:
    """The group is about to change its kind."""
    for kind in (JOIN_PHASE, SYNC_PHASE):
        turn.timers.cancel(TimerKey(kind, group.group_id))
    for member_id in (*group.members, *group.pending):
        turn.timers.cancel(TimerKey(SESSION, group.group_id, member_id))


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


def answer_join(turn: Turn, member: Member, response: JoinGroupResponse) -> None:
    """Answer the member's pending join, if any."""
    if member.joining:
        turn.reply(member.joining.token, response)
        member.joining = None


def answer_sync(turn: Turn, member: Member, code: ErrorCode) -> None:
    """Fail the member's pending sync, if any."""
    if member.syncing:
        turn.reply(member.syncing.token, SyncGroupResponse(error_code=code))
        member.syncing = None


def _wait_for_joins(turn: Turn, group: ClassicGroup, within_ms: int) -> None:
    turn.timers.set(TimerKey(JOIN_PHASE, group.group_id), turn.now_ms + within_ms)
