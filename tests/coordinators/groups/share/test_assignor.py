"""Every partition has a member, and the load is even."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millpond.coordinators.groups.consumer.members import Member, MemberMetadata
from millpond.coordinators.groups.share.assignor import PARTITIONS_EACH, assign

A, B = UUID(int=1), UUID(int=2)


def members(count: int, *topics: str) -> list[Member]:
    return [Member(f"{topics}{number:03}", MemberMetadata(topics=topics)) for number in range(count)]


@given(st.integers(1, 60), st.integers(0, 200))
def test_partitions_are_covered_evenly(member_count: int, partition_count: int) -> None:
    assigned = assign(members(member_count, "a"), {"a": (A, partition_count)})
    assert len(assigned) == member_count
    covered = Counter(each.partition for part in assigned.values() for each in part)
    assert set(covered) == set(range(partition_count))
    assert len({len(part) for part in assigned.values()}) == 1
    assert max(covered.values(), default=0) - min(covered.values(), default=0) <= 1
    sizes = {len(part) for part in assigned.values()}
    assert sizes == {min(partition_count, max(-(-partition_count // member_count), PARTITIONS_EACH))}


def test_members_get_only_what_they_subscribe_to() -> None:
    assigned = assign([*members(2, "a"), *members(1, "a", "b"), *members(1, "gone")], {"a": (A, 3), "b": (B, 1)})
    by_size = Counter(len(part) for part in assigned.values())
    assert by_size == {3: 2, 4: 1, 0: 1}


def test_very_many_subscriptions_cover_their_topics_together() -> None:
    """Each has all topics but one."""
    topics = {f"t{number:02}": (UUID(int=number), 10) for number in range(50)}
    several = [each for name in topics for each in members(1, *sorted(topics.keys() - {name}))]
    several += members(30, "t00")
    (none,) = members(1, "unknown")
    assigned = assign([*several, none], topics)
    for each in several:
        allowed = {topics[name][0] for name in each.metadata.topics}
        assert 1 <= len(assigned[each.id]) <= 20
        assert {topic_id for topic_id, _ in assigned[each.id]} <= allowed
    assert assigned[none.id] == frozenset()
    read = [partition for each in assigned.values() for partition in each]
    assert len(set(read)) == 500
    assert len(read) <= 530
