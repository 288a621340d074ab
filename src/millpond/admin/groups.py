"""Consumer groups and share groups: lists, describes and deletes them, and commits offsets for consumer groups."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.errors import Refused, unknown
from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered, Unsupported, check
from millpond.wire import messages as m

STABLE: Final = "stable"
REBALANCING: Final = "rebalancing"
EMPTY: Final = "empty"
DEAD: Final = "dead"

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
"""Its members share the records of a partition; it commits no offsets."""

_STATES: Final = {
    "Stable": STABLE,
    "Empty": EMPTY,
    "Dead": DEAD,
    "PreparingRebalance": REBALANCING,
    "CompletingRebalance": REBALANCING,
    "Assigning": REBALANCING,
    "Reconciling": REBALANCING,
}
"""Display names of the protocol's states."""

_CONSUMERS: Final = "consumer"
"""The protocol type of consumer groups; Connect and others have their own."""

_VERSION: Final = struct.Struct(">h")

_JOINED: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS}
)

NAMED_MAX: Final = 3
"""At most this many members are named; the rest is counted."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        return f"{self.instance or self.client or self.id} on {self.host}"


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    state: str
    type: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...] = ()

    @property
    def owners(self) -> dict[TopicPartition, Member]:
        return {partition: member for member in self.members for partition in member.partitions}


def list_groups(cluster: Cluster, *, with_share: bool = False) -> list[GroupListing]:
    """Every consumer group, by name. Every broker must answer: a partial list would look complete.

    `with_share` adds share groups.
    """
    wanted = (_CONSUMERS, "", SHARE) if with_share else (_CONSUMERS, "")

    def attempt() -> list[GroupListing]:
        listed: dict[str, GroupListing] = {}
        for connection in cluster.brokers():
            response = connection.ask(m.ListGroupsRequest(), m.ListGroupsResponse)
            check(response.error_code, "A broker cannot list its groups")
            for each in response.groups:
                if each.protocol_type in wanted:
                    kind = each.group_type.lower() or CLASSIC
                    listed[each.group_id] = GroupListing(each.group_id, _state(each.group_state), kind)
        return sorted(listed.values(), key=lambda each: each.group)

    return cluster.retrying("list the groups", attempt)


def find_groups(cluster: Cluster, names: Sequence[str]) -> list[Group]:
    """The groups of these names; refuses an unknown one and suggests the nearest name."""
    groups = [describe_group(cluster, name) for name in dict.fromkeys(names)]
    for group in groups:
        # A group that only has offsets is empty, not dead.
        if group.state == DEAD:
            others = [each.group for each in list_groups(cluster, with_share=True) if each.group != group.id]
            raise unknown("group", group.id, others, "list them with `millpond group list`")
    return groups


def describe_group(cluster: Cluster, name: str) -> Group:
    """A group that does not exist is dead."""

    def attempt() -> Group:
        try:
            group = _describe_consumer(cluster, name)
        except Unsupported:
            group = None
        group = group or _describe_classic(cluster, name)
        return (_describe_share(cluster, name) or group) if group.state == DEAD else group

    return cluster.retrying(f"describe group {name}", attempt)


def describe_share_group(cluster: Cluster, name: str) -> Group | None:
    """None if there is no share group of this name."""
    return cluster.retrying(f"describe share group {name}", lambda: _describe_share(cluster, name))


def commit_offsets(cluster: Cluster, name: str, new_offsets: Mapping[TopicPartition, int]) -> None:
    """Commits offsets for a group without members."""
    try:
        offsets.commit_group(cluster, name, new_offsets)
    except Answered as refusal:
        if refusal.code in _JOINED:
            raise Refused(
                f"Group {name} keeps its offsets: a member has joined in the meantime; stop it and try again."
            ) from None
        raise


def delete_groups(cluster: Cluster, names: Iterable[str]) -> None:
    """Deletes groups and their committed offsets."""
    for name in dict.fromkeys(names):

        def attempt(name: str = name) -> None:
            response = cluster.ask_coordinator(
                "group",
                name,
                m.DeleteGroupsRequest(groups_names=[name]),
                m.DeleteGroupsResponse,
                lambda each: each.results[0].error_code,
            )
            check(response.results[0].error_code, f"Group {name} was not deleted")

        cluster.retrying(f"delete group {name}", attempt)


def refuse_if_active(group: Group, to_do: str) -> None:
    """Refuses a group with members. `to_do` is what they prevent, as in "to reset it"."""
    if not group.members:
        return
    count = len(group.members)
    named = ", ".join(str(member) for member in group.members[:NAMED_MAX])
    named += f" and {count - NAMED_MAX} more" if count > NAMED_MAX else ""
    raise Refused(
        f"Group {group.id} has {count} active member{'' if count == 1 else 's'} ({named}): stop "
        f"{'it' if count == 1 else 'them'} first {to_do}; a dead member leaves when its session times out."
    )


def _describe_consumer(cluster: Cluster, name: str) -> Group | None:
    """The group, if it uses the new protocol."""
    request = m.ConsumerGroupDescribeRequest(group_ids=[name])
    response = cluster.ask_coordinator(
        "group", name, request, m.ConsumerGroupDescribeResponse, lambda each: each.groups[0].error_code
    )
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code, f"Group {name} cannot be described", group.error_message)
    members = [
        _member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            [
                TopicPartition(topic.topic_name, index)
                for topic in each.assignment.topic_partitions
                for index in topic.partitions
            ],
        )
        for each in group.members
    ]
    return _group(cluster, name, _state(group.group_state), CONSUMER, group.assignor_name, members)


def _describe_share(cluster: Cluster, name: str) -> Group | None:
    """The group, if it is a share group."""
    request = m.ShareGroupDescribeRequest(group_ids=[name])
    try:
        response = cluster.ask_coordinator(
            "group", name, request, m.ShareGroupDescribeResponse, lambda each: each.groups[0].error_code
        )
    except Unsupported:
        return None
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code, f"Group {name} cannot be described", group.error_message)
    members = [
        _member(
            each.member_id,
            None,
            each.client_id,
            each.client_host,
            [
                TopicPartition(topic.topic_name, index)
                for topic in each.assignment.topic_partitions
                for index in topic.partitions
            ],
        )
        for each in group.members
    ]
    return _group(cluster, name, _state(group.group_state), SHARE, group.assignor_name, members)


def _describe_classic(cluster: Cluster, name: str) -> Group:
    request = m.DescribeGroupsRequest(groups=[name])
    response = cluster.ask_coordinator(
        "group", name, request, m.DescribeGroupsResponse, lambda each: each.groups[0].error_code
    )
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return _group(cluster, name, DEAD, CLASSIC, "", [])
    check(group.error_code, f"Group {name} cannot be described", group.error_message)
    members = [
        _member(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            _assigned(each.member_assignment) if group.protocol_type == _CONSUMERS else [],
        )
        for each in group.members
    ]
    return _group(cluster, name, _state(group.group_state), CLASSIC, group.protocol_data, members)


def _group(cluster: Cluster, name: str, state: str, kind: str, assignor: str, members: Iterable[Member]) -> Group:
    ordered = sorted(members, key=lambda member: (member.instance or member.client, member.id))
    return Group(name, state, kind, assignor, cluster.coordinator("group", name).address, tuple(ordered))


def _member(
    member_id: str, instance: str | None, client: str, host: str, partitions: Iterable[TopicPartition]
) -> Member:
    # Java brokers prefix the address with a slash.
    return Member(member_id, instance or None, client, host.removeprefix("/"), tuple(sorted(partitions)))


def _assigned(data: bytes) -> list[TopicPartition]:
    """The assignment of a member of a classic group: bytes from its client, which may be anything."""
    kind = m.ConsumerProtocolAssignment
    try:
        (version,) = _VERSION.unpack_from(data)
        assignment, _ = kind.decode(data, min(version, kind.VERSIONS[1]), _VERSION.size)
    except (struct.error, MalformedMessage):
        return []
    return [TopicPartition(each.topic, index) for each in assignment.assigned_partitions for index in each.partitions]


def _state(name: str) -> str:
    return _STATES.get(name, name.lower() or "unknown")
