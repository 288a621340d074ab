"""From times to a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.admin.trace.hops import Budget, Times, make_budget, percentile

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


@pytest.mark.parametrize(("share", "actual"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentiles(share: float, actual: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == actual
