"""A live group changes its protocol: a classic one when a member of the new protocol joins, and back when the last
of those has gone.

Members of the classic protocol stay where they are. What they had been given is what they have in the group that
takes over, so nothing moves by the change alone. Turning back, the classic group rebalances once: only its own
members can share out again.
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
"""How many topics and partitions there may be in all that members of a classic group say and were given, for it to
become one of the new protocol: all of it is read and written while everybody waits."""


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
    """Refused when the group must stay classic. An empty one can always become what its next member wants."""
    if not classic.members:
        return
    if not settings.upgrades:
        reason = "group.consumer.migration.policy does not allow it"
    elif not classic.is_consumer_group:
        reason = "its members do not share out partitions of topics"
    elif len(classic.members) > settings.max_size:
        reason = f"it has more than {settings.max_size} members"
    else:
        return
    raise _stays(classic, reason)


def _stays(classic: ClassicGroupView, reason: str) -> Refused:
    return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"{classic.group_id} is a classic group and stays one: {reason}")


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
            raise _stays(classic, f"its members name more than {UPGRADE_ITEMS_MAX} topics and partitions")
    for member in members:
        draft.set_metadata(member.id, member.metadata)
    # The hash is left out: the join that is the cause of all this turns the epoch over and writes it.
    draft.set_epoch(classic.generation, 0)
    for member in members:
        draft.set_target(member.id, member.current.assigned)
    draft.set_assignment_epoch(classic.generation)
    for member in members:
        draft.set_current(member.id, member.current)


def _taken_over(classic: ClassicGroupView, member: ClassicMemberView, image: Image) -> tuple[Member, int]:
    """The member, and how many topics and partitions there are in what it says and was given."""
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
    given = assignment_of(member.assignment)
    items += sum(1 + len(each.partitions) for each in given.assigned_partitions)
    epoch = classic.generation
    current = CurrentAssignment(epoch, epoch, assigned=assigned_partitions(given, image))
    return Member(member.id, metadata, current), items


def answer_parked(classic: ClassicGroupView, effects: Effects) -> None:
    """Those who wait for a rebalance of the classic group hear that there is another one."""
    for member in classic.members.values():
        if member.joining is not None:
            effects.reply(
                member.joining.token,
                m.JoinGroupResponse(
                    error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id, protocol_name=""
                ),
            )
        if member.syncing is not None:
            effects.reply(
                member.syncing.token, m.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b"")
            )


def go_on_without(group: Surroundings, draft: Draft, now_ms: int) -> None:
    """Members are gone: turn the epoch, so that the next heartbeat makes a new target for those who are left.

    A group that becomes a classic one stays in the generation that its members know: in a later one they would count
    as fenced, and lose what they have read since their last commit.
    """
    if not downgrade_if_classic(group, draft, now_ms):
        turn_epoch(group, draft)


def downgrade_if_classic(group: Surroundings, draft: Draft, now_ms: int) -> bool:
    """When only members of the classic protocol are left, let the group be theirs again. Whether it came to that."""
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
        # Nobody has shared out what the others left behind: whoever loads this has one of them do it.
        leader=None,
        current_state_timestamp=now_ms,
        members=[_classic_member(member, protocol, image) for member in members],
    )


def _classic_member(member: Member, protocol: str, image: Image) -> m.GroupMetadataValue.MemberMetadata:
    metadata, classic = member.metadata, member.metadata.classic
    assert classic is not None
    subscription = dict(classic.supported)[protocol]
    # All that it may hold, not its target: until it has joined again nobody else is to have any of it.
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
    """An assignor that all classic members know, as the first likes best. Joining sees to it that there is one."""
    supported = [member.metadata.classic.supported for member in members if member.metadata.classic]
    common = set.intersection(*({name for name, _ in each} for each in supported))
    return next(name for name, _ in supported[0] if name in common)
