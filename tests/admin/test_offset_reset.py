"""Resets of a group: the plan, and what it leaves behind."""

from __future__ import annotations

import pytest

from millpond.admin.errors import Refused
from millpond.admin.groups import commit_offsets
from millpond.admin.offset_reset import Shift, Step, apply_reset, plan_agreed, plan_reset
from millpond.admin.offsets import At, Beginning, End, Last, Since
from millpond.admin.topics import delete_records
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import committed_by_group
from millpond.testing import Pond


@pytest.fixture
def group(cluster: Cluster, pond: Pond, topic: str) -> str:
    """It has read 6 of the records 3 to 9 of partition 0, and nothing of partition 1."""
    for number in range(10):
        pond.producer.produce(topic, b"v", partition=0, timestamp=1_000_000 + number)
    pond.producer.flush()
    delete_records(cluster, {TopicPartition(topic, 0): 3})
    commit_offsets(cluster, f"{topic}-group", {TopicPartition(topic, 0): 6})
    return f"{topic}-group"


@pytest.mark.parametrize(
    ("target", "after", "note"),
    [
        (Beginning(), 3, ""),
        (End(), 10, ""),
        (Last(2), 8, ""),
        (Since(1_000_007), 7, ""),
        (Since(2_000_000), 10, ""),
        (At(5), 5, ""),
        (At(1), 3, "the log begins at 3, so 1 became 3."),
        (At(99), 10, "the log ends at 10, so 99 became 10."),
        (Shift(-1), 5, ""),
        (Shift(50), 10, "the log ends at 10, so 56 became 10."),
    ],
)
def test_a_plan_says_what_would_change_and_changes_nothing(
    cluster: Cluster, topic: str, group: str, target: object, after: int, note: str
) -> None:
    zero = TopicPartition(topic, 0)
    plan = plan_reset(cluster, group, [(topic, [0])], target)  # type: ignore[arg-type]
    assert plan.steps == (Step(zero, 6, after, note),)
    assert committed_by_group(cluster, group) == {zero: 6}
    apply_reset(cluster, plan)
    assert committed_by_group(cluster, group) == {zero: after}


def test_what_was_agreed_to_is_done_though_the_log_goes_on(
    cluster: Cluster, pond: Pond, topic: str, group: str
) -> None:
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    seen = plan_reset(cluster, group, [(topic, None)], End())
    assert seen.offsets == {zero: (6, 10), one: (None, 0)}
    pond.produce(topic, "later", partition=0)
    assert plan_reset(cluster, group, [(topic, None)], End()).offsets[zero] == (6, 11)
    plan = plan_agreed(cluster, group, [(topic, None)], seen.offsets)
    assert plan.offsets == seen.offsets
    for topics, agreed in (
        ([(topic, None)], {zero: (6, 10)}),  # another partition has come
        ([(topic, [0])], seen.offsets),  # one has gone
        ([(topic, [0])], {zero: (5, 10)}),  # somebody has read on
        ([(topic, [0])], {zero: (6, 2)}),  # what it should read again is deleted
        ([(topic, [0])], {zero: (6, 99)}),  # nobody was shown that
    ):
        with pytest.raises(Refused, match="changed since the preview"):
            plan_agreed(cluster, group, topics, agreed)  # type: ignore[arg-type]
    apply_reset(cluster, plan)
    assert committed_by_group(cluster, group) == {zero: 10, one: 0}


def test_all_partitions_and_those_with_nothing_committed(cluster: Cluster, topic: str, group: str) -> None:
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    plan = plan_reset(cluster, group, [(topic, None)], At(6))
    assert [(each.partition, each.before, each.after) for each in plan.steps] == [(zero, 6, 6), (one, None, 0)]
    assert [each.partition for each in plan.changes] == [one]
    with pytest.raises(Refused, match="nothing to shift from"):
        plan_reset(cluster, group, [(topic, [1])], Shift(1))
    with pytest.raises(Refused, match="has no partition 7: it has 0 to 1"):
        plan_reset(cluster, group, [(topic, [7])], Beginning())
    with pytest.raises(Refused, match="There is no topic nowhere"):
        plan_reset(cluster, group, [("nowhere", None)], Beginning())


def test_members_would_commit_over_it(cluster: Cluster, pond: Pond, topic: str, group: str) -> None:
    consumer = pond.consumer(group)
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    with pytest.raises(Refused, match="has 1 active member"):
        plan_reset(cluster, group, [(topic, None)], Beginning())
    consumer.close()
