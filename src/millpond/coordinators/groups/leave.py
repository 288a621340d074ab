"""LeaveGroup and session timeouts: members leave by themselves, through an administrator, or by timing out."""

from __future__ import annotations

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.classic import ClassicGroup
from millpond.coordinators.groups.group import GroupStep
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.members import NO_MEMBER_ID, Member
from millpond.coordinators.groups.rebalance import (
    SESSION,
    complete_if_all_joined,
    drop_member,
    expect_heartbeat,
    prepare_or_complete,
)
from millpond.coordinators.groups.timers import TimerKey
from millpond.coordinators.shard import Request
from millpond.wire.messages import LeaveGroupRequest, LeaveGroupResponse

SEVERAL_FROM = 3
"""From this version on one request names several members, each with its own result."""


def leave(step: GroupStep, group: ClassicGroup | None, request: Request, body: LeaveGroupRequest) -> None:
    """Remove members. A missing group has none."""
    if request.version < SEVERAL_FROM:
        leaving = [LeaveGroupRequest.MemberIdentity(member_id=body.member_id)]
    else:
        leaving = body.members
    if group is None:
        codes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
    else:
        members_before = len(group.members)
        codes = [_let_go(step, group, each) for each in leaving]
        if len(group.members) < members_before:
            prepare_or_complete(step, group)
        else:
            complete_if_all_joined(step, group)
    step.reply(request.reply_to, _reply(request, leaving, codes))


def _let_go(step: GroupStep, group: ClassicGroup, leaving: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
    if leaving.member_id in group.pending:
        forget_pending(step, group, leaving.member_id)
        return ErrorCode.NONE
    try:
        member = _leaving_member(group, leaving)
    except Refused as refused:
        return refused.code
    group.history.note(member.cause(Why.LEFT, step.now_ms, leaving.reason))
    drop_member(step, group, member)
    return ErrorCode.NONE


def _leaving_member(group: ClassicGroup, leaving: LeaveGroupRequest.MemberIdentity) -> Member:
    if leaving.member_id == NO_MEMBER_ID and leaving.group_instance_id is not None:
        # An administrator removes an instance without knowing its member id.
        return group.member(group.static_members.get(leaving.group_instance_id, ""), None)
    return group.member(leaving.member_id, leaving.group_instance_id)


def _reply(
    request: Request, leaving: list[LeaveGroupRequest.MemberIdentity], codes: list[ErrorCode]
) -> LeaveGroupResponse:
    if request.version < SEVERAL_FROM:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code
            )
            for each, code in zip(leaving, codes, strict=True)
        ]
    )


def forget_pending(step: GroupStep, group: ClassicGroup, member_id: str) -> None:
    group.forget_promise(member_id)
    step.timers.cancel(TimerKey(SESSION, group.group_id, member_id))


def on_session_end(step: GroupStep, group: ClassicGroup, member_id: str) -> None:
    """A member's session has timed out."""
    if member_id in group.pending:
        forget_pending(step, group, member_id)
        complete_if_all_joined(step, group)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    if member.is_waiting and not member.is_new:
        # A member with a pending request cannot send heartbeats; only a new one may have gone away.
        expect_heartbeat(step, group, member)
        return
    group.history.note(member.cause(Why.TIMED_OUT, step.now_ms))
    drop_member(step, group, member)
    prepare_or_complete(step, group)
