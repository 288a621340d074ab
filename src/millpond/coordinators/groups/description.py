"""DescribeGroups and ListGroups: groups as tools see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.classic import ClassicGroup, State
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.group import Group
from millpond.coordinators.groups.members import Member
from millpond.coordinators.groups.share.group import ShareGroup
from millpond.wire.messages import (
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
    ShareGroupDescribeResponse,
)

GROUP_ID_NOT_FOUND_FROM = 6
"""Before, a missing group was described as dead, without an error."""


def describe_classic(group_id: str, group: Group | None, version: int) -> DescribeGroupsResponse.DescribedGroup:
    described = DescribeGroupsResponse.DescribedGroup
    if not isinstance(group, ClassicGroup):
        if version < GROUP_ID_NOT_FOUND_FROM:
            return described(group_id=group_id, group_state=State.DEAD.value)
        words = "is not a classic group" if group else "not found"
        return described(
            group_id=group_id,
            group_state=State.DEAD.value,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {words}.",
        )
    # Between two generations there is neither a protocol nor an assignment.
    protocol = group.protocol if group.state is State.STABLE else None
    return described(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_describe_member(member, protocol) for member in group.members.values()],
    )


def describe_consumer(group_id: str, group: Group | None) -> ConsumerGroupDescribeResponse.DescribedGroup:
    if isinstance(group, ConsumerGroup):
        return group.describe()
    words = "is not a consumer group" if group else "not found"
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id,
        group_state=State.DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} {words}.",
    )


def describe_share(group_id: str, group: Group | None) -> ShareGroupDescribeResponse.DescribedGroup:
    if isinstance(group, ShareGroup):
        return group.describe()
    words = "is not a share group" if group else "not found"
    return ShareGroupDescribeResponse.DescribedGroup(
        group_id=group_id,
        group_state=State.DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} {words}.",
    )


def _describe_member(member: Member, protocol: str | None) -> DescribeGroupsResponse.DescribedGroupMember:
    return DescribeGroupsResponse.DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata_for(protocol),
        member_assignment=b"" if protocol is None else member.assignment,
    )


def list_groups(
    groups: Iterable[Group], states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[ListGroupsResponse.ListedGroup]:
    """Groups in one of `states` and of one of `types`; an empty filter matches everything."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {type_name.lower() for type_name in types}
    return [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state_name,
            group_type=group.type_name,
        )
        for group in groups
        if (not wanted_states or group.state_name.lower() in wanted_states)
        and (not wanted_types or group.type_name.lower() in wanted_types)
    ]
