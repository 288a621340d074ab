"""Rows from Spark in topics, byte for byte, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from millpond.client.errors import ClientError
from millpond.spark.sink.writer import batch_writer
from support.node import Node
from support.raw import Raw
from support.raw_transactions import committed_records
from support.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 5_000


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Every supported column, with nulls."""
    return spark.range(ROWS, numPartitions=3).select(
        f.when(f.col("id") % 5 == 0, None).otherwise(f.col("id").cast("string")).alias("key"),
        f.when(f.col("id") % 7 == 0, None).otherwise(f.concat(f.lit("value "), "id").cast("binary")).alias("value"),
        f.when(f.col("id") % 3 == 0, None)
        .otherwise(
            f.array(f.struct(f.lit("n").alias("key"), f.col("id").cast("string").cast("binary").alias("value")))
        )
        .alias("headers"),
        f.when(f.col("id") % 2 == 0, 1).cast("int").alias("partition"),
        f.timestamp_millis(f.col("id") + 1_700_000_000_000).alias("timestamp"),
        (f.col("id") * 2).alias("unused"),
    )


def expected() -> list[tuple[Any, ...]]:
    return sorted(
        (
            number + 1_700_000_000_000,
            None if number % 5 == 0 else b"%d" % number,
            None if number % 7 == 0 else b"value %d" % number,
            () if number % 3 == 0 else (("n", b"%d" % number),),
        )
        for number in range(ROWS)
    )


def stored(node: Node, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    with Raw(node.port) as raw:
        result = [record for each in range(partitions) for record in committed_records(raw, topic, each)]
    return sorted((each.timestamp, each.key, each.value, each.headers) for each in result)


def options(node: Node, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": node.bootstrap, "topic": topic, **more}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_rows_are_written_unchanged(node: Node, topic: str, rows: DataFrame, delivery: str) -> None:
    create_topic(node.bootstrap, topic, 3)
    given = options(node, topic, delivery=delivery, includeTimestamps="true", **{"kafka.compression.type": "zstd"})
    rows.write.format("millpond").options(**given).mode("append").save()
    assert stored(node, topic, 3) == expected()
    with Raw(node.port) as raw:
        in_one = [int(each.headers[0][1]) for each in committed_records(raw, topic, 1) if each.headers]
    assert {number for number in range(0, ROWS, 2) if number % 3} <= set(in_one), "as the column partition says"


@pytest.mark.smoke
def test_a_stream_writes_and_reads_the_same(
    spark: SparkSession, node: Node, topic: str, rows: DataFrame, checkpoint: str
) -> None:
    for name in (topic, f"{topic}-copy"):
        create_topic(node.bootstrap, name, 3)
    rows.write.format("millpond").options(**options(node, topic, includeTimestamps="true")).mode("append").save()
    stream = (
        spark.readStream.format("millpond")
        .options(**{"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
        .options(includeHeaders="true", maxOffsetsPerTrigger="3000")
        .load()
        # Rows are written as they were read: the column topic is replaced, the partition kept.
        .withColumn("topic", f.lit(f"{topic}-copy"))
    )
    given = {"kafka.bootstrap.servers": node.bootstrap, "checkpointLocation": checkpoint, "includeTimestamps": "true"}
    query = (
        stream.writeStream.format("millpond")
        .options(**given, delivery="exactly_once")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert stored(node, f"{topic}-copy", 3) == expected()
    for partition in range(3):
        with Raw(node.port) as raw:
            assert [each[1:] for each in committed_records(raw, f"{topic}-copy", partition)] == [
                each[1:] for each in committed_records(raw, topic, partition)
            ]


def test_a_numbered_write_is_done_once(spark: SparkSession, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    for version in (0, 1, 0, 1, 2):
        frame = spark.range(version * 10, version * 10 + 10, numPartitions=2).selectExpr(
            "cast(id as string) as value"
        )
        given = options(node, topic, delivery="exactly_once", txnAppId=f"job of {topic}", txnVersion=str(version))
        frame.write.format("millpond").options(**given).mode("append").save()
    assert sorted(int(record[2]) for record in stored(node, topic, 2)) == list(range(30))


def numbers_in(node: Node, topic: str) -> list[int]:
    return sorted(int(record[2]) for record in stored(node, topic, 2))


def test_two_writes_with_one_number_in_one_batch_of_a_stream(
    spark: SparkSession, node: Node, topic: str, checkpoint: str
) -> None:
    """In foreachBatch, two topics are two writes; a second write into the same topic is an error."""
    for name in (topic, f"{topic}-too"):
        create_topic(node.bootstrap, name, 2)
    names = [topic, f"{topic}-too"]

    def write(batch: DataFrame, number: int) -> None:
        for at, name in enumerate(names):
            given = options(node, name, delivery="exactly_once", txnAppId=f"of {topic}", txnVersion=str(number))
            frame = batch.selectExpr(f"cast(id + {at} * 100 as string) as value")
            frame.write.format("millpond").options(**given).mode("append").save()

    spark.range(10).write.parquet(f"{checkpoint}-rows")
    rows = spark.readStream.schema("id long").parquet(f"{checkpoint}-rows")
    stream = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    stream.option("checkpointLocation", checkpoint).start().awaitTermination()
    assert numbers_in(node, topic) == list(range(10))
    assert numbers_in(node, f"{topic}-too") == list(range(100, 110))
    names[1] = topic
    spark.range(10).write.mode("append").parquet(f"{checkpoint}-rows")
    with pytest.raises(Exception, match=r"txnVersion 1 .* other rows \(10\)"):
        stream.option("checkpointLocation", checkpoint).start().awaitTermination()


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"id": LongType()}, {}, "a row needs a column value"),
        ({"value": LongType()}, {}, "column value is bigint, and must be string or binary"),
        ({"value": StringType()}, {"topic": ""}, "option topic is empty"),
        ({"value": StringType()}, {"acks": "all"}, "there is no option acks"),
        ({"value": StringType()}, {"kafka.key.serializer": "x"}, r"option kafka\.key\.serializer cannot be set"),
        ({"value": StringType()}, {"txnAppId": "a"}, "txnAppId and txnVersion belong together"),
        ({"value": StringType()}, {"txnAppId": "a", "txnVersion": "1"}, "need delivery=exactly_once"),
    ],
)
def test_invalid_writes_are_refused_before_anything_runs(
    columns: dict[str, DataType], given: dict[str, str], message: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ClientError, match=message):
        batch_writer({"topic": "t", **given}, schema, False)


def test_rows_that_cannot_be_written_fail_the_job(spark: SparkSession, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    given = options(node, topic)
    frame = spark.range(3).selectExpr("'v' as value", "7 as partition", "cast(null as string) as topic")
    with pytest.raises(Exception, match="has partitions 0 to 0; a row asks for 7"):
        frame.write.format("millpond").options(**given).mode("append").save()
    del given["topic"]
    with pytest.raises(Exception, match="null in the column topic"):
        frame.write.format("millpond").options(**given).mode("append").save()


def test_a_topic_cannot_be_overwritten(spark: SparkSession, node: Node, topic: str, tmp_path: Path) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("millpond").options(**options(node, topic)).mode("overwrite").save()
    counted = spark.readStream.format("rate").load().groupBy().count().selectExpr("cast(count as string) as value")
    writer = counted.writeStream.format("millpond").options(**options(node, topic)).outputMode("complete")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.option("checkpointLocation", str(tmp_path)).trigger(once=True).start().awaitTermination()
