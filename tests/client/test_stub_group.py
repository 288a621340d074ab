"""The stub group: each partition has a reader, in whatever order its members hear of changes."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from client.stub_group import TOPIC, Group, StubConsumer, StubProducer


def joined(group: Group, on_assign: Any = StubConsumer.incremental_assign) -> StubConsumer:
    member = StubConsumer(group)
    member.subscribe([TOPIC], on_assign, lambda *_: None, lambda *_: None)
    return member


def is_read(group: Group) -> bool:
    return all(holder is not None and name in holder.owned for name, holder in group.holders.items())


@pytest.mark.parametrize("seed", range(8))
def test_a_member_that_is_removed_while_it_takes_up_a_partition(seed: int) -> None:
    group = Group(seed, partitions=2, move_chance=0.0, lose_chance=0.0)

    def on_assign(member: StubConsumer, raws: list[TopicPartition]) -> None:
        if raws[0].partition == 1 and not group.losses:
            # Another member polls between the two steps of this one: the group has given it the partition, and it has
            # not taken it up yet.
            group.lose(member)
        member.incremental_assign(raws)

    members = [joined(group, on_assign), joined(group)]
    for each in [*members, *members]:
        each.pop(100)
    assert group.losses == 1
    assert is_read(group), group.describe()


def test_an_order_of_an_earlier_holding_counts_for_nothing() -> None:
    group = Group(1, partitions=1, move_chance=0.0, lose_chance=0.0)
    member = joined(group)
    given = group.terms.copy()
    group.lose(member)
    group.lose(member)
    member.pop(100)
    assert is_read(group)
    assert member.terms == {name: term + 2 for name, term in given.items()}


def test_a_partition_waits_for_the_outcome_of_a_transaction() -> None:
    group = Group(1, partitions=1, records_each=20, move_chance=0.0, lose_chance=0.0)
    first = joined(group)
    first.pop(1)
    producer = StubProducer(group)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 7)], first, 1.0)
    group.leave(first)
    second = joined(group)
    assert [second.pop(10), second.pop(10)] == [[], []]
    producer.commit_transaction(1.0)
    assert second.pop(1)[0].offset() == 7
