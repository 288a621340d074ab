"""Reading a range in a task: Arrow batches, reused connections, and losses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.client.errors import ClientError
from millpond.columns import batches
from millpond.remote import reader
from millpond.remote.cluster import Cluster
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import ClusterError, OffsetsGone
from millpond.spark.options import OptionError, Options, read_options
from millpond.spark.source.data_loss import DataLost
from millpond.spark.source.range_reader import pooled_cluster, read_rows
from millpond.spark.source.ranges import Range
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch
from support.node import Node
from support.raw import Raw
from support.raw_transactions import RawProducer
from support.spark_source import send
from support.topics import add_partitions, create_topic, delete_records, delete_topic


def options(node: Node, **given: str) -> Options:
    return read_options({"kafka.bootstrap.servers": node.bootstrap, **given}, "read")


def values(node: Node, work: Range, **given: str) -> list[str]:
    result = read_rows(options(node, **given), work)
    return [value.decode() for batch in result for value in batch.column("value").to_pylist()]


@pytest.fixture
def partition(node: Node, topic: str) -> TopicPartition:
    """A hundred numbers in batches of ten."""
    create_topic(node.bootstrap, topic)
    with Raw(node.port) as raw:
        for first in range(0, 100, 10):
            records = [Record(at, 1_700_000_000_000, None, str(first + at).encode(), ()) for at in range(10)]
            assert not raw.produce(topic, 0, encode_batch(records)).error_code
    return TopicPartition(topic, 0)


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_a_range_has_exactly_its_offsets(node: Node, partition: TopicPartition) -> None:
    assert values(node, Range(partition, 0, 100)) == numbers(0, 100)
    assert values(node, Range(partition, 33, 47)) == numbers(33, 47)
    assert values(node, Range(partition, 5, 5)) == []


def test_an_empty_plan_has_no_rows(node: Node) -> None:
    assert list(read_rows(options(node), None)) == []


@pytest.mark.parametrize("work", [5, (TopicPartition("t", 0), 0, 5), Range(TopicPartition("t", 0), 9, 5), "t"])
def test_anything_but_a_range_is_refused(node: Node, work: Any) -> None:
    with pytest.raises(ClientError, match="instead of a range of offsets"):
        list(read_rows(options(node), work))


def test_batches_end_at_either_limit(node: Node, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS_PER_BATCH", 25)
    by_rows = [batch.num_rows for batch in read_rows(options(node), Range(partition, 0, 100))]
    assert by_rows == [30, 30, 30, 10]
    monkeypatch.setattr(batches, "BYTES_PER_BATCH", 1)
    assert len(list(read_rows(options(node), Range(partition, 0, 100)))) == 10


def test_connections_are_reused_unless_a_task_failed(node: Node, partition: TopicPartition) -> None:
    settings = options(node, **{"kafka.client.id": partition.topic}).kafka
    with pooled_cluster(settings) as first:
        assert isinstance(first, Cluster)
        with pooled_cluster(settings) as beside:
            assert beside is not first
    with pooled_cluster(settings) as again:
        assert again is first
        again.topics([partition.topic])
    with suppress(ZeroDivisionError), pooled_cluster(settings) as failing:
        assert failing is first
        raise ZeroDivisionError
    with pooled_cluster(settings) as fresh:
        assert fresh is beside
        with pooled_cluster(settings) as fresher:
            assert fresher is not first


def test_a_reused_connection_finds_new_partitions(node: Node, partition: TopicPartition) -> None:
    assert values(node, Range(partition, 0, 5)) == numbers(0, 5)
    add_partitions(node.bootstrap, partition.topic, 2)
    send(node, partition.topic, ["new"], 1)
    assert values(node, Range(TopicPartition(partition.topic, 1), 0, 1)) == ["new"]


def test_deleted_records_are_lost(node: Node, partition: TopicPartition, caplog: pytest.LogCaptureFixture) -> None:
    delete_records(node.bootstrap, partition.topic, 0, 42)
    with pytest.raises(DataLost) as raised:
        values(node, Range(partition, 30, 60))
    assert f"{partition.topic}[0]: offsets 30 to 60 were to be read, the log has 42 to 100" in str(raised.value)
    with caplog.at_level(logging.WARNING):
        assert values(node, Range(partition, 30, 60), failOnDataLoss="false") == numbers(42, 60)
    assert "the log has 42 to 100" in caplog.text
    assert values(node, Range(partition, 10, 20), failOnDataLoss="false") == []


@pytest.fixture
def held_back(node: Node, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch) -> Iterator[RawProducer]:
    """Five more records, of a transaction that is still open."""
    monkeypatch.setattr(reader, "VANISHED_SECONDS", 0.2)
    with Raw(node.port) as raw:
        producer = RawProducer(raw, f"of {partition.topic}").begin_session()
        producer.send(partition.topic, 0, *[str(number).encode() for number in range(100, 105)])
        yield producer


def test_records_behind_an_open_transaction_are_not_lost(
    node: Node, partition: TopicPartition, held_back: RawProducer
) -> None:
    given = {
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false",
        "kafkaConsumer.pollTimeoutMs": "1s",
    }
    with pytest.raises(ClusterError, match=r"\[0\]: nothing came from offset 100 on.*open transaction"):
        values(node, Range(partition, 90, 105), **given)
    held_back.commit()
    assert values(node, Range(partition, 90, 105), **given) == numbers(90, 105)


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_that_cannot_be_read_for_now_are_not_lost(
    node: Node, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, fails: str
) -> None:
    """A leader that returns this error for longer than the timeout, while the metadata has the partition."""
    monkeypatch.setattr(reader, "VANISHED_SECONDS", 0.2)
    receive = BrokerConnection.receive

    def refused(link: BrokerConnection, answer: Any, **more: Any) -> Any:
        response = receive(link, answer, **more)
        if answer is m.FetchResponse:
            response.responses[0].partitions[0].error_code = code
            response.responses[0].partitions[0].records = None
        return response

    with monkeypatch.context() as patched:
        patched.setattr(BrokerConnection, "receive", refused)
        with pytest.raises(ClientError) as raised:
            values(node, Range(partition, 30, 60), failOnDataLoss=fails, **{"kafkaConsumer.pollTimeoutMs": "1s"})
    assert not isinstance(raised.value, DataLost | OffsetsGone), raised.value
    assert values(node, Range(partition, 30, 60)) == numbers(30, 60)


def test_a_recreated_topic_is_not_read_with_old_offsets(node: Node, partition: TopicPartition) -> None:
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        work = Range(partition, 2, 5, cluster.topic(partition.topic).topic_id)
    assert values(node, work) == numbers(2, 5)
    delete_topic(node.bootstrap, partition.topic)
    create_topic(node.bootstrap, partition.topic)
    send(node, partition.topic, [f"other {number}" for number in range(10)])
    with pytest.raises(DataLost, match=r"\[0\] was recreated, offsets 2 to 5 of the old one were to be read"):
        values(node, work)
    assert values(node, work, failOnDataLoss="false") == []


def test_a_topic_deleted_before_its_task_is_lost(node: Node, partition: TopicPartition) -> None:
    delete_topic(node.bootstrap, partition.topic)
    with pytest.raises(DataLost, match=r"\[0\] is gone, its offsets 30 to 60 were to be read"):
        values(node, Range(partition, 30, 60))
    assert values(node, Range(partition, 30, 60), failOnDataLoss="false") == []


def test_the_fetch_size_is_used_and_checked(node: Node, partition: TopicPartition) -> None:
    assert values(node, Range(partition, 0, 100), **{"kafka.max.partition.fetch.bytes": "200"}) == numbers(0, 100)
    with pytest.raises(OptionError, match=r"max\.partition\.fetch\.bytes cannot be 'all'"):
        values(node, Range(partition, 0, 100), **{"kafka.max.partition.fetch.bytes": "all"})


def test_values_are_parsed_if_a_format_is_set(node: Node, partition: TopicPartition) -> None:
    send(node, partition.topic, ['{"id": 7}', "poison"])
    given = {"subscribe": partition.topic, "valueFormat": "json", "valueSchema": "id long", "badRecords": "null"}
    (batch,) = read_rows(options(node, **given), Range(partition, 100, 102))
    assert batch.column("parsed").to_pylist() == [{"id": 7}, None]
    assert batch.column("fault").to_pylist()[0] is None
    dead = {**given, "badRecords": "dead_letters", "deadLetterTopic": f"{partition.topic}-dead"}
    create_topic(node.bootstrap, f"{partition.topic}-dead")
    (batch,) = read_rows(options(node, **dead), Range(partition, 100, 102))
    assert batch.column("parsed").to_pylist() == [{"id": 7}]
    assert "headers" not in batch.schema.names
    assert list(read_rows(options(node, **dead), Range(partition, 101, 102))) == [], "a batch without rows is none"
    assert values(node, Range(TopicPartition(f"{partition.topic}-dead", 0), 0, 1)) == ["poison"]
