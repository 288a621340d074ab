"""Simulated readers see everything, in any version, and go on after a restart."""

from __future__ import annotations

import pytest

from millpond.sim.history.records import Content, Promise


@pytest.mark.parametrize("version", [4, 7, 12, 13, 18])
def test_a_reader_sees_everything_from_every_partition(one_node, version: int) -> None:
    producer = one_node.producer(version=13)
    reader = one_node.reader(version=version, max_bytes=200, keep=True)
    reader.start()
    for number, content in enumerate(one_node.contents(20)):
        producer.produce(one_node.partitions[number % 2], [content], Promise.SURVIVES)
    assert one_node.sim.run_until(lambda: reader.records_read == 20)
    for number, partition in enumerate(one_node.partitions):
        records = reader.views[partition].records
        assert records is not None
        assert [Content.of(record).tag for record in records.values()] == [f"tag{n}" for n in range(number, 20, 2)]
    assert one_node.history.violations == []


def test_a_reader_goes_on_after_a_restart(one_node) -> None:
    producer = one_node.producer()
    reader = one_node.reader()
    reader.start()
    producer.produce(one_node.partitions[0], one_node.contents(3), Promise.SURVIVES)
    assert one_node.sim.run_until(lambda: reader.records_read == 3)
    one_node.node.restart()
    producer.produce(one_node.partitions[0], one_node.contents(2), Promise.SURVIVES)
    assert one_node.sim.run_until(lambda: reader.records_read == 5)


def test_a_reader_that_leaves_a_partition_reads_the_rest(one_node) -> None:
    producer, reader = one_node.producer(), one_node.reader()
    reader.start()
    one_node.sim.run_for(50)
    reader.leave(one_node.partitions[0])
    for partition in one_node.partitions:
        producer.produce(partition, one_node.contents(3), Promise.SURVIVES)
    assert one_node.sim.run_until(lambda: reader.records_read == 3)
    reader.follow(one_node.partitions[0])
    assert one_node.sim.run_until(lambda: reader.records_read == 6)


def test_a_high_watermark_that_falls_within_one_life_is_a_violation(one_node) -> None:
    producer, reader = one_node.producer(), one_node.reader()
    reader.start()
    producer.produce(one_node.partitions[0], one_node.contents(3), Promise.SURVIVES)
    assert one_node.sim.run_until(reader.is_at_end)
    reader.views[one_node.partitions[0]].high_watermark = 9
    producer.produce(one_node.partitions[0], one_node.contents(1), Promise.SURVIVES)
    one_node.sim.run_for(1000)
    assert "fell from 9 to" in one_node.history.violations[0]


def test_lost_unacknowledged_records_are_read_over(one_node) -> None:
    """A reader ahead of a log that has lost its tail goes back to the log's end."""
    producer, reader = one_node.producer(), one_node.reader()
    producer.produce(one_node.partitions[0], one_node.contents(3), Promise.SURVIVES)
    assert one_node.sim.run_until(producer.is_idle)
    reader.views[one_node.partitions[0]].position = 7
    reader.start()
    one_node.sim.run_for(500)
    assert reader.views[one_node.partitions[0]].position == 3
