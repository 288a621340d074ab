"""The range map against a plain dict, with chunks so small that every way of splitting and joining happens."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.coordinators.shares import range_map
from millpond.coordinators.shares.range_map import RangeMap

OFFSETS = 60


def content(ranges: RangeMap[str]) -> list[tuple[int, int, str]]:
    return list(ranges.ranges(ranges.start, ranges.end - 1))


def runs(values: dict[int, str]) -> list[tuple[int, int, str]]:
    """The ranges that a dict of offsets amounts to."""
    grouped = (list(group) for _, group in groupby(sorted(values), key=values.__getitem__))
    return [(group[0], group[-1], values[group[0]]) for group in grouped]


def test_neighbours_with_equal_values_are_one_range() -> None:
    ranges: RangeMap[str] = RangeMap(10)
    ranges.append(19, "a")
    ranges.append(29, "a")
    assert content(ranges) == [(10, 29, "a")]
    ranges.assign(15, 16, "b")
    assert content(ranges) == [(10, 14, "a"), (15, 16, "b"), (17, 29, "a")]
    assert list(ranges.ranges(16, 18)) == [(16, 16, "b"), (17, 18, "a")]
    ranges.assign(15, 16, "a")
    assert content(ranges) == [(10, 29, "a")]


def test_a_map_begins_later() -> None:
    ranges: RangeMap[str] = RangeMap(0)
    ranges.append(9, "a")
    ranges.drop_before(4)
    assert (content(ranges), ranges.at(4)) == ([(4, 9, "a")], "a")
    ranges.drop_before(50)
    assert (content(ranges), len(ranges), ranges.start, ranges.end) == ([], 0, 50, 50)


def test_a_copy_goes_its_own_way() -> None:
    ranges: RangeMap[str] = RangeMap(0)
    ranges.append(9, "a")
    other = ranges.copy()
    other.assign(3, 4, "b")
    other.append(12, "c")
    assert content(ranges) == [(0, 9, "a")]
    assert content(other) == [(0, 2, "a"), (3, 4, "b"), (5, 9, "a"), (10, 12, "c")]
    assert len(other) == 4


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["assign", "assign", "assign", "assign", "append", "drop"]),
        st.integers(0, OFFSETS),
        st.integers(0, 12),
        st.sampled_from("abc"),
    ),
    max_size=80,
)


@given(STEPS)
@settings(max_examples=400)
def test_a_map_is_what_a_dict_would_be(steps: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_map, "CHUNK_MAX", 4)
        patch.setattr(range_map, "CHUNK_MIN", 2)
        ranges: RangeMap[str] = RangeMap(0)
        values: dict[int, str] = {}
        for kind, offset, length, value in steps:
            if kind == "append" or ranges.start == ranges.end:
                values |= dict.fromkeys(range(ranges.end, ranges.end + length + 1), value)
                ranges.append(ranges.end + length, value)
            elif kind == "drop":
                ranges.drop_before(ranges.start + length // 4)
                values = {each: value for each, value in values.items() if each >= ranges.start}
            else:
                first = min(ranges.start + offset, ranges.end - 1)
                last = min(first + length, ranges.end - 1)
                values |= dict.fromkeys(range(first, last + 1), value)
                ranges.assign(first, last, value)
            assert content(ranges) == runs(values)
            assert len(ranges) == len(runs(values))
            assert all(ranges.at(each) == value for each, value in values.items())
            assert ranges._heads == [firsts[0] for firsts in ranges._chunks]
            assert all(0 < len(firsts) <= 4 for firsts in ranges._chunks)
