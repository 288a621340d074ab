"""The life of records in a share partition, told in transcripts. A window reads `start| ranges |end`."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from support.share_stage import written

# Acquire


def test_two_members_share_a_partition(stage: Any) -> None:
    assert stage.fetch("A", 5) == "0-4 x1"
    assert stage.fetch("B", 5) == "5-9 x1"
    assert stage.state == "0| 0-4 A x1; 5-9 B x1; |10"
    stage.done("B", (5, 9, "accept"))
    assert stage.state == "0| 0-4 A x1; 5-9 accepted; |10", "the start waits for what is before"
    stage.done("A", (0, 4, "accept"))
    assert stage.state == "10| |10"


def test_whole_batches_are_acquired_unless_the_limit_is_strict(stage: Any) -> None:
    assert stage.fetch("A", 7) == "0-9 x1", "the batch with the seventh record is acquired whole"
    assert stage.fetch("A", 7, mode=1) == "10-16 x1"
    assert stage.fetch("B", 1) == "17-19 x1", "the rest of the batch"


def test_long_ranges_are_split_between_batches(stage: Any) -> None:
    assert stage.fetch("A", 30, batch_size=8) == "0-9 x1, 10-19 x1, 20-29 x1"
    assert stage.state == "0| 0-29 A x1; |30"
    assert stage.fetch("A", 15, batch_size=3, mode=1) == "30-44 x1", "with a record limit, nothing is split"


def test_a_partition_is_full_when_so_many_records_are_unfinished(stage: Any) -> None:
    assert stage.fetch("A", 100) == "0-49 x1"
    assert stage.window.is_full
    assert stage.fetch("B", 1) == ""
    stage.done("A", (10, 19, "release"))
    assert not stage.window.is_full
    assert stage.fetch("B", 100) == "10-19 x2", "what is in the window may be acquired again, and nothing else"
    assert stage.window.is_full
    stage.done("B", (10, 19, "accept"))
    assert not stage.window.is_full, "finished records make room, although the window does not begin later"
    assert stage.fetch("B", 100) == "50-59 x1"


def test_a_slow_record_blocks_nobody(stage: Any) -> None:
    assert stage.fetch("slow", 1, mode=1) == "0 x1"
    for first in range(1, 990, 11):
        assert stage.fetch("quick", 11, mode=1) == f"{first}-{first + 10} x1"
        stage.done("quick", (first, first + 10, "accept"))
    assert stage.state == "0| 0 slow x1; 1-990 accepted; |991"
    assert stage.window.in_flight == 1
    stage.done("slow", (0, 0, "accept"))
    assert stage.state == "991| |991"


# Acknowledge


def test_each_record_has_its_own_verdict(stage: Any) -> None:
    stage.fetch("A", 10)
    change = stage.tell("A", (0, 4, "accept release reject gap accept"), (6, 6, "release"))
    assert written(change) == "0 accepted x1, 1 available x1, 2-3 archived x1, 4 accepted x1, 6 available x1"
    stage.window.commit(change)
    assert stage.state == "1| 1 available x1; 2-3 archived; 4 accepted; 5 A x1; 6 available x1; 7-9 A x1; |10"
    assert stage.fetch("B", 1) == "1 x2", "the batch of the first available record"
    assert stage.fetch("B", 1) == "6 x2"


def test_until_it_is_written_a_verdict_is_nobody_elses_business(stage: Any) -> None:
    stage.fetch("A", 5)
    accepted = stage.tell("A", (0, 1, "accept"))
    released = stage.tell("A", (2, 3, "release"))
    assert stage.state == "0| 0-1 accepted pending; 2-3 available x1 pending; 4 A x1; |5"
    assert stage.refused("A", (0, 0, "accept")) is ErrorCode.INVALID_RECORD_STATE
    assert stage.fetch("B", 1) == "5-9 x1", "what is being released is not available yet"
    stage.window.commit(released)
    assert stage.fetch("B", 1) == "2-3 x2"
    assert stage.window.start_offset == 0
    stage.window.commit(accepted)
    assert stage.window.start_offset == 2


def test_a_verdict_that_was_not_written_was_not_given(stage: Any) -> None:
    stage.fetch("A", 5)
    change = stage.tell("A", (0, 4, "accept"))
    stage.window.roll_back(change, stage.now_ms)
    assert stage.state == "0| 0-4 A x1; |5"
    stage.done("A", (0, 4, "reject"))
    assert stage.state == "5| |5"


def test_only_the_holder_gives_verdicts(stage: Any) -> None:
    stage.fetch("A", 5)
    stage.fetch("B", 5)
    assert stage.refused("B", (0, 4, "accept")) is ErrorCode.INVALID_RECORD_STATE
    assert stage.refused("A", (0, 6, "accept")) is ErrorCode.INVALID_RECORD_STATE, "a part of it is B's"
    assert stage.refused("B", (5, 9, "accept"), (10, 10, "accept")) is ErrorCode.INVALID_REQUEST
    stage.done("A", (2, 2, "release"))
    assert stage.refused("A", (0, 4, "accept")) is ErrorCode.INVALID_RECORD_STATE, "2 is held no longer"
    stage.done("A", (0, 1, "accept"))
    stage.done("A", (0, 1, "accept"))
    assert stage.window.start_offset == 2, "what is before the start is finished, and may be acknowledged again"


@pytest.mark.parametrize(
    "verdicts",
    [
        [(0, 4, "accept accept")],
        [(1, 0, "accept")],
        [(3, 4, "accept"), (0, 1, "accept")],
        [(0, 2, "accept"), (2, 4, "accept")],
        [(0, 4, "")],
    ],
)
def test_malformed_verdicts(stage: Any, verdicts: Any) -> None:
    stage.fetch("A", 5)
    assert stage.refused("A", *verdicts) is ErrorCode.INVALID_REQUEST


def test_a_record_is_archived_when_it_was_tried_often_enough(stage: Any) -> None:
    for attempt in range(1, 5):
        assert stage.fetch("A", 1, mode=1) == f"0 x{attempt}"
        stage.done("A", (0, 0, "release"))
    assert stage.fetch("A", 1) == "0 x5", "alone, although the limit would give the whole batch"
    change = stage.tell("A", (0, 0, "release"))
    assert written(change) == "0 archived x5"
    stage.window.commit(change)
    assert stage.state == "1| |1"


def test_suspects_are_delivered_in_ever_smaller_groups(stage: Any) -> None:
    """One bad record in a batch that is always released as a whole must not take the others with it."""
    stage.log = ((0, 15), (16, 31))
    stage.fetch("A", 32)
    for _ in range(3):
        stage.done("A", (0, 15, "release"))
        got = stage.fetch("A", 32)
    assert got == "0-7 x4", "half of what has had three deliveries, and nothing else"
    stage.done("A", (0, 7, "release"))
    assert stage.fetch("A", 32) == "0 x5", "the last time, alone"
    assert stage.fetch("A", 32) == "1 x5"
    stage.done("A", (0, 0, "release"), (1, 1, "accept"))
    assert stage.state.startswith("2| 2-7 available x4; 8-15 available x3; 16-31 A x1; ")


# Time


def test_a_lock_expires(stage: Any) -> None:
    stage.fetch("A", 5)
    assert stage.window.next_deadline_ms() == 30_000
    stage.done("A", (0, 1, "accept"))
    assert written(stage.pass_time(29_999)) == ""
    change = stage.pass_time(1)
    assert written(change) == "2-4 available x1"
    stage.window.commit(change)
    assert stage.window.next_deadline_ms() is None
    assert stage.fetch("B", 3) == "2-4 x2"
    assert stage.refused("A", (2, 2, "accept")) is ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_lasts_longer(stage: Any) -> None:
    stage.fetch("A", 5)
    stage.pass_time(20_000)
    change = stage.tell("A", (0, 4, "accept renew release renew renew"))
    assert written(change) == "0 accepted x1, 2 available x1", "renewals are not written"
    stage.window.commit(change)
    assert stage.window.next_deadline_ms() == 50_000
    assert written(stage.pass_time(10_000)) == ""
    assert written(stage.pass_time(20_000)) == "1 available x1, 3-4 available x1"


def test_a_release_that_cannot_be_written_is_tried_again(stage: Any) -> None:
    stage.fetch("A", 5)
    change = stage.pass_time(30_000)
    stage.window.roll_back(change, stage.now_ms)
    assert stage.state == "0| 0-4 A x1; |5", "a record comes again only with its count written down"
    assert stage.window.next_deadline_ms() == 31_000
    assert written(stage.pass_time(1_000)) == "0-4 available x1"


def test_a_member_leaves(stage: Any) -> None:
    stage.fetch("A", 5)
    stage.fetch("B", 5)
    stage.fetch("A", 5)
    change = stage.window.release_member("A", were_delivered=False)
    assert written(change) == "0-4 available x0, 10-14 available x0", "its application has not seen them"
    stage.window.commit(change)
    assert stage.fetch("C", 1) == "0-4 x1"
    change = stage.window.release_member("C", were_delivered=True)
    assert written(change) == "0-4 available x1", "they may have ended it"


# The log


def test_what_members_cannot_see_is_archived_on_the_way(stage: Any) -> None:
    """Compaction has removed 5 to 9, and 15 is a control batch."""
    stage.log = ((0, 4), (10, 14), (16, 20))
    assert stage.fetch("A", 12) == "0-4 x1, 10-14 x1, 16-20 x1"
    assert stage.state == "0| 0-4 A x1; 5-9 archived; 10-14 A x1; 15 archived; 16-20 A x1; |21"
    assert stage.window.delivery_complete_count == 6


def test_a_log_that_ends_in_control_batches(stage: Any) -> None:
    stage.log = ((0, 4),)
    assert stage.fetch("A", 50, read=8) == "0-4 x1"
    assert stage.window.next_fetch_offset() == 8


def test_records_that_compaction_removed_while_they_waited(stage: Any) -> None:
    stage.fetch("A", 15)
    stage.done("A", (0, 14, "release"))
    stage.log = ((10, 14), (15, 19))
    assert stage.fetch("A", 5) == "10-14 x2"
    assert stage.state == "10| 10-14 A x2; |15"


def test_retention_passes_the_window(stage: Any) -> None:
    stage.fetch("A", 10)
    stage.done("A", (2, 3, "release"))
    change = stage.tell("A", (4, 6, "accept"))
    stage.window.advance_start(3)
    assert stage.state == "3| 3 available x1; 4-6 accepted pending; 7-9 A x1; |10"
    stage.done("A", (0, 2, "accept"))
    stage.window.advance_start(6)
    stage.window.commit(change)
    assert stage.state == "7| 7-9 A x1; |10"
    stage.window.advance_start(100)
    assert stage.state == "100| |100"
    assert (stage.window.in_flight, stage.window.held_count, stage.window.next_deadline_ms()) == (0, 0, None)
    assert stage.fetch("B", 5) == "100-104 x1"


# Leader changes


def test_what_was_read_for_an_earlier_window_is_not_acquired(stage: Any) -> None:
    got = stage.window.acquire("A", 5, 9, 0, max_records=5, batch_size=5, mode=0, batches=[(5, 9)])
    assert (got, stage.state) == ([], "0| |0"), "0 to 4 would be left out"


def test_a_new_leader_finds_what_was_written(load_stage: Any) -> None:
    stage = load_stage(3, [(3, 3, "available", 4), (6, 9, "accepted", 1), (10, 11, "available", 1)])
    assert stage.state == "3| 3 available x4; 4-5 available; 6-9 accepted; 10-11 available x1; |12"
    assert stage.fetch("A", 100) == "3 x5", "a record on its last delivery comes alone"
    assert stage.fetch("A", 1) == "4 x1", "what was held by members of the old leader is available, as if untouched"


def test_a_new_leader_after_everything_was_finished(load_stage: Any) -> None:
    assert load_stage(3, [(0, 9, "accepted", 1)]).state == "10| |10"
    assert load_stage(3, []).state == "3| |3"


def test_the_start_offset_that_is_written_is_certain(stage: Any) -> None:
    """After a failed write another verdict may follow, so the start does not depend on writes that have not ended."""
    stage.fetch("A", 10)
    first = stage.tell("A", (0, 4, "accept"))
    second = stage.tell("A", (5, 9, "accept"))
    assert (first.start_offset, second.start_offset) == (0, 0)
    stage.window.commit(first)
    stage.window.roll_back(second, 0)
    assert stage.tell("A", (5, 9, "accept")).start_offset == 5
