"""Simulated producers keep their word: each batch is settled once, as what was heard of it."""

from __future__ import annotations

from millpond.sim.history.records import Content, Promise, Status


def test_an_idempotent_producer_writes_each_batch_once_through_lost_replies(one_node) -> None:
    producer = one_node.producer()
    for number in range(30):
        producer.produce(one_node.partitions[0], [one_node.contents(31)[number]], Promise.SURVIVES)
        if number % 7 == 3:
            one_node.sim.run_for(8)
            producer.client.disconnect()
    assert one_node.sim.run_until(producer.is_idle)
    assert [batch.status for batch in one_node.history.batches] == [Status.ACKNOWLEDGED] * 30
    assert [batch.base_offset for batch in one_node.history.batches] == list(range(30))
    assert max(batch.attempts for batch in one_node.history.batches) > 1


def test_a_refused_batch_is_settled_as_refused_and_the_rest_goes_on(one_node) -> None:
    producer = one_node.producer()
    old = [Content("late", None, b"", one_node.sim.clock.wall_ms() + 7_200_000)]
    refused = producer.produce(one_node.partitions[0], old, Promise.SURVIVES)
    assert one_node.sim.run_until(producer.is_idle)
    fine = producer.produce(one_node.partitions[0], one_node.contents(1), Promise.SURVIVES)
    assert one_node.sim.run_until(producer.is_idle)
    assert (refused.status, fine.status, fine.base_offset) == (Status.REFUSED, Status.ACKNOWLEDGED, 0)
    assert fine.producer_id != refused.producer_id


def test_without_acknowledgements_nothing_is_known(one_node) -> None:
    producer = one_node.producer(acks=0, idempotent=False)
    batch = producer.produce(one_node.partitions[0], one_node.contents(2), Promise.NOTHING)
    assert batch.status is Status.UNKNOWN


def test_what_is_given_up_unsent_was_not_written(one_node) -> None:
    producer = one_node.producer()
    batch = producer.produce(one_node.partitions[0], one_node.contents(2), Promise.SURVIVES)
    producer.close()
    assert batch.status is Status.REFUSED
