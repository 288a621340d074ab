"""Assignors: pure functions from members and topics to a target assignment for every member.

Both keep as much of the last target as balance allows, since every partition that moves pauses. The order of the
members given decides where counts alone do not, so the same input always gives the same target.

- `uniform` spreads all partitions evenly over the members. With equal subscriptions loads differ by one at most and
  no assignment moves fewer partitions. With unequal ones no other assignment is more even.
- `range` gives partitions of the same number, of topics with the same subscribers, to the same member; within a topic
  loads differ by one at most.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final, TypeAlias
from uuid import UUID

from millpond.coordinators.groups.consumer.balance import Load, Readers, even_out
from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as assignors see it: its topics and its previous target."""

    topics: frozenset[UUID]
    target: Partitions


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""Members by id, and partition counts of all topics by id. A topic that is missing cannot be assigned."""


def uniform(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    load, free = _kept(members, topics)
    if len({subscriber.topics for subscriber in members.values()}) <= 1:
        _spread_evenly(load, free)
    else:
        readers = _Readers(members)
        _fill(load, free, readers)
        even_out(load, {member_id: each.target for member_id, each in members.items()}, readers)
    return {member_id: frozenset(partitions) for member_id, partitions in load.items()}


def _kept(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> tuple[Load, list[TopicIdPartition]]:
    """What members may keep of their previous targets, each partition once, and what is unassigned."""
    # Set operations: testing partitions one by one would take most of the time of a large group.
    all_wanted = frozenset[UUID]().union(*(subscriber.topics for subscriber in members.values()))
    subscribed = _partitions_of(all_wanted, topics)
    taken: set[TopicIdPartition] = set()
    load: Load = {}
    for member_id, subscriber in members.items():
        kept = set((subscriber.target & subscribed) - taken)
        if len(subscriber.topics) < len(all_wanted):
            kept = {each for each in kept if each.topic_id in subscriber.topics}
        load[member_id] = kept
        taken |= kept
    return load, sorted(subscribed - taken, key=_order)


def _partitions_of(topic_ids: frozenset[UUID], topics: Mapping[UUID, int]) -> Partitions:
    return frozenset(
        TopicIdPartition(topic_id, number) for topic_id in topic_ids for number in range(topics.get(topic_id, 0))
    )


def _spread_evenly(load: Load, free: list[TopicIdPartition]) -> None:
    """With equal subscriptions any partition may go anywhere, so only the counts matter."""
    if not load:
        return
    total = sum(map(len, load.values())) + len(free)
    quota, larger = divmod(total, len(load))
    # Members with the most keep the larger shares: then only what must move does.
    by_size = sorted(load, key=lambda member_id: -len(load[member_id]))
    shares = {member_id: quota + (index < larger) for index, member_id in enumerate(by_size)}
    for member_id, share in shares.items():
        surplus = len(load[member_id]) - share
        if surplus > 0:
            surrendered = sorted(load[member_id], key=_order)[-surplus:]
            load[member_id].difference_update(surrendered)
            free += surrendered
    remaining = iter(free)
    # Round robin: every member gets some of every topic.
    hungry = [member_id for member_id in load if len(load[member_id]) < shares[member_id]]
    while hungry:
        for member_id in hungry:
            load[member_id].add(next(remaining))
        hungry = [member_id for member_id in hungry if len(load[member_id]) < shares[member_id]]


def _order(each: TopicIdPartition) -> tuple[int, int]:
    return each.topic_id.int, each.partition


def _fill(load: Load, free: list[TopicIdPartition], readers: Readers) -> None:
    """Give each free partition to the subscriber with the fewest; topics with the fewest subscribers first."""
    by_topic: dict[UUID, list[TopicIdPartition]] = defaultdict(list)
    for each in free:
        by_topic[each.topic_id].append(each)
    for topic_id in sorted(by_topic, key=lambda topic_id: len(readers[topic_id])):
        heap = [(len(load[member_id]), index, member_id) for index, member_id in enumerate(readers[topic_id])]
        heapify(heap)
        for each in by_topic[topic_id]:
            size, index, member_id = heap[0]
            load[member_id].add(each)
            heapreplace(heap, (size + 1, index, member_id))


class _Readers(dict[UUID, dict[str, None]]):
    """The subscribers of a topic, computed on demand: usually only a few topics need them."""

    def __init__(self, members: Mapping[str, Subscriber]) -> None:
        super().__init__()
        self._members = members

    def __missing__(self, topic_id: UUID) -> dict[str, None]:
        self[topic_id] = {
            member_id: None for member_id, subscriber in self._members.items() if topic_id in subscriber.topics
        }
        return self[topic_id]


def range_(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Topics with the same subscribers and partition count share one division of their partition numbers."""
    load: Load = {member_id: set() for member_id in members}
    alike: dict[tuple[tuple[str, ...], int], list[UUID]] = defaultdict(list)
    for topic_id, subscribers in _subscribers_by_topic(members, topics).items():
        if subscribers:
            alike[tuple(subscribers), topics[topic_id]].append(topic_id)
    last_readers = _last_readers(members)
    for (readers, count), topic_ids in alike.items():
        # The previous reader of each number, from the first of these topics that has one.
        had = dict(ChainMap(*(last_readers[topic_id] for topic_id in topic_ids if topic_id in last_readers)))
        for number, member_id in enumerate(_divided(readers, count, had)):
            load[member_id].update(TopicIdPartition(topic_id, number) for topic_id in topic_ids)
    return {member_id: frozenset(partitions) for member_id, partitions in load.items()}


def _subscribers_by_topic(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[UUID, list[str]]:
    subscribers: dict[UUID, list[str]] = {topic_id: [] for topic_id in topics}
    for member_id, subscriber in members.items():
        for topic_id in subscriber.topics:
            if (readers := subscribers.get(topic_id)) is not None:
                readers.append(member_id)
    return subscribers


def _last_readers(members: Mapping[str, Subscriber]) -> dict[UUID, dict[int, str]]:
    """The previous owner of each partition that still subscribes to its topic; the first, if there were several."""
    readers: dict[UUID, dict[int, str]] = defaultdict(dict)
    for member_id, subscriber in members.items():
        for topic_id, number in subscriber.target:
            if topic_id in subscriber.topics:
                readers[topic_id].setdefault(number, member_id)
    return readers


def _divided(readers: tuple[str, ...], count: int, last_readers: Mapping[int, str]) -> list[str]:
    """The reader of each number. Members keep numbers up to their share; the rest are assigned in runs."""
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
