"""Which queues need attention."""

from __future__ import annotations

import pytest

from millpond.admin.concerns import Concern, QueueLate, QueueUnread, find_concerns
from millpond.admin.groups import EMPTY, SHARE, STABLE, Group, Member
from millpond.admin.health import Health
from millpond.admin.nodes import ClusterFacts
from millpond.admin.queues.queue import Queue, QueueName, QueuePartition
from millpond.cli.status import problem

BEHIND_MS = 60_000


def queue(members: int, waiting: int, age_ms: int | None, delayed: int = 0) -> Queue:
    state = STABLE if members else EMPTY
    group = Group(
        "g", state, SHARE, "simple", "h:1", tuple(Member(f"m{at}", None, "c", "h") for at in range(members))
    )
    partition = QueuePartition(0, 1, 0, 9, waiting, 0, delayed, 0, oldest_age_ms=age_ms)
    return Queue(QueueName("g", "t"), group, (partition,))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (queue(0, 5, 90_000), [QueueUnread("t", "g", 5)]),
        (queue(0, 5, 30_000), []),
        (queue(0, 0, None), []),
        (queue(2, 5, 90_000), [QueueLate("t", "g", 90_000, 5, 2)]),
        (queue(2, 5, 60_000), []),
        # What is only delayed is not late.
        (queue(2, 0, 90_000, delayed=4), []),
        (queue(2, 1, 90_000, delayed=4), [QueueLate("t", "g", 90_000, 5, 2)]),
    ],
)
def test_a_queue_is_late_or_unread(found: Queue, expected: list[Concern]) -> None:
    health = Health(ClusterFacts("c", (), ()), (), (), 0, "", (found,))
    assert list(find_concerns(health, BEHIND_MS)) == expected


def test_the_problem_in_a_sentence() -> None:
    assert problem(QueueUnread("t", "g", 1)) == "Queue t of group g has no members: 1 record waiting."
    assert problem(QueueLate("t", "g", 90_000, 1_500, 1)) == (
        "The oldest record of queue t of group g is 1m 30s old: 1,500 unfinished, 1 member."
    )
