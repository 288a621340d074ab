"""Members of the classic protocol inside a group of the new one.

The coordinator assigns, so no member waits for others: a join is answered at once, without a leader, and a sync
returns the member's assignment. A heartbeat asks it to rejoin whenever it has something to do: a new epoch, a
partition to revoke, or one that became free for it. Its generation is its member epoch.
"""

from __future__ import annotations

from dataclasses import replace

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.coordinators.groups.consumer.changes import admit, ensure_target, reconcile, remove_members, subscribe
from millpond.coordinators.groups.consumer.checks import check_classic_bytes, check_room, known_member
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.embedded import assignment_bytes, owned_partitions, subscription_of
from millpond.coordinators.groups.consumer.members import (
    ClassicProtocols,
    Member,
    MemberMetadata,
    MemberState,
    Partitions,
)
from millpond.coordinators.groups.consumer.migration import downgrade_if_classic, go_on_without
from millpond.coordinators.groups.consumer.state import GroupState
from millpond.coordinators.groups.consumer.surroundings import Surroundings
from millpond.coordinators.groups.group import CONSUMER_PROTOCOL
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.members import new_member_id, protocols_of, rebalance_timeout_of
from millpond.coordinators.shard import Request
from millpond.wire import messages as m

ID_REQUIRED_VERSION = 4
"""From this version on a dynamic member first gets an id and then joins with it."""


def decide_join(group: Surroundings, draft: Draft, request: Request, now_ms: int) -> m.JoinGroupResponse:
    body = request.body
    assert isinstance(body, m.JoinGroupRequest)
    protocols = protocols_of(body)
    _check_protocols(draft.state, body)
    subscription = _subscription(protocols)
    owned = owned_partitions(subscription, group.image, request.sees)
    old = _joining(group, draft, request, body, owned)
    if old is None:
        fresh = new_member_id(request.client_id, None, str(group.entropy.uuid()))
        return m.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=fresh, protocol_name="")
    metadata = MemberMetadata(
        instance_id=body.group_instance_id or old.metadata.instance_id,
        rack_id=subscription.rack_id or old.metadata.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        # Topics that it may not see do not exist for it: a classic member need not name existing ones.
        topics=tuple(sorted(filter(request.sees, set(subscription.topics)))),
        rebalance_timeout_ms=rebalance_timeout_of(body),
        classic=ClassicProtocols(body.session_timeout_ms, protocols),
    )
    check_classic_bytes(draft.state, old, metadata, group.settings.classic_max_bytes)
    admit(group, draft, old, metadata, request.sees)
    subscribe(group, draft, old, metadata, now_ms)
    ensure_target(group, draft, now_ms)
    reconcile(group, draft, old.id, owned, now_ms)
    member = draft.state.members[old.id]
    group.watch.rejoined(member.id)
    group.watch.revoked(member.id)
    group.watch.session(member.id, now_ms + body.session_timeout_ms)
    group.watch.sync(member.id, now_ms + metadata.rebalance_timeout_ms)
    # It may have taken the place of the last member of the new protocol.
    downgrade_if_classic(group, draft, now_ms)
    return m.JoinGroupResponse(
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=protocols[0][0],
        member_id=member.id,
    )


def _joining(
    group: Surroundings, draft: Draft, request: Request, body: m.JoinGroupRequest, owned: Partitions
) -> Member | None:
    """The member before this join; None when it has to ask again with an id."""
    state = draft.state
    if body.group_instance_id is not None:
        static = state.static_member(body.group_instance_id)
        if static is not None and body.member_id and static.id != body.member_id:
            raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        if static is not None and not body.member_id:
            fresh = new_member_id(request.client_id, body.group_instance_id, str(group.entropy.uuid()))
            successor = replace(static, id=fresh, current=replace(static.current, epoch=0, previous_epoch=0))
            draft.replace_member(static, successor)
            return successor
        if static is None and body.member_id and body.member_id not in state.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    if body.member_id in state.members:
        return state.members[body.member_id]
    if body.member_id and owned:
        # It was a member, has been removed and does not know it: others may read what it thinks is its own.
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    check_room(state, group.settings.max_size)
    if body.member_id:
        return Member(body.member_id)
    if request.version >= ID_REQUIRED_VERSION and body.group_instance_id is None:
        return None
    return Member(new_member_id(request.client_id, body.group_instance_id, str(group.entropy.uuid())))


def _check_protocols(state: GroupState, body: m.JoinGroupRequest) -> None:
    """All classic members must share a protocol: should they be left alone, they will use it."""
    itself = state.static_ids.get(body.group_instance_id) if body.group_instance_id is not None else None
    others = [
        each.metadata.classic.names
        for each in state.members.values()
        if each.metadata.classic and each.id != body.member_id and each.id != itself
    ]
    names = {each.name for each in body.protocols}
    if body.protocol_type != CONSUMER_PROTOCOL or not names.intersection(*others):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _subscription(protocols: tuple[tuple[str, bytes], ...]) -> m.ConsumerProtocolSubscription:
    try:
        return subscription_of(protocols[0][1])
    except MalformedMessage:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the subscription cannot be decoded") from None


def decide_sync(group: Surroundings, draft: Draft, request: Request, now_ms: int) -> m.SyncGroupResponse:
    body = request.body
    assert isinstance(body, m.SyncGroupRequest)
    member, classic = _classic_member(draft.state, body.member_id, body.group_instance_id, body.generation_id)
    protocol, subscription = classic.supported[0]
    if body.protocol_type not in (None, CONSUMER_PROTOCOL) or body.protocol_name not in (None, protocol):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # A member that still has to revoke partitions has already joined: it must learn which ones before it rejoins.
    if draft.state.epoch > member.epoch and member.current.state is not MemberState.UNREVOKED:
        group.watch.rejoin(member.id, now_ms + member.metadata.rebalance_timeout_ms)
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
    group.watch.synced(member.id)
    group.watch.session(member.id, now_ms + classic.session_timeout_ms)
    return m.SyncGroupResponse(
        protocol_type=body.protocol_type,
        protocol_name=body.protocol_name,
        assignment=assignment_bytes(member.current.assigned, subscription, group.image, request.sees),
    )


def decide_classic_heartbeat(group: Surroundings, draft: Draft, request: Request, now_ms: int) -> m.HeartbeatResponse:
    body = request.body
    assert isinstance(body, m.HeartbeatRequest)
    state = draft.state
    member, classic = _classic_member(state, body.member_id, body.group_instance_id, body.generation_id)
    group.watch.session(member.id, now_ms + classic.session_timeout_ms)
    if _has_something_to_do(state, member):
        group.watch.rejoin(member.id, now_ms + member.metadata.rebalance_timeout_ms)
        return m.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return m.HeartbeatResponse()


def _has_something_to_do(state: GroupState, member: Member) -> bool:
    if member.epoch < state.epoch or member.current.state is MemberState.UNREVOKED:
        return True
    if member.current.state is not MemberState.UNRELEASED:
        return False
    missing = state.target(member.id) - member.current.assigned
    return all(each not in state.owners for each in missing)


def decide_leave(group: Surroundings, draft: Draft, request: Request, now_ms: int) -> m.LeaveGroupResponse:
    body = request.body
    assert isinstance(body, m.LeaveGroupRequest)
    identity = m.LeaveGroupRequest.MemberIdentity
    leaving = body.members if request.version >= 3 else [identity(member_id=body.member_id)]
    gone: dict[str, tuple[Member, Why, str]] = {}
    answers = []
    for each in leaving:
        code = ErrorCode.NONE
        try:
            member = _leaving(draft.state, each)
            gone[member.id] = member, Why.LEFT, each.reason or ""
        except Refused as refused:
            code = refused.code
        answers.append(
            m.LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code
            )
        )
    if gone:
        remove_members(group, draft, gone.values(), now_ms)
        go_on_without(group, draft, now_ms)
    if request.version < 3:
        return m.LeaveGroupResponse(error_code=answers[0].error_code)
    return m.LeaveGroupResponse(members=answers)


def _leaving(state: GroupState, identity: m.LeaveGroupRequest.MemberIdentity) -> Member:
    instance_id, member_id = identity.group_instance_id, identity.member_id
    if instance_id is not None and not member_id:
        # An administrator names a static member by its instance alone.
        member_id = state.static_ids.get(instance_id, "")
    member = known_member(state, member_id, instance_id)
    if not member.is_classic:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _classic_member(
    state: GroupState, member_id: str, instance_id: str | None, generation: int
) -> tuple[Member, ClassicProtocols]:
    member = known_member(state, member_id, instance_id)
    if member.metadata.classic is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
    if generation != member.epoch:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    return member, member.metadata.classic
