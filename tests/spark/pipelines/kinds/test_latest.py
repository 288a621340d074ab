"""latest: records of a compacted topic as changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.spark.pipelines.kinds.latest import Latest, changes
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_records_become_changes_and_tombstones_delete(spark: SparkSession) -> None:
    frame = parsed_frame(
        spark,
        "name string",
        [
            {"name": "ann", "_key": b"1"},
            {"name": None, "_key": b"1", "_value": None},
            {"name": None, "_key": b"2", "_value": b"{}"},
            {"name": "nobody", "_key": None},
        ],
    )
    rows = changes(frame, Latest(table="t", key={"id": "cast(cast(_key as string) as bigint)"}))
    assert rows.columns == ["id", "name", "_topic", "_partition", "_offset", "_timestamp", "_deleted"]
    assert [(row.id, row.name, row._deleted) for row in rows.orderBy("_offset").collect()] == [
        (1, "ann", False),
        (1, None, True),
        (2, None, False),
    ]


def test_without_the_bytes_a_row_of_nulls_is_a_tombstone(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "a int, b int", [{"_key": b"x"}, {"a": 1, "_key": b"y"}]).drop("_value")
    assert {row.key: row._deleted for row in changes(frame, Latest(table="t")).collect()} == {"x": True, "y": False}


def test_delete_when_decides_and_unparsed_records_change_nothing(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    frame = parsed_frame(
        spark,
        "state string",
        [
            {"state": "gone", "_key": b"a"},
            {"state": None, "_key": b"b", "_value": None},
            {"state": "here", "_key": b"bad"},
            {"state": "here"},
        ],
    ).withColumn("_fault", f.when(f.col("_key") == b"bad", f.lit("no JSON")))
    rows = changes(frame, Latest(table="t", delete_when="state = 'gone'"))
    assert {row.key: row._deleted for row in rows.collect()} == {"a": True, "b": False}


def test_the_sink_upserts_in_the_order_of_the_log(spark: SparkSession) -> None:
    options = Latest(table="t", key=["id"], order_by="_offset").sink({}).options
    assert {name: options[name] for name in ("mode", "keys", "orderBy", "deleteWhen")} == {
        "mode": "upsert", "keys": "id", "orderBy": "_offset", "deleteWhen": "_deleted",
    }  # fmt: skip
    with pytest.raises(DeclarationError, match="no column '_ofset'; did you mean _offset"):
        changes(parsed_frame(spark, "a int", []), Latest(table="t", order_by="_ofset"))
