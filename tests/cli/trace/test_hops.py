"""From times to a budget, and its chart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cli.trace.hops import Budget, Times, chart, make_budget, percentile

RECORD = Times(linger=5, send=0.5, broker=4, acknowledge=0.5, process=1, acknowledged=10, arrived=12)


def hop_of(budget: Budget, name: str) -> tuple[float, float | None, float | None, float]:
    hop = next(hop for hop in budget.hops if hop.name == name)
    return hop.p50_ms, hop.p99_ms, hop.worst_ms, hop.begins_ms


def test_the_twins_tell_append_and_replicate_apart_at_the_median_only() -> None:
    budget = make_budget([RECORD] * 3, [1.0, 1.5, 2.0], "replicate")
    assert [hop.name for hop in budget.hops] == [
        "linger", "send", "append", "replicate", "acknowledge", "fetch", "process",
    ]  # fmt: skip
    assert hop_of(budget, "append") == (1.5, 4, 4, 5.5)
    assert hop_of(budget, "replicate") == (2.5, None, None, 7)
    assert hop_of(budget, "acknowledge") == (0.5, 0.5, 0.5, 9.5)
    assert hop_of(budget, "fetch") == (2.5, 2.5, 2.5, 9.5)
    assert hop_of(budget, "process") == (1, 1, 1, 12)
    assert not budget.is_read_early


def test_with_acks_1_the_broker_only_appends() -> None:
    budget = make_budget([RECORD], [], None)
    assert [hop.name for hop in budget.hops] == ["linger", "send", "append", "acknowledge", "fetch", "process"]
    assert hop_of(budget, "append") == (4, 4, 4, 5.5)


def test_a_reader_that_does_not_wait_for_the_sync_begins_after_the_append() -> None:
    budget = make_budget([replace(RECORD, arrived=8)], [1.0], "sync")
    assert budget.is_read_early
    assert hop_of(budget, "fetch") == (1.5, 1.5, 1.5, 6.5)


def test_a_twin_slower_than_its_record_leaves_nothing_for_the_next_hop() -> None:
    budget = make_budget([RECORD], [9.0], "replicate")
    assert hop_of(budget, "append")[0] == 4
    assert hop_of(budget, "replicate")[0] == 0


def test_the_worst_record_is_the_one_that_took_longest_from_end_to_end() -> None:
    slow = replace(RECORD, linger=1, arrived=100)
    budget = make_budget([RECORD, slow, RECORD], [1.0], "replicate")
    assert hop_of(budget, "linger")[2] == 1
    assert [(total.name, total.worst_ms) for total in budget.totals] == [("acknowledged", 10), ("end to end", 101)]


@pytest.mark.parametrize(("share", "found"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentiles(share: float, found: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == found


def test_the_chart_is_a_fall_of_bars() -> None:
    assert chart(make_budget([RECORD], [1.5], "replicate"), 80) == [
        "                 p50     p99   worst  ms",
        "linger          5.00    5.00    5.00    ███████████████▍",
        "send            0.50    0.50    0.50                   █▌",
        "append          1.50    4.00    4.00 ┐                   ████▋",
        "replicate       2.50                 ┘                        ███████▊",
        "acknowledge     0.50    0.50    0.50                                 █▌",
        "fetch           2.50    2.50    2.50                                 ███████▊",
        "process         1.00    1.00    1.00                                         ███",
        "",
        "acknowledged   10.00   10.00   10.00",
        "end to end     13.00   13.00   13.00",
    ]


spans = st.floats(0, 9e4)


@given(st.lists(st.builds(Times, *[spans] * 7), min_size=1, max_size=30), st.integers(60, 200), st.data())
def test_any_chart_fits_its_width_and_every_hop_has_a_bar(
    records: list[Times], width: int, data: st.DataObject
) -> None:
    twins = data.draw(st.lists(spans, min_size=1, max_size=5))
    lines = chart(make_budget(records, twins, "replicate"), width)
    assert all(len(line) <= width for line in lines)
    assert sum(line[-1:] in "▏▎▍▌▋▊▉█" and bool(line) for line in lines) == 7


def test_times_that_no_clock_can_tell_apart_from_none() -> None:
    lines = chart(make_budget([Times(0.0, 0.0, 0.0, 0.0, 5e-324, 0.0, 0.0)], [0.0], "replicate"), 80)
    assert sum(line[-1:] in "▏▎▍▌▋▊▉█" and bool(line) for line in lines) == 7
