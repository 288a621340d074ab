"""Reading ranges: codecs, transactions, crashes, and missing offsets."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from confluent_kafka import Producer

from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import OffsetsGone
from millpond.remote.reader import RawBatch, first_or_end, first_records, read_range, read_records, stamp
from millpond.wire import kernel
from millpond.wire.records import Record
from support.node import Node
from support.topics import create_topic, delete_records


def rows(batches: Iterable[RawBatch], start: int, end: int) -> list[tuple[int, bytes | None]]:
    result = []
    for header, payload in batches:
        append_time = header.max_timestamp if header.is_append_time else None
        decoded = kernel.decode_records(
            payload, header.record_count, header.base_offset, header.base_timestamp, append_time
        )
        result += [(offset, value) for offset, _, _, value, _ in decoded if start <= offset < end]
    return result


def value_of(record: Record) -> bytes | None:
    return record.value


def fill(node: Node, topic: str, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "batch.num.messages": 50, "linger.ms": 5, **settings})
    for number in range(count):
        producer.produce(topic, b"%d" % number * 10, partition=0)
    producer.flush()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_range_has_every_record_once(node: Node, topic: str, codec: str) -> None:
    fill(node, topic, 500, **{"compression.type": codec})
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        partition = TopicPartition(topic, 0)
        expected = [(number, b"%d" % number * 10) for number in range(500)]
        assert rows(read_range(cluster, partition, 0, 500), 0, 500) == expected
        # A few hundred bytes at a time, so that every batch is a separate request.
        assert rows(read_range(cluster, partition, 7, 321, fetch_bytes=300), 7, 321) == expected[7:321]
        assert list(read_range(cluster, partition, 9, 9)) == []


def test_a_reader_that_stops_early_leaves_the_cluster_usable(node: Node, topic: str) -> None:
    fill(node, topic, 500)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        reader = read_range(cluster, TopicPartition(topic, 0), 0, 500, fetch_bytes=300)
        next(reader)
        reader.close()  # type: ignore[attr-defined]
        assert len(rows(read_range(cluster, TopicPartition(topic, 0), 0, 500), 0, 500)) == 500


def test_read_committed_leaves_out_aborted_records(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    writers = [
        Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"{topic}-{name}"}) for name in "ab"
    ]
    for writer in writers:
        writer.init_transactions(10)
    expected = []
    for number in range(12):
        # Two at a time, so that their records interleave.
        for name, writer in zip(b"ab", writers, strict=True):
            writer.begin_transaction()
            for part in range(3):
                writer.produce(topic, b"%c %d %d" % (name, number, part), partition=0)
                writer.flush()
        for name, writer in zip(b"ab", writers, strict=True):
            if (number + name) % 3:
                writer.commit_transaction(10)
                expected += [b"%c %d %d" % (name, number, part) for part in range(3)]
            else:
                writer.abort_transaction(10)
    end = 12 * 2 * 4
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        partition = TopicPartition(topic, 0)
        everything = rows(read_range(cluster, partition, 0, end), 0, end)
        assert len(everything) == 72
        for fetch_bytes in (1, 700, 1 << 20):
            committed = rows(
                read_range(cluster, partition, 0, end, isolation="read_committed", fetch_bytes=fetch_bytes), 0, end
            )
            assert sorted(value for _, value in committed) == sorted(expected)  # type: ignore[type-var]
        # Starting in the middle of an aborted transaction.
        late = rows(read_range(cluster, partition, 5, end, isolation="read_committed", fetch_bytes=200), 5, end)
        assert late == [each for each in committed if each[0] >= 5]


def test_missing_offsets_are_named(node: Node, topic: str) -> None:
    fill(node, topic, 100)
    delete_records(node.bootstrap, topic, 0, 40)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        with pytest.raises(OffsetsGone) as early:
            list(read_range(cluster, TopicPartition(topic, 0), 10, 100))
        assert (early.value.requested, early.value.earliest, early.value.latest) == (10, 40, 100)
        with pytest.raises(OffsetsGone) as late:
            list(read_range(cluster, TopicPartition(topic, 0), 200, 300))
        assert (late.value.requested, late.value.latest) == (299, 100)
        with pytest.raises(OffsetsGone):
            list(read_range(cluster, TopicPartition(topic, 0), 90, 120))


def test_a_restarted_node_is_awaited(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    fill(node, topic, 2000)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        reader = read_range(cluster, TopicPartition(topic, 0), 0, 2000, fetch_bytes=300)
        result = rows([next(reader)], 0, 2000)
        node.restart(crash=True)
        result += rows(reader, 0, 2000)
    assert [offset for offset, _ in result] == list(range(2000))


def test_a_slow_reader_survives_a_closed_connection(node: Node, topic: str) -> None:
    """A broker closes connections that are idle for ten minutes, and a slow redrive may need longer per response."""
    fill(node, topic, 500)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        partition = TopicPartition(topic, 0)
        reader = read_range(cluster, partition, 0, 500, fetch_bytes=300, patience_seconds=0.5)
        result = rows([next(reader)], 0, 500)
        time.sleep(0.6)
        cluster.leader(*partition)._socket.close()
        result += rows(reader, 0, 500)
    assert [offset for offset, _ in result] == list(range(500))


def test_the_first_records_of_many_partitions(node: Node, topic: str) -> None:
    """Markers and aborted records are skipped; empty partitions are left out."""
    create_topic(node.bootstrap, topic, 80)
    plain = Producer({"bootstrap.servers": node.bootstrap})
    for index in range(70):
        plain.produce(topic, b"plain %d" % index, partition=index)
    plain.flush()
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"{topic}-t"})
    producer.init_transactions(10)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=70)
        producer.flush()
        end(10)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        starts = {TopicPartition(topic, index): 0 for index in range(80)}
        committed = first_records(cluster, starts, value_of, isolation="read_committed")
        assert {each.partition: value for each, value in committed.items()} == {
            **{index: b"plain %d" % index for index in range(70)},
            70: b"committed",
        }
        seventy = TopicPartition(topic, 70)
        assert first_records(cluster, {seventy: 0}, value_of) == {seventy: b"aborted"}
        # Offsets 1 and 3 are markers; 4 is the end, 99 is beyond it.
        for start, offsets in ((1, [2]), (3, []), (4, []), (99, [])):
            assert [each.offset for each in first_records(cluster, {seventy: start}, stamp).values()] == offsets
        assert [first_or_end(cluster, {seventy: start}) for start in (3, 4, 99)] == [{seventy: 4}, {seventy: 4}, {}]
        assert [each.offset for each in read_records(cluster, seventy, 0, 4)] == [0, 2]
        assert [each.offset for each in read_records(cluster, seventy, 0, 4, isolation="read_committed")] == [2]


def test_first_records_hold_only_the_result(node: Node, topic: str) -> None:
    """The records of five hundred partitions could be gigabytes."""
    create_topic(node.bootstrap, topic, 20)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for index in range(20):
        producer.produce(topic, bytes(900_000), partition=index)
        producer.flush()
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        tracemalloc.start()
        try:
            firsts = first_records(cluster, {TopicPartition(topic, index): 0 for index in range(20)}, stamp)
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert len(firsts) == 20
    assert held < 5_000_000


def test_a_search_among_invisible_records_ends_in_time(node: Node, topic: str) -> None:
    """Only aborted transactions, so that no record is visible."""
    create_topic(node.bootstrap, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"{topic}-t"})
    producer.init_transactions(10)
    for _ in range(5):
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction(10)
    partition = TopicPartition(topic, 0)
    calls: list[int] = []

    def is_up(at: int) -> bool:
        calls.append(at)
        return len(calls) > 3

    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        few = {"isolation": "read_committed", "fetch_bytes": 1, "is_up": is_up}
        assert list(read_range(cluster, partition, 0, 10, **few)) == []  # type: ignore[arg-type]
        assert calls == sorted(set(calls))
        assert (calls[0], len(calls), calls[-1] < 10) == (0, 4, True)
        assert first_or_end(cluster, {partition: 0}, isolation="read_committed", is_up=lambda: True) == {}
        assert first_or_end(cluster, {partition: 0}, isolation="read_committed") == {partition: 10}
