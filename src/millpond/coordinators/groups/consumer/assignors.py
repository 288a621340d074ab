"""Who should read what: pure functions from members and topics to a target for every member.

Both keep as much of the last target as balance allows, since every partition that moves pauses. The order of the
members given decides where counts alone do not, so the same input always gives the same target.

- `uniform` spreads all partitions evenly over the members. With equal subscriptions loads differ by one at most and
  no assignment moves fewer partitions. With unequal ones no other assignment is more even.
- `range` gives partitions of the same number, of topics with the same subscribers, to the same member; within a topic
  loads differ by one at most.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final, TypeAlias
from uuid import UUID

from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as assignors see it: the topics it wants and its last target."""

    topics: frozenset[UUID]
    target: Partitions


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""Members by id, and partition counts of all topics by id. A topic that is not there cannot be assigned."""

Load: TypeAlias = dict[str, set[TopicIdPartition]]
"""What each member gets, in the making."""


def uniform(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    load, free = _kept(members, topics)
    if len({subscriber.topics for subscriber in members.values()}) <= 1:
        _spread_evenly(load, free)
    else:
        subscribers = _subscribers_by_topic(members, topics)
        _fill(load, free, subscribers)
        _even_out(load, members, subscribers)
    return {member_id: frozenset(partitions) for member_id, partitions in load.items()}


def _subscribers_by_topic(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[UUID, list[str]]:
    subscribers: dict[UUID, list[str]] = {topic_id: [] for topic_id in topics}
    for member_id, subscriber in members.items():
        for topic_id in subscriber.topics & topics.keys():
            subscribers[topic_id].append(member_id)
    return subscribers


def _kept(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> tuple[Load, list[TopicIdPartition]]:
    """What members may keep of their last targets, each partition with one of them, and what nobody has."""
    # Operations on whole sets: looking partitions up one by one would take most of the time of a large group.
    wanted_by: dict[frozenset[UUID], Partitions] = {}
    taken: set[TopicIdPartition] = set()
    load: Load = {}
    for member_id, subscriber in members.items():
        wanted = wanted_by.get(subscriber.topics)
        if wanted is None:
            wanted = wanted_by[subscriber.topics] = _partitions_of(subscriber.topics, topics)
        load[member_id] = set((subscriber.target & wanted) - taken)
        taken |= load[member_id]
    return load, sorted(set().union(*wanted_by.values()) - taken, key=_order)


def _partitions_of(wanted: frozenset[UUID], topics: Mapping[UUID, int]) -> Partitions:
    return frozenset(
        TopicIdPartition(topic_id, number) for topic_id in wanted for number in range(topics.get(topic_id, 0))
    )


def _spread_evenly(load: Load, free: list[TopicIdPartition]) -> None:
    """With equal subscriptions any partition may go anywhere, so only the counts matter."""
    if not load:
        return
    total = sum(map(len, load.values())) + len(free)
    quota, larger = divmod(total, len(load))
    # Those who have most keep the larger shares: then nothing moves but what must.
    by_size = sorted(load, key=lambda member_id: -len(load[member_id]))
    shares = {member_id: quota + (index < larger) for index, member_id in enumerate(by_size)}
    for member_id, share in shares.items():
        surplus = len(load[member_id]) - share
        if surplus > 0:
            given = sorted(load[member_id], key=_order)[-surplus:]
            load[member_id].difference_update(given)
            free += given
    remaining = iter(free)
    # One to each in turn: every member gets some of every topic.
    hungry = [member_id for member_id in load if len(load[member_id]) < shares[member_id]]
    while hungry:
        for member_id in hungry:
            load[member_id].add(next(remaining))
        hungry = [member_id for member_id in hungry if len(load[member_id]) < shares[member_id]]


def _order(each: TopicIdPartition) -> tuple[int, int]:
    return each.topic_id.int, each.partition


def _fill(load: Load, free: list[TopicIdPartition], subscribers: Mapping[UUID, list[str]]) -> None:
    """Give each free partition to the subscriber with the least; topics with the fewest subscribers first."""
    by_topic: dict[UUID, list[TopicIdPartition]] = defaultdict(list)
    for each in free:
        by_topic[each.topic_id].append(each)
    for topic_id in sorted(by_topic, key=lambda topic_id: len(subscribers[topic_id])):
        heap = [(len(load[member_id]), index, member_id) for index, member_id in enumerate(subscribers[topic_id])]
        heapify(heap)
        for each in by_topic[topic_id]:
            size, index, member_id = heap[0]
            load[member_id].add(each)
            heapreplace(heap, (size + 1, index, member_id))


def _even_out(load: Load, members: Mapping[str, Subscriber], subscribers: Mapping[UUID, list[str]]) -> None:
    """Shift partitions along chains of members until no chain leads from one member to another with two fewer.

    A member passes a partition of some topic to another subscriber of it, that one passes another partition on, and
    so forth: only the two ends change in size. When no such chain is left, no assignment is more even. When none
    begins at the largest member, none ever will at those it reaches, so they are settled.
    """
    settled: set[str] = set()
    held: dict[str, dict[UUID, int]] = {member_id: defaultdict(int) for member_id in load}
    for member_id, partitions in load.items():
        for each in partitions:
            held[member_id][each.topic_id] += 1
    waiting = sorted(load, key=lambda member_id: len(load[member_id]))
    while waiting:
        # Sizes only ever move towards each other, so a look at the largest of those left is enough.
        giver = max(waiting, key=lambda member_id: len(load[member_id]))
        came_by = _reach(giver, held, subscribers, settled)
        taker = min(came_by, key=lambda member_id: len(load[member_id]), default=giver)
        if len(load[taker]) > len(load[giver]) - 2:
            settled |= {giver, *came_by}
            waiting = [member_id for member_id in waiting if member_id not in settled]
            continue
        while taker != giver:
            passer, topic_id = came_by[taker]
            moved = _least_missed(passer, topic_id, load, members)
            load[passer].remove(moved)
            load[taker].add(moved)
            held[passer][topic_id] -= 1
            held[taker][topic_id] += 1
            taker = passer


def _reach(
    giver: str,
    held: Mapping[str, Mapping[UUID, int]],
    subscribers: Mapping[UUID, list[str]],
    settled: set[str],
) -> dict[str, tuple[str, UUID]]:
    """Whom a chain can lead to, the nearest first, each with the member before it and the topic passed on."""
    came_by: dict[str, tuple[str, UUID]] = {}
    seen_topics: set[UUID] = set()
    queue = deque([giver])
    while queue:
        passer = queue.popleft()
        for topic_id, count in held[passer].items():
            if not count or topic_id in seen_topics:
                continue
            seen_topics.add(topic_id)
            for member_id in subscribers[topic_id]:
                if member_id not in came_by and member_id != giver and member_id not in settled:
                    came_by[member_id] = passer, topic_id
                    queue.append(member_id)
    return came_by


def _least_missed(passer: str, topic_id: UUID, load: Load, members: Mapping[str, Subscriber]) -> TopicIdPartition:
    """A partition of the topic, one that is new to the member if there is any: it has not begun to read that."""
    old = members[passer].target
    return max(
        (each for each in load[passer] if each.topic_id == topic_id), key=lambda each: (each not in old, each[1])
    )


def range_(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Topics alike in subscribers and partition count share one division of their partition numbers."""
    load: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    alike: dict[tuple[tuple[str, ...], int], list[UUID]] = defaultdict(list)
    for topic_id, subscribers in _subscribers_by_topic(members, topics).items():
        if subscribers:
            alike[tuple(subscribers), topics[topic_id]].append(topic_id)
    for (readers, count), topic_ids in alike.items():
        for number, member_id in enumerate(_divided(readers, count, _last_readers(members, readers, topic_ids))):
            load[member_id].update(TopicIdPartition(topic_id, number) for topic_id in topic_ids)
    return {member_id: frozenset(partitions) for member_id, partitions in load.items()}


def _last_readers(
    members: Mapping[str, Subscriber], readers: tuple[str, ...], topic_ids: list[UUID]
) -> dict[int, str]:
    """Who had each number, in the first of the topics in which anybody had it."""
    index_of = {topic_id: index for index, topic_id in enumerate(topic_ids)}
    readers_by_number: dict[int, tuple[int, str]] = {}
    for member_id in readers:
        for each in members[member_id].target:
            if each.topic_id in index_of:
                candidate = index_of[each.topic_id], member_id
                if each.partition not in readers_by_number or candidate[0] < readers_by_number[each.partition][0]:
                    readers_by_number[each.partition] = candidate
    return {number: member_id for number, (_, member_id) in readers_by_number.items()}


def _divided(readers: tuple[str, ...], count: int, last_readers: Mapping[int, str]) -> list[str]:
    """The reader of each number. Whoever had numbers keeps them up to its share; the rest go out in runs."""
    quota, larger = divmod(count, len(readers))
    had: dict[str, list[int]] = {member_id: [] for member_id in readers}
    for number in range(count):
        if number in last_readers:
            had[last_readers[number]].append(number)
    by_need = sorted(readers, key=lambda member_id: len(had[member_id]) <= quota)
    favoured = set(by_need[:larger])
    owner: dict[int, str] = {}
    missing: dict[str, int] = {}
    for member_id in readers:
        share = quota + (member_id in favoured)
        kept = had[member_id][:share]
        owner.update(dict.fromkeys(kept, member_id))
        missing[member_id] = share - len(kept)
    seekers = [member_id for member_id in readers for _ in range(missing[member_id])]
    rest = iter(seekers)
    return [owner[number] if number in owner else next(rest) for number in range(count)]


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}
