"""ConsumerGroupHeartbeat 0-1: joining, staying, reconciling and leaving are all one request.

A member joins with epoch 0, leaves with -1, and a static member that will return leaves with -2. Otherwise it sends
its epoch and whatever has changed since its last heartbeat; a full request repeats everything. The response carries
an assignment if it has changed or if the request was full.
"""

from __future__ import annotations

from dataclasses import replace

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.consumer.changes import (
    admit,
    ensure_target,
    look_again,
    reconcile,
    remove_members,
    subscribe,
)
from millpond.coordinators.groups.consumer.checks import check_epoch, check_request, check_room, known_member
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import (
    AWAY_EPOCH,
    LEAVING_EPOCH,
    NO_PARTITIONS,
    Member,
    MemberMetadata,
    MemberState,
    Partitions,
    by_topic,
    from_topics,
)
from millpond.coordinators.groups.consumer.migration import go_on_without
from millpond.coordinators.groups.consumer.surroundings import Sight, Surroundings
from millpond.coordinators.groups.history import Why
from millpond.coordinators.shard import Request
from millpond.wire import messages as m


def decide_heartbeat(
    group: Surroundings, draft: Draft, request: Request, now_ms: int
) -> m.ConsumerGroupHeartbeatResponse:
    """Write the heartbeat's effects to the draft; returns the response. Refused before any soft state has changed."""
    body = request.body
    assert isinstance(body, m.ConsumerGroupHeartbeatRequest)
    check_request(body, request.version, group.settings, group.patterns)
    if body.member_epoch == LEAVING_EPOCH:
        return _leave(group, draft, body, now_ms)
    if body.member_epoch == AWAY_EPOCH:
        return _go_away(group, draft, body)
    return _stay(group, draft, request, body, now_ms)


def refusal(refused: Refused) -> m.ConsumerGroupHeartbeatResponse:
    return m.ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message)


def _stay(
    group: Surroundings, draft: Draft, request: Request, body: m.ConsumerGroupHeartbeatRequest, now_ms: int
) -> m.ConsumerGroupHeartbeatResponse:
    owned = _owned(body)
    old = _sender(group, draft, body, owned)
    metadata = _metadata_from(old.metadata, request, body)
    admit(group, draft, old, metadata, request.sees)
    sees_anew = _sees_anew(group, draft, metadata.regex, request)
    subscribe(group, draft, old, metadata, now_ms)
    if sees_anew:
        look_again(group, draft, now_ms)
    ensure_target(group, draft, now_ms)
    reconcile(group, draft, old.id, owned, now_ms)
    group.watch.session(old.id, now_ms + group.settings.session_timeout_ms)
    if old.is_classic:
        group.watch.rejoined(old.id)
        group.watch.synced(old.id)
    member = draft.state.members[old.id]
    response = m.ConsumerGroupHeartbeatResponse(
        member_id=member.id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=group.settings.heartbeat_interval_ms,
    )
    if _is_full(body) or member.current.assigned != old.current.assigned:
        response.assignment = _as_assignment(member.current.assigned)
    return response


def _sees_anew(group: Surroundings, draft: Draft, pattern: str | None, request: Request) -> bool:
    """Update what the member may see, if its pattern is new here or permissions have changed."""
    if pattern is None or not group.settings.hides_topics:
        return False
    version = group.image.acls.version
    sight_before = group.sights.get(pattern)
    if sight_before is not None and sight_before.version == version:
        return False
    group.sights = {each: sight for each, sight in group.sights.items() if each in draft.state.patterns}
    group.sights[pattern] = Sight(request.sees, version)
    return True


def _sender(
    group: Surroundings, draft: Draft, body: m.ConsumerGroupHeartbeatRequest, owned: Partitions | None
) -> Member:
    """The member as it was before this heartbeat: known, new, or the successor of a static member."""
    if body.member_epoch > 0:
        member = known_member(draft.state, body.member_id, body.instance_id)
        check_epoch(member, body.member_epoch, owned)
        return member
    member_id = body.member_id or str(group.entropy.uuid())
    static = None if body.instance_id is None else draft.state.static_member(body.instance_id)
    if static is not None and static.id != member_id:
        return _successor(group, draft, static, member_id)
    registered = draft.state.members.get(member_id)
    if registered is None:
        check_room(draft.state, group.settings.max_size)
        return Member(member_id)
    # A member that rejoins has revoked everything, whatever its epoch was: it continues where it was.
    if registered.epoch == AWAY_EPOCH:
        registered = _awake(registered)
        draft.set_current(registered.id, registered.current)
    return registered


def _successor(group: Surroundings, draft: Draft, static: Member, member_id: str) -> Member:
    if not static.is_classic and static.epoch != AWAY_EPOCH:
        raise Refused(
            ErrorCode.UNRELEASED_INSTANCE_ID, f"{static.metadata.instance_id} is still in use by member {static.id}"
        )
    if member_id in draft.state.members:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{member_id} already belongs to another member")
    successor = replace(_awake(static), id=member_id)
    draft.replace_member(static, successor)
    return successor


def _awake(member: Member) -> Member:
    return replace(member, current=replace(member.current, epoch=0, previous_epoch=0))


def _metadata_from(old: MemberMetadata, request: Request, body: m.ConsumerGroupHeartbeatRequest) -> MemberMetadata:
    """The member's metadata; omitted fields are unchanged."""
    topics, regex = body.subscribed_topic_names, body.subscribed_topic_regex
    return MemberMetadata(
        instance_id=old.instance_id if body.instance_id is None else body.instance_id,
        rack_id=old.rack_id if body.rack_id is None else body.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=old.topics if topics is None else tuple(sorted(set(topics))),
        regex=old.regex if regex is None else regex or None,
        rebalance_timeout_ms=old.rebalance_timeout_ms
        if body.rebalance_timeout_ms == -1
        else body.rebalance_timeout_ms,
        assignor=old.assignor if body.server_assignor is None else body.server_assignor,
    )


def _leave(
    group: Surroundings, draft: Draft, body: m.ConsumerGroupHeartbeatRequest, now_ms: int
) -> m.ConsumerGroupHeartbeatResponse:
    member = known_member(draft.state, body.member_id, body.instance_id)
    remove_members(group, draft, [(member, Why.LEFT, "")], now_ms)
    go_on_without(group, draft, now_ms)
    return m.ConsumerGroupHeartbeatResponse(member_id=member.id, member_epoch=LEAVING_EPOCH)


def _go_away(
    group: Surroundings, draft: Draft, body: m.ConsumerGroupHeartbeatRequest
) -> m.ConsumerGroupHeartbeatResponse:
    """The session timer continues: a static member that does not return in time is removed like any other."""
    member = known_member(draft.state, body.member_id, body.instance_id)
    group.watch.revoked(member.id)
    away = replace(member.current, epoch=AWAY_EPOCH, state=MemberState.STABLE, revoking=NO_PARTITIONS)
    draft.set_current(member.id, away)
    return m.ConsumerGroupHeartbeatResponse(member_id=member.id, member_epoch=AWAY_EPOCH)


def _owned(body: m.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if body.topic_partitions is None:
        return None
    return from_topics((each.topic_id, each.partitions) for each in body.topic_partitions)


def _is_full(body: m.ConsumerGroupHeartbeatRequest) -> bool:
    says_topics = body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None
    return body.member_epoch == 0 or (
        body.rebalance_timeout_ms != -1 and says_topics and body.topic_partitions is not None
    )


def _as_assignment(partitions: Partitions) -> m.ConsumerGroupHeartbeatResponse.Assignment:
    kind = m.ConsumerGroupHeartbeatResponse
    return kind.Assignment(
        topic_partitions=[
            kind.TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic(partitions)
        ]
    )
