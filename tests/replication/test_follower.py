"""The follower's half of replication: what it asks for, and what it makes of the answers."""

from __future__ import annotations

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.replication.follower import Append, AskAgain, Fetched, FetchFrom, PartitionFollower, Restart, Truncate
from millpond.sim.machines.memory_log import MemoryLog


class Emptied(MemoryLog):
    """Of which everything was deleted."""

    start_offset = end_offset = 3  # type: ignore[assignment]


def follow(*epochs: int, high_watermark: int = 0) -> PartitionFollower:
    log = MemoryLog()
    for epoch in epochs:
        log.append(epoch, epoch * 100)
    return PartitionFollower(2, 9, log, high_watermark)


def test_it_asks_from_the_end_of_its_log_and_not_from_its_high_watermark() -> None:
    assert follow(1, 1, 3, high_watermark=1).fetch() == FetchFrom(9, 3, 3)


def test_records_are_taken_as_they_are() -> None:
    follower = follow(1)
    assert follower.on_response(follower.fetch(), Fetched(ErrorCode.NONE, 1, records=b"abc")) == [Append(b"abc")]


def test_logs_part_where_the_older_epoch_ended_first() -> None:
    for diverging, offset in ((EpochEnd(1, 9), 2), (EpochEnd(1, 1), 1), (EpochEnd(3, 3), 3), (EpochEnd(0, 0), 0)):
        follower = follow(1, 1, 3, 3)
        assert follower.on_response(follower.fetch(), Fetched(ErrorCode.NONE, diverging=diverging)) == [
            Truncate(offset)
        ]


def test_a_log_that_ends_below_the_evidence_floor_starts_over() -> None:
    outdated = Fetched(ErrorCode.NONE, start_offset=2, diverging=EpochEnd(0, 0), evidence_floor=5)
    follower = follow(1, 1, 3, 3)
    assert follower.on_response(follower.fetch(), outdated) == [Restart(2, is_outdated=True)]


def test_a_truncation_says_nothing_about_the_high_watermark() -> None:
    follower = follow(1, 1, 3, 3, high_watermark=2)
    fetched = Fetched(ErrorCode.NONE, 4, diverging=EpochEnd(1, 9))
    follower.on_response(follower.fetch(), fetched)
    follower.follow_high_watermark(fetched)
    assert follower.high_watermark == 2


def test_the_high_watermark_is_the_leaders_as_far_as_the_log_goes() -> None:
    follower = follow(1, 1)
    follower.follow_high_watermark(Fetched(ErrorCode.NONE, 7))
    assert follower.high_watermark == 2
    follower.follow_high_watermark(Fetched(ErrorCode.NONE, 1))
    assert follower.high_watermark == 2


def test_an_answer_to_another_question_is_no_answer() -> None:
    follower = follow(1)
    late = follower.fetch()
    follower.fetch()
    assert follower.on_response(late, Fetched(ErrorCode.NONE, 1, records=b"abc")) == []


def test_out_of_range_is_a_longer_log_here_or_a_later_start_there() -> None:
    for fetched, effect in (
        (Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, start_offset=0, end_offset=1), Truncate(1)),
        (Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, start_offset=7, end_offset=9), Restart(7)),
        (Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, start_offset=0, end_offset=3), AskAgain()),
        (Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER), AskAgain()),
    ):
        follower = follow(1, 1, 1)
        assert follower.on_response(follower.fetch(), fetched) == [effect]


def test_a_follower_with_nothing_in_common_restarts_its_log() -> None:
    """The leader was elected without records: to cut to the own start would come to nothing, again and again."""
    follower = follow(1, 1, 1)
    follower.log = Emptied()
    fetched = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, start_offset=0, end_offset=1)
    assert follower.on_response(follower.fetch(), fetched) == [Restart(0)]
