"""archive: the rows of the table."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from millpond.spark.pipelines.kinds.archive import Archive, archive_rows, raw_columns
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import at, parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_table_has_the_parsed_columns_the_record_and_a_date_of_the_event(spark: SparkSession) -> None:
    frame = parsed_frame(
        spark,
        "id long, at timestamp",
        [{"id": 1, "at": at(-86_400)}, {"id": 2, "at": None, "_timestamp": at(86_400)}],
    )
    rows = archive_rows(frame, Archive(table="lake/orders", time="at", columns={"twice": "id * 2"}))
    assert rows.columns == [
        "id", "at", "_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "twice", "date",
    ]  # fmt: skip
    result = {row.id: (row.date, row.twice) for row in rows.collect()}
    assert result == {1: (date(2026, 1, 30), 2), 2: (date(2026, 2, 1), 4)}, "without a time, the log's own counts"


def test_partition_columns_are_derived_from_the_time_or_columns_of_the_rows(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "region string, hour string", [{"region": "eu", "hour": "mine"}])
    rows = archive_rows(frame, Archive(table="t", partition_by=["region", "year", "month", "hour"]))
    row = rows.collect()[0]
    assert (row.region, row.year, row.month, row.hour) == ("eu", "2026", "2026-01", "mine")
    with pytest.raises(DeclarationError, match=r"no column 'regoin'; did you mean region\?"):
        archive_rows(frame, Archive(table="t", partition_by=["regoin"]))


def test_a_raw_archive_keeps_the_bytes_of_the_source(spark: SparkSession) -> None:
    source = spark.createDataFrame(
        [(b"k", b"\x00\xff", "orders", 1, 7, at(0), 0, [("h", b"1")])],
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
        "headers array<struct<key:string,value:binary>>",
    )
    row = archive_rows(raw_columns(source), Archive(table="t", raw=True)).collect()[0]
    assert (bytes(row.value), bytes(row._key), row._partition, row._offset) == (b"\x00\xff", b"k", 1, 7)
    assert row.date == date(2026, 1, 31)
    assert [(each.key, bytes(each.value)) for each in row._headers] == [("h", b"1")]


def test_the_sink_has_the_options_of_the_table() -> None:
    job = Archive(
        table="lake/orders", file_size="1 MiB", compact_every=3, vacuum="2 days", options={"vacuumShort": True}
    )
    sink = job.sink({})
    assert (sink.format, sink.mode) == ("millpond_delta", "append")
    assert sink.options == {
        "path": "lake/orders", "partitionBy": "date", "targetFileBytes": "1048576", "compactEvery": "3",
        "vacuumHours": "48", "vacuumShort": "true",
    }  # fmt: skip
    assert "vacuumHours" not in Archive(table="t", compact_every=0).sink({}).options
