"""The source in Spark: rows byte for byte, streams across restarts, and readable errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.options import OptionError
from millpond.spark.pipelines.runner import LATE_PROCESS, TRIES_MAX
from millpond.spark.source import reader_of, schema_of, stream_reader_of
from support.clients import CODECS, Confluent, Sent
from support.node import Node, eventually
from support.spark_source import committed, send
from support.topics import add_partitions, create_topic, delete_records, delete_topic
from support.transactions import ConfluentWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BASE_MS = 1_700_000_000_000
WAIT_SECONDS = 240.0
"""A limit for events that never happen."""


def frame(spark: SparkSession, node: Node, **given: str) -> DataFrame:
    return spark.read.format("millpond").options(**{"kafka.bootstrap.servers": node.bootstrap, **given}).load()


def stream(spark: SparkSession, node: Node, **given: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": node.bootstrap, **given}
    return spark.readStream.format("millpond").options(**given).load()


def started(
    rows: DataFrame, checkpoint: str, take: Callable[[DataFrame, int], None], *, available_now: bool = True
) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def values(rows: list[Row]) -> list[str]:
    return [row["value"].decode() for row in rows]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


ODD = [
    Sent(b"plain", b"key", (), BASE_MS),
    Sent(None, b"tombstone", (("reason", b"gone"),), BASE_MS + 1),
    Sent(b"", b"", (("", b""), ("twice", b"1"), ("twice", None)), BASE_MS + 2),
    Sent(bytes(range(256)) * 40, None, (("\u00fc", b"\x00\xff"),), BASE_MS + 86_400_000),
    *(Sent(b"v%d" % number, b"k%d" % (number % 7), (), BASE_MS + number) for number in range(200)),
]


def everything_in(row: Row) -> tuple[object, ...]:
    headers = tuple((each["key"], as_bytes(each["value"])) for each in row["headers"] or ())
    return row["partition"], row["offset"], as_bytes(row["key"]), as_bytes(row["value"]), row["ms"], headers


def as_bytes(result: bytearray | None) -> bytes | None:
    return None if result is None else bytes(result)


@pytest.mark.smoke
def test_rows_are_identical_for_every_codec(spark: SparkSession, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, len(CODECS))
    for partition, codec in enumerate(CODECS):
        Confluent().write(node.bootstrap, topic, ODD, partition=partition, codec=codec)
    whole = frame(spark, node, subscribe=topic, includeHeaders="true")
    split = frame(spark, node, subscribePattern=f"{topic}|none", includeHeaders="true", minPartitions="13")
    expected = sorted(
        (partition, offset, each.key, each.value, each.timestamp, each.headers)
        for partition in range(len(CODECS))
        for offset, each in enumerate(ODD)
    )
    for rows in (whole, split):
        result = rows.selectExpr("*", "unix_millis(timestamp) as ms").collect()
        assert sorted(map(everything_in, result)) == expected
        assert {(row["topic"], row["timestampType"]) for row in result} == {(topic, 0)}
    assert split.rdd.getNumPartitions() >= 13


def test_ranges_by_time_and_by_offset_in_sql(spark: SparkSession, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    for partition in range(2):
        sent = [Sent(str(number).encode(), timestamp=BASE_MS + number * 1000) for number in range(50)]
        Confluent().write(node.bootstrap, topic, sent, partition=partition)
    between = frame(
        spark, node, subscribe=topic, startingTimestamp=str(BASE_MS + 9_500), endingTimestamp=str(BASE_MS + 12_000)
    )
    assert sorted(values(between.collect())) == ["10", "10", "11", "11"]
    offsets = f'{{"{topic}":{{"1":47}}}}'
    spark.sql(
        f"create temporary view millpond_view using millpond options "
        f"(`kafka.bootstrap.servers` '{node.bootstrap}', assign '{{\"{topic}\":[1]}}', startingOffsets '{offsets}')"
    )
    try:
        assert values(spark.sql("select * from millpond_view order by offset").collect()) == ["47", "48", "49"]
    finally:
        spark.catalog.dropTempView("millpond_view")


def test_a_stream_over_restarts_and_new_partitions(
    spark: SparkSession, node: Node, topic: str, checkpoint: str
) -> None:
    create_topic(node.bootstrap, topic, 2)
    send(node, topic, numbers(0, 40), 0)
    send(node, topic, numbers(40, 50), 1)
    group = f"{topic}-group"
    rows = stream(
        spark, node, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20", commitGroup=group
    )
    got: list[Row] = []
    sizes: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        result = batch.collect()
        if len(sizes) == 1 and not got[20:]:
            sizes.append(0)
            raise ValueError("the second batch fails at its first try")
        got.extend(result)
        sizes.append(len(result))

    failing = started(rows, checkpoint, take)
    with pytest.raises(Exception, match="second batch fails"):
        failing.awaitTermination()
    assert committed(node, group, topic) == {0: 16, 1: 4}, "the group is where the last whole batch ended"
    started(rows, checkpoint, take).awaitTermination()
    assert sorted(map(int, values(got))) == list(range(50))
    assert sizes[:2] == [20, 0]
    assert max(sizes) == 20
    assert committed(node, group, topic) == {0: 40, 1: 10}, "after AvailableNow the group is at the end"

    add_partitions(node.bootstrap, topic, 3)
    send(node, topic, numbers(50, 55), 2)
    send(node, topic, numbers(55, 60), 0)
    del got[:]
    started(rows, checkpoint, take).awaitTermination()
    assert sorted(map(int, values(got))) == list(range(50, 60))
    assert committed(node, group, topic) == {0: 45, 1: 10, 2: 5}


def test_read_committed_returns_committed_records_only(
    spark: SparkSession, node: Node, topic: str, checkpoint: str
) -> None:
    create_topic(node.bootstrap, topic)
    writer = ConfluentWriter(node.bootstrap, f"{topic}-writer")
    for number in range(6):
        writer.begin()
        writer.send(topic, 0, str(number).encode())
        writer.commit() if number % 2 else writer.abort()
    writer.begin()
    writer.send(topic, 0, b"open")
    given = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    assert values(frame(spark, node, **given).collect()) == ["1", "3", "5"]
    assert values(frame(spark, node, subscribe=topic).collect()) == [*numbers(0, 6), "open"]
    got: list[Row] = []

    def take(batch: DataFrame, number: int) -> None:
        got.extend(batch.collect())

    rows = stream(spark, node, startingOffsets="earliest", **given)
    started(rows, checkpoint, take).awaitTermination()
    writer.commit()
    started(rows, checkpoint, take).awaitTermination()
    assert values(got) == ["1", "3", "5", "open"]


def test_a_running_query_survives_a_recreated_topic_if_losses_are_allowed(
    spark: SparkSession, node: Node, topic: str, tmp_path: Path
) -> None:
    create_topic(node.bootstrap, topic)
    send(node, topic, numbers(0, 5))
    got: dict[str, list[str]] = {"easy": [], "careful": []}

    def query(name: str, fails: str) -> StreamingQuery:
        def take(batch: DataFrame, number: int) -> None:
            got[name] += values(batch.collect())

        rows = stream(spark, node, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails)
        return started(rows, str(tmp_path / name), take, available_now=False)

    easy = query("easy", "false")
    assert eventually(lambda: len(got["easy"]) == 5, 60), easy.exception()
    careful = query("careful", "true")
    try:
        assert eventually(lambda: len(got["careful"]) == 5, 60), careful.exception()
        delete_topic(node.bootstrap, topic)
        create_topic(node.bootstrap, topic)
        send(node, topic, numbers(100, 105))
        assert eventually(lambda: len(got["easy"]) >= 10, 60)
        assert got["easy"] == [*numbers(0, 5), *numbers(100, 105)]
        with pytest.raises(Exception, match="records are lost") as raised:
            careful.awaitTermination(60)
        assert "failOnDataLoss=false" in str(raised.value)
        assert topic in str(raised.value)
        assert got["careful"] == numbers(0, 5)
    finally:
        easy.stop()
        careful.stop()


def test_deleted_offsets_fail_a_restarted_query_unless_losses_are_allowed(
    spark: SparkSession, node: Node, topic: str, checkpoint: str
) -> None:
    create_topic(node.bootstrap, topic)
    send(node, topic, numbers(0, 5))
    got: list[str] = []

    def take(batch: DataFrame, number: int) -> None:
        got.extend(values(batch.collect()))

    def run(fails: str) -> None:
        rows = stream(spark, node, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails)
        started(rows, checkpoint, take).awaitTermination()

    run("true")
    send(node, topic, numbers(5, 20))
    delete_records(node.bootstrap, topic, 0, 12)
    with pytest.raises(Exception, match="the log begins with 12"):
        run("true")
    run("false")
    assert got == [*numbers(0, 5), *numbers(12, 20)]


def test_a_query_that_starts_at_latest_reads_new_records(
    spark: SparkSession, node: Node, topic: str, checkpoint: str
) -> None:
    create_topic(node.bootstrap, topic)
    send(node, topic, numbers(0, 5))
    got: list[str] = []
    batches: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        got.extend(values(batch.collect()))
        batches.append(number)

    query = begun(
        lambda: started(stream(spark, node, subscribe=topic), checkpoint, take, available_now=False), batches
    )
    try:
        assert batches == [0]
        assert got == []
        send(node, topic, numbers(5, 8))
        assert eventually(lambda: len(got) >= 3 or query.exception(), WAIT_SECONDS) is True, query.exception()
        assert got == numbers(5, 8)
    finally:
        query.stop()


def begun(start: Callable[[], StreamingQuery], batches: list[int]) -> StreamingQuery:
    """The query once its first batch is done. Like a pipeline, restart it if Spark gave its Python process
    up before that: Spark allows ten seconds, which is not a matter of the source, and no setting changes them."""
    for _ in range(TRIES_MAX):
        query = start()
        eventually(lambda query=query: batches or query.exception(), WAIT_SECONDS)
        if batches or LATE_PROCESS not in str(query.exception()):
            break
    assert query.exception() is None
    return query


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"subscribe": "a", "startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "no-such-topic-here"}, "create it with `millpond topic create no-such-topic-here`"),
        ({"kafka.auto.offset.reset": "latest", "subscribe": "a"}, "kafka.auto.offset.reset cannot be set"),
        ({}, "exactly one of subscribe, subscribePattern, assign"),
    ],
)
def test_errors_reach_the_user(spark: SparkSession, node: Node, given: dict[str, str], reason: str) -> None:
    with pytest.raises(Exception, match=r"Error|UnknownTopic") as raised:
        frame(spark, node, **given).count()
    assert reason in str(raised.value)


def test_the_columns_do_not_depend_on_batch_or_stream() -> None:
    both: dict[str, Any] = {"subscribe": "t", "includeHeaders": "true"}
    assert (
        schema_of(both) == schema_of({**both, "commitGroup": "g"}) == schema_of({**both, "endingOffsets": "latest"})
    )
    with pytest.raises(OptionError, match="did you mean includeHeaders"):
        schema_of({"subscribe": "t", "includeHeader": "true"})
    with pytest.raises(OptionError, match="not for a streaming read"):
        stream_reader_of({"subscribe": "t", "endingOffsets": "latest"}, schema_of({}))
    with pytest.raises(OptionError, match="not for a batch read"):
        reader_of({"subscribe": "t", "commitGroup": "g"}, schema_of({}))
    with pytest.raises(OptionError, match="leave out schema"):
        reader_of(both, schema_of({"subscribe": "t"}))
