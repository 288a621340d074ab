"""Queues as values: sums, rates, and what a cluster without windows leaves unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.admin.groups import SHARE, STABLE, Group
from millpond.admin.queues import jobs
from millpond.admin.queues.compare import rates_between
from millpond.admin.queues.jobs import UNKNOWN, WAITING
from millpond.admin.queues.offsets import LeaderWindow, Window
from millpond.admin.queues.queue import Holder, Queue, QueueName, QueuePartition, Totals, sum_known
from millpond.wire import messages as m

GROUP = Group("g", STABLE, SHARE, "simple", "127.0.0.1:9092")
NAME = QueueName("g", "t")


def queue(*partitions: QueuePartition) -> Queue:
    return Queue(NAME, GROUP, partitions)


def known(number: int = 0, *, end: int = 10, waiting: int = 4, out: int = 2, delivered: int = 5) -> QueuePartition:
    return QueuePartition(
        number, 1, 0, end, waiting, out, 1, 0, 3, totals=Totals(delivered=delivered), oldest_age_ms=number
    )


def test_a_queue_adds_up_what_is_known() -> None:
    unread = QueuePartition(2, 1, None, 7, None)
    found = queue(known(0), known(1), unread)
    assert (found.waiting, found.out, found.delayed, found.archiving, found.unfinished) == (8, 4, 2, 0, 14)
    assert (found.oldest_age_ms, found.not_started) == (1, (2,))
    assert found.totals == Totals(delivered=10)
    nothing = queue(unread)
    assert (nothing.waiting, nothing.out, nothing.totals, nothing.oldest_age_ms) == (0, None, None, None)
    assert sum_known([None, 3, None, 4]) == 7
    assert sum_known([None]) is None


def test_a_member_with_records_of_two_partitions_is_one_holder() -> None:
    first = replace(known(0), holders=(Holder("m", "c", "h", 2, 900), Holder("n", None, None, 9, 100)))
    second = replace(known(1), holders=(Holder("m", "c", "h", 5, 300),))
    assert queue(first, second).holders == (Holder("n", None, None, 9, 100), Holder("m", "c", "h", 7, 300))


def test_rates_are_those_between_two_looks() -> None:
    before = queue(known(0, end=10, waiting=4, delivered=5))
    now = queue(known(0, end=20, waiting=6, delivered=15), known(1))
    rates = rates_between(before, now, 2.0)
    # Finished: 10 - (4 + 2 + 1) before, 20 - (6 + 2 + 1) now.
    assert (rates.written, rates.delivered, rates.finished) == (5.0, 5.0, 4.0)


def test_counts_that_went_back_are_no_rate_and_unknown_ones_are_none() -> None:
    before = queue(known(0, end=20, waiting=6, delivered=15))
    rates = rates_between(before, queue(known(0, end=10, waiting=4, delivered=5)), 1.0)
    assert (rates.written, rates.delivered, rates.finished) == (0.0, 0.0, 0.0)
    plain = queue(QueuePartition(0, 1, 3, 10, 7))
    rates = rates_between(plain, queue(QueuePartition(0, 1, 8, 10, 2)), 1.0)
    assert (rates.written, rates.delivered, rates.finished) == (0.0, None, 5.0)
    assert rates_between(queue(), plain, 1.0).finished is None


def ranges(*states: tuple[int, int, int, int]) -> list[m.DescribeShareGroupOffsetsResponse.WindowRange]:
    kind = m.DescribeShareGroupOffsetsResponse.WindowRange
    return [kind(first_offset=a, last_offset=b, state=state, deliveries=count) for a, b, state, count in states]


@pytest.mark.parametrize(
    ("offset", "state"),
    [
        (3, ("out", 1)),
        (4, None),
        (5, None),
        (6, ("archiving", 5)),
        (7, ("delayed", 2)),
        (8, (UNKNOWN, None)),
        (9, (WAITING, 0)),
    ],
)
def test_states_are_those_of_the_listed_ranges(offset: int, state: tuple[str, int | None] | None) -> None:
    listed = ranges((3, 3, 1, 1), (4, 4, 2, 0), (5, 5, 4, 0), (6, 6, 3, 5), (7, 7, 5, 2))
    window = LeaderWindow(3, 9, 1, Window(end_offset=9, ranges=listed))
    assert jobs._States(window, is_untouched=False).at(offset) == state


def test_without_a_window_a_state_is_unknown_unless_nothing_was_touched() -> None:
    assert jobs._States(None, is_untouched=True).at(5) == (WAITING, None)
    assert jobs._States(None, is_untouched=False).at(5) == (UNKNOWN, None)
