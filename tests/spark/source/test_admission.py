"""Admission of offsets to a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.base.ids import TopicPartition
from millpond.spark.source.admission import Gate, backlog, cap

A, B, C = (TopicPartition("t", number) for number in range(3))


def test_a_limit_is_shared_in_proportion_to_backlogs() -> None:
    assert backlog({A: 10, B: 0}, {A: 110, B: 900, C: 0}) == 1000
    assert cap({A: 10, B: 0}, {A: 110, B: 900}, 100) == {A: 20, B: 90}
    assert cap({A: 10, B: 0}, {A: 110, B: 900}, 1000) == {A: 110, B: 900}


def test_a_small_partition_is_not_starved() -> None:
    assert cap({A: 0, B: 5, C: 7}, {A: 1_000_000, B: 6, C: 7}, 10) == {A: 9, B: 6, C: 7}


def test_a_new_partition_counts_from_where_it_is_read() -> None:
    assert cap({A: 50, B: 100}, {A: 100, B: 150}, 50) == {A: 75, B: 125}


@given(
    sizes=st.lists(st.integers(0, 1 << 62), min_size=3, max_size=3),
    begins=st.lists(st.integers(0, 1 << 61), min_size=3, max_size=3),
    offsets_max=st.integers(1, 1 << 62),
)
def test_every_backlog_advances_and_none_passes_its_end(
    sizes: list[int], begins: list[int], offsets_max: int
) -> None:
    start = dict(zip((A, B, C), begins, strict=True))
    end = {partition: start[partition] + size for partition, size in zip((A, B, C), sizes, strict=True)}
    taken = cap(start, end, offsets_max)
    assert all(start[partition] <= taken[partition] <= end[partition] for partition in end)
    assert all(taken[partition] > start[partition] for partition in end if end[partition] > start[partition])
    assert backlog(start, taken) <= max(offsets_max, 0) + len(end)


def test_the_gate_opens_for_enough_offsets_or_after_the_delay() -> None:
    now = [0]
    gate = Gate(offsets_min=100, delay_ms_max=1_000, clock_ms=lambda: now[0])
    assert gate.opens({A: 0}, {A: 1}), "nothing is known of a batch before the first"
    now[0] = 500
    assert not gate.opens({A: 1}, {A: 100})
    assert gate.opens({A: 1}, {A: 101})
    now[0] = 1_499
    assert not gate.opens({A: 101}, {A: 102})
    now[0] = 1_500
    assert gate.opens({A: 101}, {A: 102})
    now[0] = 1_600
    assert not gate.opens({A: 102}, {A: 103})
