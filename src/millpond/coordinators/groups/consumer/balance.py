"""Balancing members with different subscriptions: move partitions until no assignment is more even.

A member passes a partition of a topic to another subscriber, that one passes another partition on, and so forth: only
the two ends of such a chain change in size. When no chain leads from one member to another with two fewer, no
assignment is more even.

Everything else waits meanwhile. So nothing here scans a member's partitions to move one of them, and nothing scans
all members as long as someone can give directly.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition

Load: TypeAlias = dict[str, set[TopicIdPartition]]
"""The assignment under construction, by member."""

Readers: TypeAlias = Mapping[UUID, Mapping[str, None]]
"""The subscribers of each topic, in the order of the members."""

Chains: TypeAlias = dict[str, tuple[str, UUID]]
"""The members that chains lead to, each with the previous member and the topic passed on."""

Hand: TypeAlias = dict[UUID, deque[TopicIdPartition]]
"""A member's partitions by topic."""


def even_out(load: Load, targets: Mapping[str, Partitions], readers: Readers) -> None:
    """The largest member gives to the smallest it can reach. If there is none, they are settled.

    If no chain begins at the largest member, none ever will at those it reaches.
    """
    hands = _Hands(load, targets)
    sizes = _Sizes(load)
    # Sizes only converge, so checking the largest of the rest is enough.
    while sizes.most - sizes.least >= 2:
        giver = sizes.largest
        came_by = _reach(giver, hands, sizes, readers)
        taker = min(came_by, key=sizes.of.__getitem__, default=giver)
        sizes.note_floor(sizes.of[taker], giver, came_by)
        if sizes.of[taker] > sizes.most - 2:
            sizes.settle({giver, *came_by})
            continue
        sizes.shift(giver, taker)
        while taker != giver:
            passer, topic_id = came_by[taker]
            hands.pass_on(topic_id, passer, taker)
            taker = passer


def _reach(giver: str, hands: _Hands, sizes: _Sizes, readers: Readers) -> Chains:
    """Whom a chain can lead to, nearest first. The search ends at a member of the least possible size."""
    came_by: Chains = {}
    ends = sizes.at_floor(giver)
    seen_topics: set[UUID] = set()
    seen = sizes.settled | {giver}
    queue = deque([giver])
    while queue:
        passer = queue.popleft()
        for topic_id in hands.of(passer):
            end = None if topic_id in seen_topics else _first_of_both(ends, readers[topic_id])
            if end is not None:
                return came_by | {end: (passer, topic_id)}
        for topic_id in hands.of(passer):
            if topic_id not in seen_topics:
                seen_topics.add(topic_id)
                reached = [member_id for member_id in readers[topic_id] if member_id not in seen]
                came_by.update(dict.fromkeys(reached, (passer, topic_id)))
                seen.update(reached)
                queue.extend(reached)
    return came_by


def _first_of_both(ends: Mapping[str, None], readers: Mapping[str, None]) -> str | None:
    few, many = (ends, readers) if len(ends) < len(readers) else (readers, ends)
    return next(filter(many.__contains__, few), None)


class _Hands:
    """The members' partitions, new ones first: the member has not begun to read those."""

    def __init__(self, load: Load, targets: Mapping[str, Partitions]) -> None:
        self._load = load
        self._targets = targets
        self._hands: dict[str, Hand] = {}

    def of(self, member_id: str) -> Hand:
        hand = self._hands.get(member_id)
        if hand is None:
            # Most members take no part in the exchange.
            hand = self._hands[member_id] = self._sorted_out(member_id)
        return hand

    def _sorted_out(self, member_id: str) -> Hand:
        old = self._targets[member_id]
        hand: Hand = {}
        for each in sorted(self._load[member_id], key=lambda each: (each in old, each[0].int, -each[1])):
            hand.setdefault(each.topic_id, deque()).append(each)
        return hand

    def pass_on(self, topic_id: UUID, passer: str, taker: str) -> None:
        hand, old = self.of(passer), self._targets[passer]
        partitions = hand[topic_id]
        passed = partitions.popleft()
        if not partitions:
            del hand[topic_id]
        elif passed not in old and partitions[0] in old:
            # Other topics may still have new partitions.
            hand[topic_id] = hand.pop(topic_id)
        self._load[passer].remove(passed)
        self._load[taker].add(passed)
        if taker in self._hands:
            taken = self._hands[taker].setdefault(topic_id, deque())
            if passed in self._targets[taker]:
                taken.append(passed)
            else:
                taken.appendleft(passed)


class _Sizes:
    """The number of partitions by member. Members that can neither give nor take are settled."""

    def __init__(self, load: Load) -> None:
        self.of = {member_id: len(partitions) for member_id, partitions in load.items()}
        self.settled: set[str] = set()
        self._members: dict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        for member_id, size in self.of.items():
            self._members[size][member_id] = None
        self._floors: dict[str, int] = {}
        self.least = min(self._members)
        self.most = max(self._members)

    @property
    def largest(self) -> str:
        return next(iter(self._members[self.most]))

    def at_floor(self, giver: str) -> Mapping[str, None]:
        """The members of the least size that the giver may reach, as far as known."""
        return self._members[max(self._floors.get(giver, 0), self.least)]

    def note_floor(self, size: int, giver: str, reached: Iterable[str]) -> None:
        """The giver reaches no smaller member; nor do those it reaches, which reach no others.

        That stays true. Chains of others may lead it to more members, but those are no smaller than the ends of these
        chains, and the ends it reached before.
        """
        if size > self._floors.get(giver, self.least):
            self._floors[giver] = size
            self._floors.update(dict.fromkeys(reached, size))

    def shift(self, giver: str, taker: str) -> None:
        for member_id, by in ((giver, -1), (taker, 1)):
            del self._members[self.of[member_id]][member_id]
            self.of[member_id] += by
            self._members[self.of[member_id]][member_id] = None
        self._narrow()

    def settle(self, members: set[str]) -> None:
        self.settled |= members
        for member_id in members:
            del self._members[self.of[member_id]][member_id]
        self._narrow()

    def _narrow(self) -> None:
        while self.least < self.most and not self._members[self.least]:
            self.least += 1
        while self.least < self.most and not self._members[self.most]:
            self.most -= 1
