"""The streaming reader, called as Spark calls it."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from millpond.spark.options import OptionError, read_options
from millpond.spark.source import data_loss, stream_reader
from millpond.spark.source.data_loss import DataLost
from millpond.spark.source.stream_reader import StreamReader
from support.node import Node
from support.spark_source import committed, send
from support.topics import add_partitions, create_topic, delete_topic

Json = dict[str, Any]
Make = Callable[..., StreamReader]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loss, "LOSS_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(stream_reader, "IDLE_SECONDS", 0.1)


@pytest.fixture
def make(node: Node, topic: str) -> Iterator[Make]:
    """Readers of a topic of two partitions with ten records in the first and thirty in the second."""
    create_topic(node.bootstrap, topic, 2)
    send(node, topic, map(str, range(10)), 0)
    send(node, topic, map(str, range(30)), 1)
    made: list[StreamReader] = []

    def reader(**given: str) -> StreamReader:
        options = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, **given}
        made.append(StreamReader(read_options(options, "readStream")))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def step(reader: StreamReader, start: Json, limit: ReadLimit | None = None) -> Json:
    """Like Spark, convert every offset to JSON and back."""
    result = reader.latestOffset(json.loads(json.dumps(start)), limit or reader.getDefaultReadLimit())
    return dict(json.loads(json.dumps(result)))


def planned(reader: StreamReader, start: Json, end: Json) -> list[tuple[int, int, int]]:
    result = [each.value for each in reader.partitions(start, end)]
    return [(each.partition.partition, each.start, each.end) for each in result]


@pytest.mark.smoke
def test_from_the_earliest_to_the_end_in_one_batch(make: Make, topic: str) -> None:
    reader = make(startingOffsets="earliest", minPartitions="4")
    start = reader.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    end = step(reader, start)
    assert end == {topic: {"0": 10, "1": 30}}
    assert reader.reportLatestOffset() == end
    assert planned(reader, start, end) == [(0, 0, 10), (1, 0, 10), (1, 10, 20), (1, 20, 30)]
    assert planned(reader, end, end) == []
    copy = pickle.loads(pickle.dumps(reader))
    rows = [row for each in reader.partitions(start, end) for batch in copy.read(each) for row in batch.to_pylist()]
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        *((0, number) for number in range(10)),
        *((1, number) for number in range(30)),
    ]
    assert list(copy.read(InputPartition(None))) == []


def test_a_query_that_starts_at_latest_records_its_start_in_an_empty_batch(
    make: Make, node: Node, topic: str
) -> None:
    reader = make()
    start = reader.initialOffset()
    assert start == {topic: {"0": 10, "1": 30}}
    send(node, topic, ["new"], 0)
    assert reader.initialOffset() == start, "Spark asks again when it runs the first batch"
    assert step(reader, start) == start
    assert planned(reader, start, start) == []
    # Spark crashes in the empty batch and asks a new reader, when "latest" is elsewhere.
    again = make()
    later = again.initialOffset()
    assert later == {topic: {"0": 11, "1": 30}}
    assert planned(again, later, start) == []
    end = step(again, start)
    assert end == {topic: {"0": 11, "1": 30}}
    assert planned(again, start, end) == [(0, 10, 11)]
    assert planned(reader, start, step(reader, start)) == [(0, 10, 11)], "nor does the first reader lose it"


def test_without_new_records_it_waits_briefly_for_some(
    make: Make, node: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make(startingOffsets="earliest")
    end = {topic: {"0": 10, "1": 30}}
    began = time.monotonic()
    assert step(reader, end) == end
    assert time.monotonic() - began >= 0.1
    # Longer than a test may take.
    monkeypatch.setattr(stream_reader, "IDLE_SECONDS", 1000.0)
    sender = threading.Timer(0.3, send, (node, topic, ["new"], 1))
    sender.start()
    assert step(reader, end) == {topic: {"0": 10, "1": 31}}
    sender.join()


def test_max_offsets_limit_a_batch(make: Make, topic: str) -> None:
    reader = make(startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    start = reader.initialOffset()
    assert step(reader, start) == {topic: {"0": 2, "1": 6}}
    assert step(reader, start, ReadAllAvailable()) == {topic: {"0": 10, "1": 30}}
    batches = 0
    while (end := step(reader, start)) != start:
        start, batches = end, batches + 1
    assert start == {topic: {"0": 10, "1": 30}}
    assert 5 <= batches <= 8


def test_min_offsets_delay_a_batch(make: Make, node: Node, topic: str) -> None:
    reader = make(startingOffsets="earliest", minOffsetsPerTrigger="20", maxTriggerDelay="1h")
    assert reader.getDefaultReadLimit() == ReadMinRows(20)
    start = step(reader, reader.initialOffset())
    send(node, topic, map(str, range(19)), 0)
    assert step(reader, start) == start
    assert step(reader, start, ReadAllAvailable()) == {topic: {"0": 29, "1": 30}}
    send(node, topic, ["the twentieth"], 1)
    assert step(reader, start) == {topic: {"0": 29, "1": 31}}
    delayed = make(startingOffsets="earliest", minOffsetsPerTrigger="20", maxTriggerDelay="1ms")
    assert step(delayed, start) == {topic: {"0": 29, "1": 31}}


@pytest.mark.smoke
def test_available_now_ends_where_the_log_ended_when_it_began(make: Make, node: Node, topic: str) -> None:
    reader = make(startingOffsets="earliest", maxOffsetsPerTrigger="25", minOffsetsPerTrigger="39")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = step(reader, start)
    send(node, topic, map(str, range(5)), 0)
    add_partitions(node.bootstrap, topic, 3)
    send(node, topic, map(str, range(5)), 2)
    while end != start:
        start, end = end, step(reader, end)
    assert {partition: offset for partition, offset in end[topic].items() if offset} == {"0": 10, "1": 30}
    fresh = make(startingOffsets="earliest")
    fresh.prepareForTriggerAvailableNow()
    last = step(fresh, end)
    assert last == {topic: {"0": 15, "1": 30, "2": 5}}
    assert planned(fresh, end, last) == [(0, 10, 15), (2, 0, 5)]


def test_the_group_follows_finished_batches(make: Make, node: Node, topic: str) -> None:
    group = f"{topic}-group"
    reader = make(startingOffsets="earliest", commitGroup=group, maxOffsetsPerTrigger="20")
    start = reader.initialOffset()
    end = step(reader, start)
    assert committed(node, group, topic) == {0: 0, 1: 0}, "the batch is not done yet"
    step(reader, end)
    assert committed(node, group, topic) == {0: 5, 1: 15}
    reader.commit({topic: {"0": 6, "1": 20}})
    assert committed(node, group, topic) == {0: 6, 1: 20}


def test_a_recreated_topic_of_the_same_size_makes_progress(make: Make, node: Node, topic: str) -> None:
    reader = make(startingOffsets="earliest", failOnDataLoss="false")
    start = step(reader, reader.initialOffset())
    delete_topic(node.bootstrap, topic)
    create_topic(node.bootstrap, topic, 2)
    send(node, topic, map(str, range(10)), 0)
    end = step(reader, start)
    assert end == {topic: {"0": 9, "1": 0}}, "the same offset would be no news to Spark"
    assert planned(reader, start, end) == [(0, 0, 9)]
    last = step(reader, end)
    assert last == {topic: {"0": 10, "1": 0}}
    assert planned(reader, end, last) == [(0, 9, 10)]


def test_a_start_outside_of_the_log_is_lost(make: Make, topic: str) -> None:
    given = f'{{"{topic}":{{"0":50,"1":-2}}}}'
    with pytest.raises(DataLost, match=r"\[0\]: the query was to start at offset 50, the log has 0 to 10"):
        make(startingOffsets=given).initialOffset()
    assert make(startingOffsets=given, failOnDataLoss="false").initialOffset() == {topic: {"0": 0, "1": 0}}


def test_a_checkpoint_of_another_source_is_refused(make: Make) -> None:
    with pytest.raises(OptionError, match="is the checkpoint another source's"):
        make().latestOffset({"offset": 5}, ReadAllAvailable())
