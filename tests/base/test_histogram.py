"""Durations in classes: each is counted once, in a class that is no smaller than it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millpond.base.histogram import Histogram


@given(st.lists(st.integers(0, 10**9), max_size=50))
def test_no_class_says_more_than_there_is(durations: list[int]) -> None:
    histogram = Histogram()
    for each in durations:
        histogram.observe(each)
    assert histogram.count == len(durations)
    assert histogram.sum_us == sum(durations)
    last = 0
    for seconds, count in histogram.cumulative():
        assert count == sum(each < seconds * 1e6 for each in durations)
        assert count >= last
        last = count


def test_classes_go_from_microseconds_to_a_minute() -> None:
    bounds = [seconds for seconds, _ in Histogram().cumulative()]
    assert bounds[0] == 64e-6
    assert bounds[-1] > 60
    assert all(after == 2 * before for before, after in pairwise(bounds))
