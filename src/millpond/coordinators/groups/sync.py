"""SyncGroup and Heartbeat: fetching the assignment, and staying in the generation."""

from __future__ import annotations

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.config.quota import GROUP_MEMBER_MAX_BYTES
from millpond.coordinators.groups.classic import ClassicGroup, State, assignments_bytes
from millpond.coordinators.groups.classic_size import check_classic_growth
from millpond.coordinators.groups.group import GroupStep
from millpond.coordinators.groups.members import Member, without_body
from millpond.coordinators.groups.rebalance import answer_sync, expect_heartbeat, heard_sync
from millpond.coordinators.shard import Request
from millpond.wire.messages import HeartbeatRequest, HeartbeatResponse, SyncGroupRequest, SyncGroupResponse


def sync(step: GroupStep, group: ClassicGroup, request: Request, body: SyncGroupRequest) -> None:
    """Answer now, or keep the request pending until the leader has assigned. Refusals are raised."""
    member = group.member_of_generation(body.member_id, body.group_instance_id, body.generation_id)
    for claimed, actual in ((body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol)):
        if claimed is not None and actual is not None and claimed != actual:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is State.PREPARING:
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
    shares_out = group.state is State.COMPLETING and group.leader == member.id
    assignments = _checked_assignments(step, group, body) if shares_out else {}
    heard_sync(step, group, member)
    if group.state is State.STABLE:
        step.reply(request.reply_to, _assignment_reply(group, member.assignment))
        expect_heartbeat(step, group, member)
    else:
        answer_sync(step, member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.syncing = without_body(request)
        if shares_out:
            _share_out(step, group, assignments)
    if not group.unsynced:
        group.history.finished(step.now_ms)


def _checked_assignments(step: GroupStep, group: ClassicGroup, body: SyncGroupRequest) -> dict[str, bytes]:
    """The leader's assignments by member; Refused if they are too large to keep."""
    by_member = {each.member_id: each.assignment for each in body.assignments}
    assignments = {member_id: by_member.get(member_id, b"") for member_id in group.members}
    bytes_max = step.settings.member_bytes_max
    if any(len(each) > bytes_max for each in assignments.values()):
        limit = GROUP_MEMBER_MAX_BYTES.name
        message = f"the assignment of one member exceeds {limit}={bytes_max}"
        raise LimitMet(ErrorCode.POLICY_VIOLATION, limit, bytes_max, message)
    step.shared.memory.check(assignments_bytes(assignments) - assignments_bytes(group.assignments))
    before = (member.assignment for member in group.members.values())
    growth_bytes = sum(map(len, assignments.values())) - sum(map(len, before))
    # A group loaded from the log that is too large may continue: without an assignment no member would read.
    if group.loaded_bytes <= step.settings.group_bytes_max:
        check_classic_growth(group.record_bytes, growth_bytes, step.settings.group_bytes_max)
    return assignments


def _share_out(step: GroupStep, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    """Write the leader's assignment, which makes the group stable, and answer all pending syncs."""
    group.history.assigned(group.assignments, assignments, step.now_ms)
    step.record(group.assigned_record(assignments, step.wall_ms))
    for member in group.members.values():
        if member.syncing:
            step.reply(member.syncing.reply_to, _assignment_reply(group, assignments[member.id]))
            member.syncing = None
            # Its session may have timed out unnoticed while it was waiting.
            expect_heartbeat(step, group, member)


def _assignment_reply(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)


def heartbeat(step: GroupStep, group: ClassicGroup, request: Request, body: HeartbeatRequest) -> None:
    member: Member = group.member_of_generation(body.member_id, body.group_instance_id, body.generation_id)
    expect_heartbeat(step, group, member)
    is_over = group.state is State.PREPARING
    code = ErrorCode.REBALANCE_IN_PROGRESS if is_over else ErrorCode.NONE
    step.reply(request.reply_to, HeartbeatResponse(error_code=code))
