"""Targets are whole, fair and still: checked against an exhaustive search where the case is small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, islice, product
from random import Random
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.coordinators.groups.consumer.assignors import ASSIGNORS, Assignor, Subscriber, range_, uniform
from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition

Group = tuple[dict[str, Subscriber], dict[UUID, int]]

TOPICS = [UUID(int=number) for number in range(1, 5)]
NONE: Partitions = frozenset()


def sizes(target: Mapping[str, Partitions]) -> list[int]:
    return sorted(map(len, target.values()))


def moved(members: Mapping[str, Subscriber], target: Mapping[str, Partitions]) -> int:
    """Partitions that were somebody's and now are not: each of them pauses."""
    return sum(len(subscriber.target - target[name]) for name, subscriber in members.items())


def with_targets(members: Mapping[str, Subscriber], target: Mapping[str, Partitions]) -> dict[str, Subscriber]:
    return {name: Subscriber(each.topics, target.get(name, NONE)) for name, each in members.items()}


def everything(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> list[TopicIdPartition]:
    wanted = {topic for each in members.values() for topic in each.topics}
    return [TopicIdPartition(topic, number) for topic in topics if topic in wanted for number in range(topics[topic])]


T = TypeVar("T")


def shuffled(values: Iterable[T], dice: Random) -> list[T]:
    ordered = list(values)
    dice.shuffle(ordered)
    return ordered


class Uses:
    """How often counted ids are hashed or compared: nearly all that is done to a member or a partition begins so."""

    total = 0


class CountedTopic(UUID):
    def __hash__(self) -> int:
        Uses.total += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Uses.total += 1
        return super().__eq__(other)


class CountedMember(str):
    def __hash__(self) -> int:
        Uses.total += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Uses.total += 1
        return super().__eq__(other)


def uses(assign: Assignor, members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> int:
    before = Uses.total
    assign(members, topics)
    return Uses.total - before


@st.composite
def groups(draw: st.DrawFn, *, same: bool = False, small: bool = False) -> Group:
    """Members with subscriptions and a last target that may be of other topics, other sizes, even double."""
    topics = {topic: draw(st.integers(0, 2 if small else 7)) for topic in TOPICS[: 2 if small else 4]}
    names = [f"m{number}" for number in range(draw(st.integers(1, 3 if small else 6)))]
    shared = draw(st.frozensets(st.sampled_from(TOPICS)))
    places = st.builds(TopicIdPartition, st.sampled_from(TOPICS), st.integers(0, 8))
    return {
        name: Subscriber(
            shared if same else draw(st.frozensets(st.sampled_from(TOPICS))),
            draw(st.frozensets(places, max_size=4 if small else 12)),
        )
        for name in names
    }, topics


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(group=groups())
def test_every_subscribed_partition_has_one_reader_who_wants_it(assign: Assignor, group: Group) -> None:
    members, topics = group
    target = assign(members, topics)
    assert target.keys() == members.keys()
    for name, partitions in target.items():
        assert all(each.topic_id in members[name].topics for each in partitions)
    given_out = Counter(each for partitions in target.values() for each in partitions)
    assert given_out == Counter(everything(members, topics))


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(group=groups())
def test_nothing_moves_when_nothing_changed(assign: Assignor, group: Group) -> None:
    members, topics = group
    target = assign(members, topics)
    assert assign(with_targets(members, target), topics) == target


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(group=groups(), dice=st.randoms(use_true_random=False))
def test_only_what_is_in_a_target_counts_and_not_how_it_came_there(
    assign: Assignor, group: Group, dice: Random
) -> None:
    """Equal sets may differ in their order; a coordinator that has loaded the group goes on like the last one."""
    members, topics = group
    copied = {
        name: Subscriber(
            frozenset(shuffled(each.topics, dice)), frozenset(set(shuffled(each.target, dice)) | each.target)
        )
        for name, each in members.items()
    }
    assert assign(copied, topics) == assign(members, topics)


@given(group=groups(same=True))
def test_uniform_shares_differ_by_one_at_most_when_all_want_the_same(group: Group) -> None:
    found = sizes(uniform(*group))
    assert found[-1] - found[0] <= 1


@settings(max_examples=60)
@given(group=groups(small=True))
def test_uniform_is_as_even_as_any_assignment(group: Group) -> None:
    members, topics = group
    partitions = everything(members, topics)
    readers = [[name for name in members if each.topic_id in members[name].topics] for each in partitions]
    best = min(sum(count * count for count in Counter(choice).values()) for choice in product(*readers))
    assert sum(count * count for count in sizes(uniform(members, topics))) == best


@settings(max_examples=60)
@given(group=groups(small=True, same=True))
def test_uniform_moves_as_few_partitions_as_the_best_even_assignment(group: Group) -> None:
    members, topics = group
    taken: set[TopicIdPartition] = set()
    honest = {}
    for name, each in members.items():
        honest[name] = Subscriber(each.topics, frozenset(each.target - taken))
        taken |= each.target
    partitions = everything(honest, topics)
    target = uniform(honest, topics)
    least = moved(honest, target)
    for choice in product(honest, repeat=len(partitions) if honest else 0):
        other = {
            name: frozenset(each for each, reader in zip(partitions, choice, strict=True) if reader == name)
            for name in honest
        }
        if sizes(other) == sizes(target):
            assert moved(honest, other) >= least


@given(st.integers(1, 12), st.integers(1, 9))
def test_uniform_one_more_or_one_less_member_moves_only_a_share(count: int, partitions: int) -> None:
    topics = dict.fromkeys(TOPICS, partitions)
    total = partitions * len(TOPICS)
    empty = {f"m{number:02}": Subscriber(frozenset(TOPICS), NONE) for number in range(count)}
    before = with_targets(empty, uniform(empty, topics))
    grown = before | {"new": Subscriber(frozenset(TOPICS), NONE)}
    assert moved(grown, uniform(grown, topics)) == total // (count + 1)
    if count > 1:
        shrunk = {name: each for name, each in before.items() if name != "m00"}
        assert moved(shrunk, uniform(shrunk, topics)) == 0


def test_uniform_passes_partitions_on_through_a_third_member() -> None:
    """`a` is full of what only `b` could take over, and `b` can rid itself of what only `c` wants besides."""
    left, right = TOPICS[:2]
    both = frozenset(TopicIdPartition(right, number) for number in range(4))
    members = {
        "a": Subscriber(frozenset([left]), frozenset(TopicIdPartition(left, number) for number in range(6))),
        "b": Subscriber(frozenset([left, right]), both),
        "c": Subscriber(frozenset([right]), NONE),
    }
    assert sizes(uniform(members, {left: 6, right: 4})) == [3, 3, 4]


def test_range_gives_runs_and_the_same_numbers_of_like_topics() -> None:
    first, second, odd = TOPICS[:3]
    members = {name: Subscriber(frozenset([first, second, odd]), NONE) for name in ("a", "b", "c")}
    target = range_(members, {first: 7, second: 7, odd: 2})

    def numbers(name: str, topic: UUID) -> list[int]:
        return sorted(each.partition for each in target[name] if each.topic_id == topic)

    assert [numbers(name, first) for name in "abc"] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [numbers(name, second) for name in "abc"] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [numbers(name, odd) for name in "abc"] == [[0], [1], []]


@given(group=groups())
def test_range_is_fair_within_each_topic_and_keeps_like_topics_together(group: Group) -> None:
    members, topics = group
    target = range_(members, topics)
    seen: dict[tuple[frozenset[str], int], dict[str, set[int]]] = {}
    for topic, count in topics.items():
        readers = frozenset(name for name in members if topic in members[name].topics)
        shares = {name: {each.partition for each in target[name] if each.topic_id == topic} for name in readers}
        if readers:
            assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 1
            assert seen.setdefault((readers, count), shares) == shares


def test_range_keeps_what_members_had_when_one_more_comes() -> None:
    topic = TOPICS[0]
    members = {name: Subscriber(frozenset([topic]), NONE) for name in ("a", "b")}
    members = with_targets(members, range_(members, {topic: 6}))
    # The new one sorts first, and still only what balance demands goes to it.
    grown = {"0": Subscriber(frozenset([topic]), NONE)} | members
    target = range_(grown, {topic: 6})
    assert sizes(target) == [2, 2, 2]
    assert moved(grown, target) == 2


def test_a_partition_that_two_had_stays_with_one() -> None:
    place = TopicIdPartition(TOPICS[0], 0)
    members = {name: Subscriber(frozenset(TOPICS[:1]), frozenset([place])) for name in ("a", "b")}
    assert uniform(members, {TOPICS[0]: 1}) == {"a": frozenset([place]), "b": NONE}


def test_what_is_passed_on_is_what_is_new_to_the_member() -> None:
    """`b` must have the one partition it can read; `a` passes on what it has just got, not what it was reading."""
    left, right = TOPICS[:2]
    members = {
        "a": Subscriber(frozenset([left, right]), frozenset([TopicIdPartition(left, 1)])),
        "b": Subscriber(frozenset([right]), NONE),
        "c": Subscriber(frozenset([left, right]), frozenset([TopicIdPartition(right, 0)])),
    }
    target = uniform(members, {left: 2, right: 1})
    assert target["a"] == members["a"].target
    assert (sizes(target), moved(members, target)) == ([1, 1, 1], 1)


# What it costs: everybody else waits meanwhile.


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_half_of_a_large_topic_moves_at_a_cost_that_grows_as_the_topic_does(assign: Assignor) -> None:
    large, other = CountedTopic(int=1), CountedTopic(int=2)

    def cost(count: int) -> int:
        everything = frozenset(TopicIdPartition(large, number) for number in range(count))
        members = {
            "a": Subscriber(frozenset([large]), everything),
            "b": Subscriber(frozenset([large, other]), NONE),
        }
        return uses(assign, members, {large: count, other: 1})

    assert cost(800) < 2.1 * cost(400)


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_members_with_other_subscriptions_do_not_each_cost_all_partitions(assign: Assignor) -> None:
    topics: dict[UUID, int] = {CountedTopic(int=number): 100 for number in range(1, 13)}

    def cost(count: int) -> int:
        members = {
            f"m{number:02}": Subscriber(frozenset(topics.keys() - set(left_out)), NONE)
            for number, left_out in enumerate(islice(combinations(topics, 2), count))
        }
        settled = with_targets(members, assign(members, topics))
        return uses(assign, settled | {"new": Subscriber(frozenset(topics), NONE)}, topics)

    assert cost(60) < 1.5 * cost(30)


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_topics_with_other_readers_do_not_each_cost_all_partitions(assign: Assignor) -> None:
    def cost(count: int) -> int:
        topics: dict[UUID, int] = {CountedTopic(int=number): 4_800 // count for number in range(1, count + 1)}
        members = {
            f"m{number:02}": Subscriber(frozenset(topics.keys() - {each}), NONE) for number, each in enumerate(topics)
        }
        settled = with_targets(members, assign(members, topics))
        return uses(assign, settled | {"new": Subscriber(frozenset(topics), NONE)}, topics)

    assert cost(24) < 1.5 * cost(12)


def test_uniform_looks_at_few_members_for_each_partition_that_moves() -> None:
    """All that two have goes round to everybody, while nobody can reach the smallest of all."""
    large, small = CountedTopic(int=1), CountedTopic(int=2)

    def cost(count: int) -> int:
        members: dict[str, Subscriber] = {CountedMember("alone"): Subscriber(frozenset([small]), NONE)}
        for first in (0, 5 * count):
            target = frozenset(TopicIdPartition(large, number) for number in range(first, first + 5 * count))
            members[CountedMember(f"from {first}")] = Subscriber(frozenset([large]), target)
        for number in range(count):
            members[CountedMember(f"new {number}")] = Subscriber(frozenset([large, small]), NONE)
        return uses(uniform, members, {large: 10 * count, small: 0})

    assert cost(80) < 2.2 * cost(40)
