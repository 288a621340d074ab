"""What the group commands ask of a cluster, over confluent-kafka's AdminClient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millpond.cli.admin import settle
from millpond.cli.connect import ANSWER_SECONDS
from millpond.cli.errors import Failed, failed, nearest
from millpond.cli.offsets import Partition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

REBALANCING: Final = "rebalancing"
EMPTY: Final = "empty"
DEAD: Final = "dead"
STATES: Final = ("stable", REBALANCING, EMPTY, DEAD)
TYPES: Final = ("classic", "consumer")

_STATE_NAMES: Final = {
    "STABLE": "stable",
    "EMPTY": EMPTY,
    "DEAD": DEAD,
    "PREPARING_REBALANCING": REBALANCING,
    "COMPLETING_REBALANCING": REBALANCING,
    # The library has no word for the two states in which members of the newer protocol change places.
    "UNKNOWN": REBALANCING,
}

_PATIENCE: Final[dict[str, Any]] = {"request_timeout": ANSWER_SECONDS}

NAMED_MAX: Final = 3
"""How many members a sentence names before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Listing:
    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance: str | None
    client: str
    host: str
    partitions: list[Partition] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.instance or self.client or self.id} on {self.host}"


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    state: str
    type: str
    assignor: str
    coordinator: str
    members: list[Member]

    @property
    def owners(self) -> dict[Partition, Member]:
        return {partition: member for member in self.members for partition in member.partitions}


def list_groups(admin: AdminClient) -> list[Listing]:
    found = settle("The cluster does not say what groups it has", admin.list_consumer_groups(**_PATIENCE))
    if found.errors:
        # Half a list would look like a whole one.
        raise failed("A broker does not say what groups it has", found.errors[0].args[0])
    listed = [Listing(str(each.group_id), _state(each), _type(each)) for each in found.valid]
    return sorted(listed, key=lambda each: each.group)


def find_groups(admin: AdminClient, names: Sequence[str]) -> list[Group]:
    """The groups of these names; one that is not there is a failure that offers the nearest name."""
    found = describe_groups(admin, names)
    for name in names:
        # A group that exists only by its offsets has no members and is not dead.
        if found[name].state == DEAD:
            known = [each.group for each in list_groups(admin) if each.group != name]
            raise Failed(f"There is no group {name}{_hint(name, known)}")
    return [found[name] for name in names]


def describe_groups(admin: AdminClient, names: Sequence[str]) -> dict[str, Group]:
    """Every group by name; one that does not exist is dead."""
    from confluent_kafka import KafkaException

    found = {}
    for name, future in admin.describe_consumer_groups(list(dict.fromkeys(names)), **_PATIENCE).items():
        try:
            found[name] = _group(future.result())
        except KafkaException as refusal:
            if refusal.args[0].name() != "GROUP_ID_NOT_FOUND":
                raise failed(f"Group {name} cannot be described", refusal.args[0]) from None
            found[name] = Group(name, DEAD, TYPES[0], "", "", [])
    return found


def committed_offsets(admin: AdminClient, names: Iterable[str]) -> dict[str, dict[Partition, int]]:
    """The committed offsets by group; a partition without one is left out."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = {
        name: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], **_PATIENCE)[name]
        for name in names
    }
    found = {}
    for name, future in asked.items():
        told = settle(f"The offsets of group {name} are not known", future)
        found[name] = {
            (each.topic, each.partition): each.offset
            for each in told.topic_partitions
            if each.error is None and each.offset >= 0
        }
    return found


def commit_offsets(admin: AdminClient, name: str, offsets: Mapping[Partition, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]
    futures = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, wanted)], **_PATIENCE)
    what = f"Group {name} keeps its offsets"
    for each in settle(what, futures[name]).topic_partitions:
        if each.error is None:
            continue
        if each.error.name() in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"):
            raise Failed(f"{what}: a member has joined meanwhile; stop it and try again.")
        raise failed(f"{what} of {each.topic}-{each.partition}", each.error)


def delete_groups(admin: AdminClient, names: Sequence[str]) -> None:
    for name, future in admin.delete_consumer_groups(list(names), **_PATIENCE).items():
        settle(f"Group {name} was not deleted", future)


def refuse_if_active(group: Group, to_do: str) -> None:
    """`to_do` is what must wait until nobody is left, as in "to reset it"."""
    if not group.members:
        return
    named = ", ".join(str(member) for member in group.members[:NAMED_MAX])
    more = len(group.members) - NAMED_MAX
    if more > 0:
        named += f" and {more} more"
    count = len(group.members)
    raise Failed(
        f"Group {group.id} has {count} active member{'' if count == 1 else 's'} ({named}): stop "
        f"{'it' if count == 1 else 'them'} first {to_do}; one that died leaves when its session times out."
    )


def _group(told: Any) -> Group:
    node = told.coordinator
    members = [
        Member(
            str(each.member_id),
            each.group_instance_id or None,
            str(each.client_id or ""),
            # Java brokers put a slash before the address.
            str(each.host or "").removeprefix("/"),
            sorted((part.topic, part.partition) for part in each.assignment.topic_partitions),
        )
        for each in told.members
    ]
    return Group(
        str(told.group_id),
        _state(told),
        _type(told),
        str(told.partition_assignor or ""),
        f"{node.host}:{node.port}" if node else "",
        sorted(members, key=lambda member: (member.instance or member.client, member.id)),
    )


def _state(told: Any) -> str:
    return _STATE_NAMES.get(told.state.name, str(told.state.name).lower())


def _type(told: Any) -> str:
    return str(told.type.name).lower()


def _hint(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    return "; see those that are there with `millpond group list`." if near == "." else near
