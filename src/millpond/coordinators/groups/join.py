"""JoinGroup: how a member enters a group, returns, or changes its subscription.

Versions: 0 has no rebalance timeout; from 4 on a new member first gets an id to join with; from 5 on a member may be
static (`group_instance_id`); 8 has a reason; 9 lets a returning static leader skip the assignment.
"""

from __future__ import annotations

from typing import Final

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.ids import topic_name_fault
from millpond.config.node import GROUP_MAX_SIZE
from millpond.config.quota import GROUP_MEMBER_MAX_BYTES
from millpond.coordinators.groups.classic import ClassicGroup, State, promise_bytes
from millpond.coordinators.groups.classic_size import check_classic_growth, said_bytes
from millpond.coordinators.groups.group import GroupStep
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.members import (
    NO_MEMBER_ID,
    Member,
    member_from_join,
    new_member_id,
    protocols_of,
    rebalance_timeout_of,
    without_body,
)
from millpond.coordinators.groups.memory import protocols_bytes
from millpond.coordinators.groups.rebalance import (
    SESSION,
    answer_join,
    answer_sync,
    complete_if_all_joined,
    drop_member,
    expect_heartbeat,
    generation_reply,
    prepare,
    prepare_or_complete,
    refused_join,
)
from millpond.coordinators.groups.timers import TimerKey
from millpond.coordinators.shard import Request
from millpond.wire.messages import JoinGroupRequest

MEMBER_ID_REQUIRED_FROM: Final = 4
SKIP_ASSIGNMENT_FROM: Final = 9


def check_join(step: GroupStep, body: JoinGroupRequest) -> None:
    """Checks that do not need the group."""
    settings = step.settings
    if not body.group_id:
        raise Refused(ErrorCode.INVALID_GROUP_ID)
    if not settings.session_timeout_min_ms <= body.session_timeout_ms <= settings.session_timeout_max_ms:
        raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
    if sum(len(each.name) + len(each.metadata) for each in body.protocols) > settings.member_bytes_max:
        raise LimitMet(
            ErrorCode.POLICY_VIOLATION,
            GROUP_MEMBER_MAX_BYTES.name,
            settings.member_bytes_max,
            f"the member's metadata exceeds {GROUP_MEMBER_MAX_BYTES.name}={settings.member_bytes_max}",
        )
    if body.group_instance_id is not None and topic_name_fault(body.group_instance_id):
        raise Refused(
            ErrorCode.INVALID_CONFIG, "group.instance.id must consist of the characters allowed in topic names"
        )


def join(step: GroupStep, group: ClassicGroup, request: Request, body: JoinGroupRequest) -> None:
    """Answer now, or keep the request pending until the generation begins. Refusals are raised."""
    member_id = body.member_id
    if not _has_room(step, group, member_id):
        if member_id in group.members:
            member = group.members[member_id]
            group.history.note(member.cause(Why.OVER_CAPACITY, step.now_ms))
            drop_member(step, group, member)
            complete_if_all_joined(step, group)
        raise LimitMet(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            GROUP_MAX_SIZE.name,
            step.settings.group_size_max,
            f"the group has all of its {GROUP_MAX_SIZE.name}={step.settings.group_size_max} members",
        )
    if not group.supports(body.protocol_type, protocols_of(body)):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if member_id == NO_MEMBER_ID:
        _join_unknown(step, group, request, body)
    elif member_id in group.pending:
        if body.group_instance_id is not None:
            # Ids are handed out only to dynamic members.
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        _add(step, group, request, body, member_id)
    else:
        _rejoin(step, group, request, body, group.member(member_id, body.group_instance_id))


def _has_room(step: GroupStep, group: ClassicGroup, member_id: str) -> bool:
    size_max = step.settings.group_size_max
    if group.state is State.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING:
        # Count only members that have rejoined: the others may never do so.
        is_waiting = member is not None and member.joining is not None
        return is_waiting or len(group.members) < size_max or group.joining_count < size_max
    return member is not None or len(group.members) < size_max


def _join_unknown(step: GroupStep, group: ClassicGroup, request: Request, body: JoinGroupRequest) -> None:
    member_id = new_member_id(request.client_id, body.group_instance_id, str(step.shared.entropy.uuid()))
    if body.group_instance_id is not None:
        old_member_id = group.static_members.get(body.group_instance_id)
        if old_member_id is None:
            _add(step, group, request, body, member_id)
        else:
            _replace_static(step, group, request, body, group.members[old_member_id], member_id)
    elif request.version < MEMBER_ID_REQUIRED_FROM:
        _add(step, group, request, body, member_id)
    else:
        # A client that times out and retries must not leave an unnamed member behind each time.
        if len(group.pending) >= step.settings.pending_members_max:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED, "too many members were given an id but have not joined yet"
            )
        step.shared.memory.check(promise_bytes(member_id))
        group.promise(member_id)
        step.timers.set(TimerKey(SESSION, group.group_id, member_id), step.now_ms + body.session_timeout_ms)
        step.reply(request.reply_to, refused_join(request, ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _add(step: GroupStep, group: ClassicGroup, request: Request, body: JoinGroupRequest, member_id: str) -> None:
    member = member_from_join(request, body, member_id)
    step.shared.memory.check(member.kept_bytes)
    _check_growth(step, group, member.record_bytes)
    member.joining = without_body(request)
    group.has_newcomers = True
    group.add(member, body.protocol_type)
    # Whether a client is still there is unknown while its join is pending, and without an id it cannot send
    # heartbeats.
    expect_heartbeat(step, group, member, step.settings.new_member_join_timeout_ms)
    group.history.note(member.cause(Why.JOINED, step.now_ms, body.reason))
    prepare_or_complete(step, group)


def _rejoin(step: GroupStep, group: ClassicGroup, request: Request, body: JoinGroupRequest, member: Member) -> None:
    protocols = protocols_of(body)
    is_unchanged = member.protocols == protocols
    follows = group.leader != member.id
    if is_unchanged and (group.state is State.COMPLETING or (group.state is State.STABLE and follows)):
        # It may have missed the first response.
        step.reply(request.reply_to, generation_reply(group, member))
        return
    step.shared.memory.check(protocols_bytes(protocols) - protocols_bytes(member.protocols))
    said_more_bytes = said_bytes(protocols) - said_bytes(member.protocols)
    _check_growth(step, group, said_more_bytes)
    if not is_unchanged:
        why = Why.SUBSCRIPTION_CHANGED
    elif group.state is State.STABLE:
        # What a leader has noticed (new partitions of a topic) need not show in its metadata.
        why = Why.LEADER_ASKED
    else:
        why = Why.REJOINED
    group.history.note(member.cause(why, step.now_ms, body.reason))
    _keep_pending(step, group, member, request, body)
    prepare_or_complete(step, group)


def _keep_pending(
    step: GroupStep, group: ClassicGroup, member: Member, request: Request, body: JoinGroupRequest
) -> None:
    """Update the member's metadata and keep the request pending. The sender of an older pending join has given up
    on it."""
    if member.joining:
        answer_join(step, member, refused_join(member.joining, ErrorCode.REBALANCE_IN_PROGRESS, member.id))
    member.joining = without_body(request)
    group.tell(member, protocols_of(body))
    member.rebalance_timeout_ms = rebalance_timeout_of(body)
    member.session_timeout_ms = body.session_timeout_ms


def _replace_static(
    step: GroupStep, group: ClassicGroup, request: Request, body: JoinGroupRequest, old: Member, member_id: str
) -> None:
    """An instance has restarted. It takes the place of its predecessor, including the assignment."""
    old_leader = group.leader
    member = member_from_join(request, body, member_id)
    step.shared.memory.check(member.kept_bytes - old.kept_bytes)
    growth_bytes = member.record_bytes + len(old.assignment) - old.record_bytes
    _check_growth(step, group, growth_bytes)
    _take_place(step, group, request, old, member)
    cause = member.cause(Why.RESTARTED, step.now_ms, body.reason)
    if group.state is State.STABLE and group.elected_protocol() == group.protocol:
        group.history.remember_calm(cause, group.generation, len(group.members))
        _answer_calmly(step, group, member, old_leader)
        return
    group.history.note(cause)
    if group.state is State.PREPARING:
        complete_if_all_joined(step, group)
    else:
        # The leader is computing an assignment for the old id: the new one would get nothing.
        prepare(step, group)


def _check_growth(step: GroupStep, group: ClassicGroup, more_bytes: int) -> None:
    check_classic_growth(group.record_bytes, more_bytes, max(step.settings.group_bytes_max, group.loaded_bytes))


def _take_place(step: GroupStep, group: ClassicGroup, request: Request, old: Member, member: Member) -> None:
    """The old id is fenced from here on, with all its pending requests."""
    answer_join(step, old, refused_join(old.joining, ErrorCode.FENCED_INSTANCE_ID, old.id))
    answer_sync(step, old, ErrorCode.FENCED_INSTANCE_ID)
    step.timers.cancel(TimerKey(SESSION, group.group_id, old.id))
    member.assignment = old.assignment
    member.is_new = False
    member.joining = without_body(request)
    group.replace(old, member)
    expect_heartbeat(step, group, member)


def _answer_calmly(step: GroupStep, group: ClassicGroup, member: Member, old_leader: str | None) -> None:
    """Without a rebalance: write the new id and let it fetch its old assignment."""
    assert member.joining is not None
    step.record(group.assigned_record({each.id: each.assignment for each in group.members.values()}, step.wall_ms))
    response = generation_reply(group, member)
    if member.joining.version >= SKIP_ASSIGNMENT_FROM:
        response.skip_assignment = group.leader == member.id
    else:
        # A leader that cannot be told to skip must not think it leads: it would assign again.
        response.leader = old_leader or ""
        response.members = []
    answer_join(step, member, response)
