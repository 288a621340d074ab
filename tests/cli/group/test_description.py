"""How a description is worded."""

from __future__ import annotations

import pytest

from millpond.admin.groups import Group
from millpond.admin.lag import GroupLag, PartitionLag
from millpond.base.ids import TopicPartition
from millpond.cli.group.description import pace, print_group, show_partitions


@pytest.mark.parametrize(
    ("partitions", "shown"),
    [
        ([], ""),
        ([("t", 0)], "t 0"),
        ([("t", 0), ("t", 1)], "t 0-1"),
        ([("t", 3), ("t", 0), ("t", 2), ("t", 7), ("s", 1)], "s 1; t 0, 2-3, 7"),
    ],
)
def test_partitions_are_shown_as_ranges(partitions: list[tuple[str, int]], shown: str) -> None:
    assert show_partitions(TopicPartition(*each) for each in partitions) == shown


def reading(read: float | None, written: float) -> GroupLag:
    partition = PartitionLag("t", 0, None, 0, 900, 0, 900, 0, None, read, written)
    return GroupLag(Group("g", "empty", "classic", "", ""), (partition,))


@pytest.mark.parametrize(
    ("read", "written", "message"),
    [
        (None, 0.0, ""),
        (0.0, 5.0, ""),
        (9.0, 0.0, "\nreads 9.0/s: caught up in 1m 40s"),
        (1000.0, 2000.0, "\nreads 1,000/s, while 2,000/s come in: it does not catch up"),
    ],
)
def test_the_pace_says_where_it_leads(read: float | None, written: float, message: str) -> None:
    assert pace(reading(read, written)) == message


def test_lost_records_and_lag_without_a_committed_offset_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    counted = PartitionLag("t", 0, None, 0, 900, 895, 5, 7, None, None, None)
    uncommitted = PartitionLag("t", 1, None, 100, 1500, None, 1400, 0, None, None, None)
    print_group(GroupLag(Group("g", "empty", "classic", "", ""), (counted, uncommitted)))
    result = capsys.readouterr().out
    assert result.startswith("g: empty, 0 members, lag 1,405 records\n")
    assert result.endswith(
        "\nThe lag includes 1,400 records in partitions without a committed offset; readers with "
        "auto.offset.reset=latest skip them.\n"
        "\n7 records were deleted before this group read them: retention is too short for it.\n"
    )
