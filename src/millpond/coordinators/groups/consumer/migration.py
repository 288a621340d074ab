"""Changing a live group's protocol: to the new one when its first member joins, and back when its last member leaves.

Classic members stay. Their assignment carries over, so the change alone moves nothing. On the way back the classic
group rebalances once: only its own members can compute an assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.coordinators.groups.consumer.changes import turn_epoch
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.embedded import (
    assigned_partitions,
    assignment_bytes,
    assignment_of,
    subscription_of,
)
from millpond.coordinators.groups.consumer.members import (
    ClassicProtocols,
    CurrentAssignment,
    Member,
    MemberMetadata,
    Partitions,
)
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.surroundings import Surroundings
from millpond.coordinators.groups.group import CONSUMER_PROTOCOL
from millpond.coordinators.groups.records import group_record
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.metadata.image import Image
from millpond.wire import messages as m

UPGRADE_ITEMS_MAX: Final = 200_000
"""The most topics and partitions in the metadata and assignments of a classic group that is upgraded: reading and
writing all of it blocks the event loop."""


class ClassicMemberView(Protocol):
    """What is needed of a classic group's member to take it over."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes
    joining: Request | None
    syncing: Request | None

    def metadata_for(self, protocol: str | None) -> bytes: ...


class ClassicGroupView(Protocol):
    """What is needed of a classic group to take it over."""

    group_id: str
    generation: int
    protocol: str | None
    kept_bytes: int

    @property
    def is_consumer_group(self) -> bool: ...

    @property
    def members(self) -> Mapping[str, ClassicMemberView]: ...

    def tombstones(self) -> list[CoordinatorRecord]: ...


def check_upgrade(classic: ClassicGroupView, settings: ConsumerGroupSettings) -> None:
    """Refused if the group must stay classic. An empty one can always change."""
    if not classic.members:
        return
    if not settings.upgrades:
        reason = "group.consumer.migration.policy forbids it"
    elif not classic.is_consumer_group:
        reason = "its protocol type is not 'consumer'"
    elif len(classic.members) > settings.max_size:
        reason = f"it has more than {settings.max_size} members"
    else:
        return
    raise _stays(classic, reason)


def _stays(classic: ClassicGroupView, reason: str) -> Refused:
    return Refused(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"{classic.group_id} is a classic group and cannot become a consumer group: {reason}",
    )


def write_upgrade(draft: Draft, classic: ClassicGroupView, image: Image) -> None:
    """End the classic group's records and begin the consumer group's, with the same members and assignments."""
    for record in classic.tombstones():
        draft.write_other(record)
    if not classic.members:
        return
    members = []
    items = 0
    for each in classic.members.values():
        try:
            member, said_items = _taken_over(classic, each, image)
        except MalformedMessage as fault:
            raise _stays(classic, str(fault)) from None
        members.append(member)
        items += said_items
        if items > UPGRADE_ITEMS_MAX:
            raise _stays(classic, f"its members have more than {UPGRADE_ITEMS_MAX} topics and partitions")
    for member in members:
        draft.set_metadata(member.id, member.metadata)
    # The hash is left out: the join that caused this bumps the epoch and writes it.
    draft.set_epoch(classic.generation, 0)
    for member in members:
        draft.set_target(member.id, member.current.assigned)
    draft.set_assignment_epoch(classic.generation)
    for member in members:
        draft.set_current(member.id, member.current)


def _taken_over(classic: ClassicGroupView, member: ClassicMemberView, image: Image) -> tuple[Member, int]:
    """The member, and the number of topics and partitions in its metadata and assignment."""
    preferred = member.metadata_for(classic.protocol) or member.protocols[0][1]
    subscription = subscription_of(preferred)
    items = len(subscription.topics) + sum(1 + len(each.partitions) for each in subscription.owned_partitions)
    metadata = MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
    )
    assignment = assignment_of(member.assignment)
    items += sum(1 + len(each.partitions) for each in assignment.assigned_partitions)
    epoch = classic.generation
    current = CurrentAssignment(epoch, epoch, assigned=assigned_partitions(assignment, image))
    return Member(member.id, metadata, current), items


def answer_pending(classic: ClassicGroupView, effects: Effects) -> None:
    """Answer requests pending on the classic group's rebalance, so that their members rejoin."""
    for member in classic.members.values():
        if member.joining is not None:
            effects.reply(
                member.joining.reply_to,
                m.JoinGroupResponse(
                    error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id, protocol_name=""
                ),
            )
        if member.syncing is not None:
            effects.reply(
                member.syncing.reply_to,
                m.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""),
            )


def go_on_without(group: Surroundings, draft: Draft, now_ms: int) -> None:
    """Bump the epoch after members left, so that the next heartbeat computes a new target.

    A group that becomes classic stays in the generation that its members know: in a later one they would be fenced,
    and lose what they have read since their last commit.
    """
    if not downgrade_if_classic(group, draft, now_ms):
        turn_epoch(group, draft)


def downgrade_if_classic(group: Surroundings, draft: Draft, now_ms: int) -> bool:
    """Turn the group back into a classic one if only classic members are left; whether it did."""
    members = list(draft.state.members.values())
    if not members or not all(member.is_classic for member in members):
        return False
    if not group.settings.downgrades or len(members) > group.settings.classic_max_size:
        return False
    value = _classic_value(draft, members, group.image, now_ms)
    draft.remove_group()
    draft.write_other(group_record(group.group_id, value))
    return True


def _classic_value(draft: Draft, members: Sequence[Member], image: Image, now_ms: int) -> m.GroupMetadataValue:
    protocol = common_protocol(members)
    return m.GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL,
        generation=draft.state.epoch,
        protocol=protocol,
        # No leader: on loading this record, the coordinator starts a rebalance in which a member assigns.
        leader=None,
        current_state_timestamp=now_ms,
        members=[_classic_member(member, protocol, image) for member in members],
    )


def _classic_member(member: Member, protocol: str, image: Image) -> m.GroupMetadataValue.MemberMetadata:
    metadata, classic = member.metadata, member.metadata.classic
    assert classic is not None
    subscription = dict(classic.supported)[protocol]
    # Everything it may hold, not its target: until it has rejoined no other member may get any of it.
    held: Partitions = member.current.assigned | member.current.revoking
    return m.GroupMetadataValue.MemberMetadata(
        member_id=member.id,
        group_instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout=metadata.rebalance_timeout_ms,
        session_timeout=classic.session_timeout_ms,
        subscription=subscription,
        assignment=assignment_bytes(held, subscription, image),
    )


def common_protocol(members: Sequence[Member]) -> str:
    """The first member's preferred assignor among those that all classic members support. Joins ensure that there
    is one."""
    supported = [member.metadata.classic.supported for member in members if member.metadata.classic]
    common = set.intersection(*({name for name, _ in each} for each in supported))
    return next(name for name, _ in supported[0] if name in common)
