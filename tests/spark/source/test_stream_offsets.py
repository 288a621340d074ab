"""Partitions that appear and disappear during a query, and losses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from millpond.base.ids import TopicPartition
from millpond.client.errors import ClientError
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.spark.source import data_loss, stream_offsets
from millpond.spark.source.data_loss import DataLost
from millpond.spark.source.ranges import Range
from millpond.spark.source.stream_offsets import Span, StreamOffsets
from millpond.spark.source.subscription import Named
from support.node import Node
from support.raw import Raw
from support.raw_transactions import RawProducer
from support.spark_source import send
from support.topics import add_partitions, create_topic, delete_records, delete_topic


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loss, "LOSS_PAUSE_SECONDS", 0.01)


@pytest.fixture
def cluster(node: Node) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": node.bootstrap}) as opened:
        yield opened


@pytest.fixture
def filled(node: Node, topic: str) -> str:
    """Ten records in each of two partitions."""
    create_topic(node.bootstrap, topic, 2)
    for partition in range(2):
        send(node, topic, map(str, range(10)), partition)
    return topic


def strict(*topics: str) -> StreamOffsets:
    return StreamOffsets(Named(topics), "read_uncommitted", fails=True)


def lenient(*topics: str) -> StreamOffsets:
    return StreamOffsets(Named(topics), "read_uncommitted", fails=False)


def test_the_span_is_from_the_position_to_the_end(node: Node, cluster: Cluster, filled: str) -> None:
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    offsets = strict(filled)
    span = offsets.available(cluster, {first: 4, second: 10})
    assert span == Span({first: 4, second: 10}, {first: 10, second: 10})
    send(node, filled, ["one more"], 1)
    assert offsets.latest(cluster, span) == {first: 10, second: 11}
    assert offsets.ranges(cluster, span.starts, span.ends) == [Range(first, 4, 10)]


def test_a_new_partition_is_read_from_its_first_record(node: Node, cluster: Cluster, filled: str) -> None:
    begun = {TopicPartition(filled, 0): 10, TopicPartition(filled, 1): 10}
    added = TopicPartition(filled, 2)
    offsets = strict(filled)
    add_partitions(node.bootstrap, filled, 3)
    send(node, filled, ["a", "b"], 2)
    span = offsets.available(cluster, begun)
    assert (span.starts[added], span.ends[added]) == (0, 2)
    assert offsets.ranges(cluster, begun, span.ends) == [Range(added, 0, 2)]
    delete_records(node.bootstrap, filled, 2, 1)
    with pytest.raises(DataLost, match=r"\[2\] is new to the query, and its log begins with offset 1, not 0"):
        offsets.ranges(cluster, begun, span.ends)
    assert lenient(filled).ranges(cluster, begun, span.ends) == [Range(added, 1, 2)]


def test_records_deleted_by_retention_are_lost(node: Node, cluster: Cluster, filled: str) -> None:
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    delete_records(node.bootstrap, filled, 0, 6)
    begun, ends = {first: 4, second: 10}, {first: 10, second: 10}
    with pytest.raises(DataLost) as raised:
        strict(filled).ranges(cluster, begun, ends)
    for text in (
        f"{filled}[0]: offsets 4 to 10 were to be read, the log begins with 6",
        "failOnDataLoss=false",
        "new check",
    ):
        assert text in str(raised.value)
    assert lenient(filled).ranges(cluster, begun, ends) == [Range(first, 6, 10)]
    assert strict(filled).ranges(cluster, {first: 10, second: 3}, ends) == [Range(second, 3, 10)], (
        "not the query's loss"
    )


def test_a_deleted_topic_is_lost(node: Node, cluster: Cluster, filled: str, caplog: pytest.LogCaptureFixture) -> None:
    other = f"{filled}-other"
    create_topic(node.bootstrap, other)
    gone, kept = TopicPartition(filled, 0), TopicPartition(other, 0)
    begun = {gone: 4, TopicPartition(filled, 1): 5, kept: 0}
    delete_topic(node.bootstrap, filled)
    with pytest.raises(DataLost, match=rf"partitions are gone: {filled}\[0\] at offset 4, {filled}\[1\] at offset 5"):
        strict(filled, other).available(cluster, begun)
    with caplog.at_level(logging.WARNING):
        assert lenient(filled, other).available(cluster, begun) == Span({kept: 0}, {kept: 0})
    assert f"{filled}[0] at offset 4" in caplog.text
    with pytest.raises(DataLost, match=rf"{filled}\[0\] is gone, its offsets 4 to 7 were to be read"):
        strict(filled, other).ranges(cluster, {gone: 4, kept: 0}, {gone: 7, kept: 0})
    assert lenient(filled, other).ranges(cluster, {gone: 4, kept: 0}, {gone: 7, kept: 0}) == []


@pytest.mark.parametrize("records", [3, 4, 9], ids=["fewer", "as many", "more"])
def test_a_recreated_topic_is_read_from_its_first_record(
    node: Node, cluster: Cluster, filled: str, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    partition = TopicPartition(filled, 0)
    begun = {partition: 4}
    careful, easy = strict(filled), lenient(filled)
    for offsets in (careful, easy):
        offsets.available(cluster, {partition: 4, TopicPartition(filled, 1): 10})
    delete_topic(node.bootstrap, filled)
    create_topic(node.bootstrap, filled)
    send(node, filled, map(str, range(records)))
    with pytest.raises(DataLost, match=rf"topic {filled} was recreated; the old one was read up to 0: 4"):
        careful.available(cluster, begun)
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            assert easy.available(cluster, begun) == Span({partition: 0}, {partition: records})
    assert caplog.text.count("was recreated") == 1
    assert easy.begins_again(partition)
    assert easy.ranges(cluster, begun, {partition: records}) == [Range(partition, 0, records)]
    # The batch is done: from now on the offset is the new topic's.
    assert easy.available(cluster, {partition: records - 1}) == Span({partition: records - 1}, {partition: records})
    assert not easy.begins_again(partition)


def test_a_position_after_the_end_means_a_recreated_topic(cluster: Cluster, filled: str) -> None:
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    begun = {first: 25, second: 10}
    with pytest.raises(DataLost, match=r"\[0\] was read up to offset 25, and now ends at 10"):
        strict(filled).available(cluster, begun)
    offsets = lenient(filled)
    assert offsets.available(cluster, begun) == Span({first: 0, second: 10}, {first: 10, second: 10})
    assert offsets.ranges(cluster, begun, {first: 10, second: 10}) == [Range(first, 0, 10)]
    assert lenient(filled).ranges(cluster, begun, {first: 10, second: 10}) == [Range(first, 0, 10)], "a replay"
    with pytest.raises(DataLost):
        strict(filled).ranges(cluster, begun, {first: 10, second: 10})


def test_an_apparent_loss_is_checked_again(cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = TopicPartition(filled, 0)
    answers = [{partition: 2}, {partition: 2}, {partition: 10}]
    monkeypatch.setattr(stream_offsets.cluster_offsets, "latest", lambda *_: answers.pop(0))
    assert strict(filled).available(cluster, {partition: 4}).ends == {partition: 10}


def test_records_hidden_by_an_open_transaction_are_not_lost(node: Node, cluster: Cluster, filled: str) -> None:
    """A query that read everything, and is restarted with read_committed."""
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    with Raw(node.port) as raw:
        producer = RawProducer(raw, f"of {filled}").begin_session()
        producer.send(filled, 0, b"a", b"b")
        begun = {first: 12, second: 4}
        offsets = StreamOffsets(Named((filled,)), "read_committed", fails=True)
        span = offsets.available(cluster, begun)
        assert span == Span(begun, {first: 12, second: 10})
        assert offsets.latest(cluster, span) == {first: 12, second: 10}
        assert offsets.ranges(cluster, begun, span.ends) == [Range(second, 4, 10)]
        producer.commit()


def test_a_topic_recreated_during_planning_is_lost(node: Node, cluster: Cluster, filled: str) -> None:
    begun = {TopicPartition(filled, 0): 4, TopicPartition(filled, 1): 10}
    careful, easy = strict(filled), lenient(filled)
    ends = careful.available(cluster, begun).ends
    assert easy.available(cluster, begun).ends == ends
    delete_topic(node.bootstrap, filled)
    create_topic(node.bootstrap, filled, 2)
    send(node, filled, [f"other {number}" for number in range(20)])
    with pytest.raises(DataLost, match=r"\[0\] was recreated, offsets 4 to 10 of the old one were to be read"):
        careful.ranges(cluster, begun, ends)
    assert easy.ranges(cluster, begun, ends) == []
    # The next batch reads the new topic.
    assert easy.available(cluster, ends).starts == {TopicPartition(filled, 0): 0, TopicPartition(filled, 1): 0}


def test_outdated_metadata_does_not_make_a_topic_lost(
    cluster: Cluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = TopicPartition(filled, 0)
    topics = cluster.topics
    answers: list[dict[str, TopicInfo]] = [{}, {}]
    monkeypatch.setattr(cluster, "topics", lambda names: answers.pop() if answers else topics(names))
    assert lenient(filled).ranges(cluster, {partition: 4}, {partition: 7}) == [Range(partition, 4, 7)]


def test_a_checkpoint_of_another_topic_is_reported(node: Node, cluster: Cluster, filled: str) -> None:
    """The topic and its records exist, but the query no longer reads them."""
    other = f"{filled}-other"
    create_topic(node.bootstrap, other)
    with pytest.raises(DataLost, match=rf"no longer reads {filled}\[0\] at offset 4, .*another query's"):
        strict(other).available(cluster, {TopicPartition(filled, 0): 4})


def test_an_offline_partition_is_an_error_and_not_lost(make_node: Callable[..., Node], topic: str) -> None:
    """Its log cannot be opened, so its contents are unknown: an error even if losses are allowed."""
    node = make_node()
    create_topic(node.bootstrap, topic, 2)
    for partition in range(2):
        send(node, topic, map(str, range(10)), partition)
    node.terminate()
    (log,) = node.data.glob(f"**/{topic}-1/00000000000000000000.log")
    log.unlink()
    log.mkdir()
    node.start()
    begun = {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 4}
    ends = dict.fromkeys(begun, 10)
    with Cluster({"bootstrap.servers": node.bootstrap, "default.api.timeout.ms": "1000"}) as cluster:
        for attempt in (
            lambda: lenient(topic).available(cluster, begun),
            lambda: lenient(topic).ranges(cluster, begun, ends),
        ):
            with pytest.raises(ClientError) as raised:
                attempt()
            assert not isinstance(raised.value, DataLost)
            assert f"{topic}[1]" in str(raised.value), "the other one is well"
