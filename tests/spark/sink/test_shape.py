"""Schemas that can be written, and errors for others."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.columns.rows import Shape
from millpond.spark.sink.errors import SinkError
from millpond.spark.sink.shape import shape_of


def pairs(value: DataType) -> DataType:
    return ArrayType(StructType([StructField("key", StringType()), StructField("value", value)]))


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map": MapType(StringType(), BinaryType()),
    "headers": pairs(BinaryType()),
    "texts": pairs(StringType()),
}


def schema(text: str) -> StructType:
    fields = [each.split() for each in text.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    ("text", "topic", "columns"),
    [
        ("value string", "t", {"value"}),
        ("key binary, value binary, topic string", None, {"key", "value", "topic"}),
        # The option wins over the column.
        ("value string, topic string, partition int", "t", {"value", "partition"}),
        # Rows of the source can be written without a select; columns without a place in a record are ignored.
        (
            "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
            "timestampType int, headers headers",
            "t",
            {"key", "value", "partition", "headers"},
        ),
    ],
)
def test_columns_are_taken_by_name(text: str, topic: str | None, columns: set[str]) -> None:
    assert shape_of(schema(text), topic, with_timestamps=False) == Shape(topic, frozenset(columns))


def test_timestamps_are_written_if_requested() -> None:
    for kind in ("timestamp", "timestamp_ntz", "long"):
        assert shape_of(schema(f"value string, timestamp {kind}"), "t", with_timestamps=True).has("timestamp")


@pytest.mark.parametrize(
    ("text", "topic", "timestamps", "message"),
    [
        ("key string", "t", False, "needs a column value.*these have key"),
        ("value string", None, False, "option topic, or with a column topic"),
        ("value long", "t", False, "column value is bigint, and must be string or binary: cast"),
        ("value string, key int", "t", False, "column key is int"),
        ("value string, partition long", "t", False, "column partition is bigint, and must be int"),
        ("value string, topic int", None, False, "column topic is int"),
        ("value string, headers map", "t", False, "column headers is map<string,binary>, and must be"),
        ("value string, headers texts", "t", False, "column headers"),
        ("value string", "t", True, "includeTimestamps=true needs a column timestamp"),
        ("value string, timestamp date", "t", True, "column timestamp is date"),
    ],
)
def test_invalid_columns_are_refused(text: str, topic: str | None, timestamps: bool, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        shape_of(schema(text), topic, with_timestamps=timestamps)
