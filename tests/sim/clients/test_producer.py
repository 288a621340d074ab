"""Simulated producers keep their word: each batch is settled once, as what was heard of it."""

from __future__ import annotations

from millpond.sim.history.records import Content, Promise, Status


def test_an_idempotent_producer_writes_each_batch_once_through_lost_replies(pond) -> None:
    producer = pond.producer()
    for number in range(30):
        producer.produce(pond.partitions[0], [pond.contents(31)[number]], Promise.SURVIVES)
        if number % 7 == 3:
            pond.sim.run_for(8)
            producer.client.disconnect()
    assert pond.sim.run_until(producer.is_idle)
    assert [batch.status for batch in pond.history.batches] == [Status.ACKNOWLEDGED] * 30
    assert [batch.base_offset for batch in pond.history.batches] == list(range(30))
    assert max(batch.attempts for batch in pond.history.batches) > 1


def test_a_refused_batch_is_settled_as_refused_and_the_rest_goes_on(pond) -> None:
    producer = pond.producer()
    old = [Content("late", None, b"", pond.sim.clock.wall_ms() + 7_200_000)]
    refused = producer.produce(pond.partitions[0], old, Promise.SURVIVES)
    assert pond.sim.run_until(producer.is_idle)
    fine = producer.produce(pond.partitions[0], pond.contents(1), Promise.SURVIVES)
    assert pond.sim.run_until(producer.is_idle)
    assert (refused.status, fine.status, fine.base_offset) == (Status.REFUSED, Status.ACKNOWLEDGED, 0)
    assert fine.producer_id != refused.producer_id


def test_without_acknowledgements_nothing_is_known(pond) -> None:
    producer = pond.producer(acks=0, idempotent=False)
    batch = producer.produce(pond.partitions[0], pond.contents(2), Promise.NOTHING)
    assert batch.status is Status.UNKNOWN


def test_what_is_given_up_unsent_was_not_written(pond) -> None:
    producer = pond.producer()
    batch = producer.produce(pond.partitions[0], pond.contents(2), Promise.SURVIVES)
    producer.close()
    assert batch.status is Status.REFUSED
