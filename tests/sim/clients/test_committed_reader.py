"""A reader of committed records is shown those and nothing else, and notices what it should not be shown."""

from __future__ import annotations

from millpond.sim.clients.committed_reader import CommittedReader
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Promise
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch


def reader_of(one_node) -> tuple[CommittedReader, CoordinationHistory]:
    history = CoordinationHistory()
    topic = GroupTopic("t", one_node.partitions[0].topic_id, 2)
    return CommittedReader(one_node.sim.clock, one_node.client("reader"), history, topic), history


def test_records_outside_of_transactions_are_shown_once_and_in_order(one_node) -> None:
    producer = one_node.producer()
    for partition in one_node.partitions:
        producer.produce(partition, one_node.contents(3), Promise.SURVIVES)
    assert one_node.sim.run_until(producer.is_idle)
    reader, history = reader_of(one_node)
    reader.start()
    assert one_node.sim.run_until(reader.is_at_end)
    assert sorted((each.partition, each.offset) for each in reader.shown) == [
        (p, o) for p in (0, 1) for o in range(3)
    ]
    assert history.violations == []


def part(data: bytes, stable: int, end: int, aborted: list[tuple[int, int]]) -> m.FetchResponse.PartitionData:
    kind = m.FetchResponse.AbortedTransaction
    return m.FetchResponse.PartitionData(
        partition_index=0,
        high_watermark=end,
        last_stable_offset=stable,
        aborted_transactions=[kind(producer_id=producer, first_offset=first) for producer, first in aborted],
        records=memoryview(data),
    )


def batch(offset: int, producer: int, value: bytes) -> bytes:
    return encode_batch(
        [Record(offset, 0, None, value)], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def test_what_was_aborted_is_left_out(one_node) -> None:
    reader, history = reader_of(one_node)
    reader._take(part(batch(0, 7, b"kept") + batch(1, 8, b"dropped"), 2, 2, [(8, 1)]))
    assert [each.tag for each in reader.shown] == ["kept"]
    assert history.violations == []


def test_what_is_not_stable_yet_is_found(one_node) -> None:
    reader, history = reader_of(one_node)
    reader._take(part(batch(0, 7, b"early"), 0, 1, []))
    assert len(history.violations) == 1


def test_a_stable_offset_that_falls_is_found(one_node) -> None:
    reader, history = reader_of(one_node)
    reader._take(part(b"", 5, 9, []))
    reader._take(part(b"", 4, 9, []))
    assert len(history.violations) == 1
