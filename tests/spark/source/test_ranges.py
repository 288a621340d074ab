"""Ranges for tasks, split as in Spark's Kafka source."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millpond.base.ids import TopicPartition
from millpond.spark.source.ranges import Range, split

P = [TopicPartition("t", number) for number in range(8)]


def edges(ranges: list[Range]) -> list[tuple[int, int, int]]:
    return [(each.partition.partition, each.start, each.end) for each in ranges]


def test_each_partition_with_records_is_one_range() -> None:
    whole = [Range(P[1], 5, 9), Range(P[0], 0, 10), Range(P[2], 4, 4), Range(P[3], 9, 4)]
    assert edges(split(whole, tasks_min=None, offsets_max=None)) == [(0, 0, 10), (1, 5, 9)]
    assert edges(split(whole, tasks_min=2, offsets_max=None)) == [(0, 0, 10), (1, 5, 9)]


def test_ranges_are_split_until_there_are_enough_tasks() -> None:
    # As in Spark's own connector with minPartitions=5 for two partitions of ten.
    whole = [Range(P[0], 0, 10), Range(P[1], 0, 10)]
    parts = split(whole, tasks_min=5, offsets_max=None)
    assert edges(parts) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3), (1, 3, 6), (1, 6, 10)]


def test_only_large_ranges_are_split() -> None:
    whole = [Range(P[0], 0, 1), Range(P[1], 0, 1), Range(P[2], 100, 200)]
    parts = split(whole, tasks_min=6, offsets_max=None)
    assert edges(parts) == [(0, 0, 1), (1, 0, 1), (2, 100, 125), (2, 125, 150), (2, 150, 175), (2, 175, 200)]


def test_no_range_exceeds_the_limit_of_offsets() -> None:
    whole = [Range(P[0], 0, 10), Range(P[1], 0, 3)]
    assert edges(split(whole, tasks_min=None, offsets_max=4)) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3)]
    both = split(whole, tasks_min=6, offsets_max=4)
    assert len(both) >= 5
    assert max(each.size for each in both) <= 4


@given(
    sizes=st.lists(st.integers(0, 10**12), max_size=8),
    tasks_min=st.none() | st.integers(1, 50),
    offsets_max=st.none() | st.integers(10**10, 10**13),
)
def test_nothing_is_lost_or_read_twice(sizes: list[int], tasks_min: int | None, offsets_max: int | None) -> None:
    whole = [Range(P[number], 7, 7 + size) for number, size in enumerate(sizes)]
    parts = split(whole, tasks_min=tasks_min, offsets_max=offsets_max)
    assert all(each.size > 0 for each in parts)
    assert offsets_max is None or all(each.size <= offsets_max for each in parts)
    for partition in P:
        mine = [each for each in parts if each.partition == partition]
        assert all(before.end == after.start for before, after in pairwise(mine))
        expected = next((each for each in whole if each.partition == partition and each.size), None)
        assert (mine[0].start, mine[-1].end) == (expected.start, expected.end) if expected else not mine
