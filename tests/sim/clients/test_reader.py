"""Simulated readers see everything, in any version, and go on after a restart."""

from __future__ import annotations

import pytest

from millpond.sim.history.records import Content, Promise


@pytest.mark.parametrize("version", [4, 7, 12, 13, 18])
def test_a_reader_sees_everything_from_every_partition(pond, version: int) -> None:
    producer = pond.producer(version=13)
    reader = pond.reader(version=version, max_bytes=200, keep=True)
    reader.start()
    for number, content in enumerate(pond.contents(20)):
        producer.produce(pond.partitions[number % 2], [content], Promise.SURVIVES)
    assert pond.sim.run_until(lambda: reader.records_read == 20)
    for number, partition in enumerate(pond.partitions):
        records = reader.views[partition].records
        assert records is not None
        assert [Content.of(record).tag for record in records.values()] == [f"tag{n}" for n in range(number, 20, 2)]
    assert pond.history.violations == []


def test_a_reader_goes_on_after_a_restart(pond) -> None:
    producer = pond.producer()
    reader = pond.reader()
    reader.start()
    producer.produce(pond.partitions[0], pond.contents(3), Promise.SURVIVES)
    assert pond.sim.run_until(lambda: reader.records_read == 3)
    pond.node.restart()
    producer.produce(pond.partitions[0], pond.contents(2), Promise.SURVIVES)
    assert pond.sim.run_until(lambda: reader.records_read == 5)


def test_a_reader_that_leaves_a_partition_reads_the_rest(pond) -> None:
    producer, reader = pond.producer(), pond.reader()
    reader.start()
    pond.sim.run_for(50)
    reader.leave(pond.partitions[0])
    for partition in pond.partitions:
        producer.produce(partition, pond.contents(3), Promise.SURVIVES)
    assert pond.sim.run_until(lambda: reader.records_read == 3)
    reader.follow(pond.partitions[0])
    assert pond.sim.run_until(lambda: reader.records_read == 6)


def test_a_high_watermark_that_falls_within_one_life_is_a_violation(pond) -> None:
    producer, reader = pond.producer(), pond.reader()
    reader.start()
    producer.produce(pond.partitions[0], pond.contents(3), Promise.SURVIVES)
    assert pond.sim.run_until(reader.is_at_end)
    reader.views[pond.partitions[0]].high_watermark = 9
    producer.produce(pond.partitions[0], pond.contents(1), Promise.SURVIVES)
    pond.sim.run_for(1000)
    assert "fell from 9 to" in pond.history.violations[0]


def test_lost_unacknowledged_records_are_read_over(pond) -> None:
    """A reader ahead of a log that has lost its tail goes back to the log's end."""
    producer, reader = pond.producer(), pond.reader()
    producer.produce(pond.partitions[0], pond.contents(3), Promise.SURVIVES)
    assert pond.sim.run_until(producer.is_idle)
    reader.views[pond.partitions[0]].position = 7
    reader.start()
    pond.sim.run_for(500)
    assert reader.views[pond.partitions[0]].position == 3
