"""Planning a batch: the ranges of every partition, clipped to the log."""

from __future__ import annotations

import pickle

import pytest

from millpond.client.errors import UnknownTopic
from millpond.spark.options import OptionError, read_options
from millpond.spark.source.batch_reader import BatchReader
from millpond.spark.source.data_loss import DataLost
from support.node import Node
from support.raw import Raw
from support.raw_transactions import RawProducer
from support.spark_source import send
from support.topics import create_topic, delete_records


def reader(node: Node, **given: str) -> BatchReader:
    return BatchReader(read_options({"kafka.bootstrap.servers": node.bootstrap, **given}, "read"))


def planned(node: Node, **given: str) -> list[tuple[int, int, int]]:
    result = [each.value for each in reader(node, **given).partitions()]
    return sorted((each.partition.partition, each.start, each.end) for each in result)


@pytest.fixture
def filled(node: Node, topic: str) -> str:
    """Ten, twenty and no records; the first three of the first partition are deleted."""
    create_topic(node.bootstrap, topic, 3)
    send(node, topic, map(str, range(10)), 0)
    send(node, topic, map(str, range(20)), 1)
    delete_records(node.bootstrap, topic, 0, 3)
    return topic


@pytest.mark.smoke
def test_ranges_follow_the_options(node: Node, filled: str) -> None:
    assert planned(node, subscribe=filled) == [(0, 3, 10), (1, 0, 20)]
    assert planned(node, assign=f'{{"{filled}":[1,2]}}', maxRecordsPerPartition="8") == [
        (1, 0, 6), (1, 6, 13), (1, 13, 20),
    ]  # fmt: skip
    assert len(planned(node, subscribe=filled, minPartitions="9")) >= 9
    ends = f'{{"{filled}":{{"0":5,"1":-1,"2":0}}}}'
    assert planned(node, subscribe=filled, endingOffsets=ends) == [(0, 3, 5), (1, 0, 20)]
    assert planned(node, subscribePattern="nothing-like-it") == []


def test_the_options_are_checked_before_any_connection() -> None:
    with pytest.raises(OptionError, match="exactly one of"):
        BatchReader(read_options({"kafka.bootstrap.servers": "127.0.0.1:1"}, "read"))
    with pytest.raises(OptionError, match="cannot be latest"):
        BatchReader(read_options({"subscribe": "t", "startingOffsets": "latest"}, "read"))


@pytest.mark.parametrize(
    ("starts", "ends", "kept"),
    [((1, -2, -2), (5, 5, 0), [(0, 3, 5), (1, 0, 5)]), ((3, 0, 0), (99, 5, 0), [(0, 3, 10), (1, 0, 5)])],
)
def test_offsets_outside_of_the_log_are_lost(
    node: Node, filled: str, starts: tuple[int, ...], ends: tuple[int, ...], kept: list[tuple[int, int, int]]
) -> None:
    given = {
        "subscribe": filled,
        "startingOffsets": f'{{"{filled}":{{"0":{starts[0]},"1":{starts[1]},"2":{starts[2]}}}}}',
        "endingOffsets": f'{{"{filled}":{{"0":{ends[0]},"1":{ends[1]},"2":{ends[2]}}}}}',
    }
    with pytest.raises(DataLost) as raised:
        planned(node, **given)
    assert f"{filled}[0]: offsets {starts[0]} to {ends[0]} were to be read, the log has 3 to 10" in str(raised.value)
    assert planned(node, **given, failOnDataLoss="false") == kept


@pytest.mark.parametrize(("start", "end"), [(11, -1), (8, 5)])
def test_a_start_after_the_end_is_refused(node: Node, filled: str, start: int, end: int) -> None:
    given = {
        "assign": f'{{"{filled}":[0]}}',
        "startingOffsets": f'{{"{filled}":{{"0":{start}}}}}',
        "endingOffsets": f'{{"{filled}":{{"0":{end}}}}}',
    }
    with pytest.raises(OptionError, match="start"):
        planned(node, **given, failOnDataLoss="false")


def test_a_missing_topic_is_refused(node: Node) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic nowhere-at-all"):
        planned(node, subscribe="nowhere-at-all")


def test_a_reader_can_be_pickled(node: Node, filled: str) -> None:
    given = reader(node, subscribe=filled)
    (*_, partition) = given.partitions()
    rows = pickle.loads(pickle.dumps(given)).read(pickle.loads(pickle.dumps(partition)))
    assert sum(batch.num_rows for batch in rows) in (7, 20)


def test_records_of_an_open_transaction_are_planned_and_not_lost(node: Node, filled: str) -> None:
    ends = f'{{"{filled}":{{"0":10,"1":22,"2":0}}}}'
    with Raw(node.port) as raw:
        producer = RawProducer(raw, f"of {filled}").begin_session()
        producer.send(filled, 1, b"a", b"b")
        given = {"subscribe": filled, "kafka.isolation.level": "read_committed", "failOnDataLoss": "false"}
        assert planned(node, **given) == [(0, 3, 10), (1, 0, 20)]
        assert planned(node, **given, endingOffsets=ends) == [(0, 3, 10), (1, 0, 22)]
        producer.commit()
