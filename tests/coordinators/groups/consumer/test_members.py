from __future__ import annotations

from uuid import UUID

from millpond.coordinators.groups.consumer.members import (
    CurrentAssignment,
    MemberState,
    TopicIdPartition,
    by_topic,
    from_topics,
)

ONE, TWO = UUID(int=1), UUID(int=2)


def test_partitions_are_listed_by_topic_in_order_and_come_back() -> None:
    partitions = frozenset(TopicIdPartition(topic, number) for topic in (TWO, ONE) for number in (3, 1))
    assert by_topic(partitions) == [(ONE, [1, 3]), (TWO, [1, 3])]
    assert from_topics(by_topic(partitions)) == partitions
    assert by_topic(()) == []


def test_the_last_epoch_is_remembered_only_when_it_changes() -> None:
    current = CurrentAssignment(epoch=4, previous_epoch=2)
    assert current.at_epoch(4) is current
    assert current.at_epoch(7) == CurrentAssignment(epoch=7, previous_epoch=4)


def test_reconciled_means_stable_in_the_epoch_of_the_target() -> None:
    assert CurrentAssignment(4).is_reconciled(4)
    assert not CurrentAssignment(4).is_reconciled(5)
    assert not CurrentAssignment(4, state=MemberState.UNRELEASED).is_reconciled(4)
