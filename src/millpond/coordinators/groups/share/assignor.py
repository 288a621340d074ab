"""Which partitions each member of a share group reads.

A record goes to whichever member asks first, so several members may read one partition, and a move costs nothing.
Where there are few partitions every member reads all of them: then no partition has to wait for one slow member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from millpond.coordinators.groups.consumer.members import Member, Partitions, TopicIdPartition

NAME: Final = "simple"

PARTITIONS_EACH: Final = 16
"""How many partitions a member reads if there are as many; more only if some would have no member otherwise."""


DIVERSITY_MAX: Final = 5_000
"""How many partitions members with different subscriptions get, if each subscription is covered for itself."""


def assign(members: Iterable[Member], topics: Mapping[str, tuple[UUID, int]]) -> dict[str, Partitions]:
    """The partitions of each member; `topics` are ids and partition counts by name.

    Members with the same subscription cover all of its partitions evenly, each a contiguous part of the circle. With
    very many subscriptions nearly every member would have all partitions: then all who subscribe to a topic cover it
    together.
    """
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for member in members:
        alike[member.metadata.topics].append(member.id)
    assigned: dict[str, Partitions] = {}
    if len(alike) > 1 and sum(topics[name][1] for names in alike for name in names if name in topics) > DIVERSITY_MAX:
        return _assign_by_topic(alike, topics)
    for names, member_ids in alike.items():
        circle = [
            TopicIdPartition(topics[name][0], number)
            for name in names
            if name in topics
            for number in range(topics[name][1])
        ]
        assigned |= _cover(circle, sorted(member_ids))
    return assigned


def _cover(circle: list[TopicIdPartition], member_ids: Sequence[str]) -> dict[str, Partitions]:
    count, total = len(member_ids), len(circle)
    each = min(total, max(-(-total // count), PARTITIONS_EACH))
    assigned = {}
    for index, member_id in enumerate(member_ids):
        start = index * total // count
        part = circle[start : start + each]
        assigned[member_id] = frozenset(part + circle[: each - len(part)])
    return assigned


def _assign_by_topic(
    alike: Mapping[tuple[str, ...], Sequence[str]], topics: Mapping[str, tuple[UUID, int]]
) -> dict[str, Partitions]:
    """Every partition has one member, and every member at least one partition if there is any for it."""
    subscribers: dict[str, list[str]] = defaultdict(list)
    for names, member_ids in alike.items():
        for name in names:
            if name in topics:
                subscribers[name] += member_ids
    assigned: dict[str, list[TopicIdPartition]] = {each: [] for member_ids in alike.values() for each in member_ids}
    for place, (name, member_ids) in enumerate(sorted(subscribers.items())):
        topic_id, total = topics[name]
        member_ids.sort()
        for number in range(total):
            # Topics begin with different members, or the first ones would get one of each.
            assigned[member_ids[(place + number) % len(member_ids)]].append(TopicIdPartition(topic_id, number))
    for names, member_ids in alike.items():
        idle = [each for each in sorted(member_ids) if not assigned[each]]
        known = [topics[name] for name in names if name in topics and topics[name][1]] if idle else []
        for index, member_id in enumerate(idle if known else ()):
            topic_id, total = known[index % len(known)]
            assigned[member_id].append(TopicIdPartition(topic_id, index % total))
    return {member_id: frozenset(part) for member_id, part in assigned.items()}
