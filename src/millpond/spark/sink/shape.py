"""The columns of the sink, with the names and types of Spark's Kafka sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.columns.rows import HEADERS, KEY, PARTITION, TIMESTAMP, TOPIC, VALUE, Shape
from millpond.spark.sink.errors import SinkError


def shape_of(schema: StructType, topic: str | None, *, with_timestamps: bool) -> Shape:
    """SinkError if a column is missing or has the wrong type."""
    types = {field.name: field.dataType for field in schema.fields}
    if VALUE not in types:
        raise SinkError(
            f"a row needs a column {VALUE} (string or binary); these have {_names(schema)}. "
            f"Make one, for instance: df.selectExpr('to_json(struct(*)) AS {VALUE}')"
        )
    if topic is None and TOPIC not in types:
        raise SinkError(f"say where the rows go: with option {TOPIC}, or with a column {TOPIC} of strings")
    if with_timestamps and TIMESTAMP not in types:
        raise SinkError(f"includeTimestamps=true needs a column {TIMESTAMP}; these rows have {_names(schema)}")
    columns = {KEY, VALUE, HEADERS, PARTITION} & types.keys()
    columns |= {TIMESTAMP} if with_timestamps else set()
    columns |= {TOPIC} if topic is None else set()
    for name in sorted(columns):
        is_right, described = _EXPECTED[name]
        if not is_right(types[name]):
            raise SinkError(
                f"column {name} is {types[name].simpleString()}, and must be {described}: cast it before the write"
            )
    return Shape(topic, frozenset(columns))


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_EXPECTED: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    KEY: (_is_text, "string or binary"),
    VALUE: (_is_text, "string or binary"),
    HEADERS: (_is_headers, "array<struct<key:string,value:binary>>"),
    TOPIC: (lambda kind: isinstance(kind, StringType), "string"),
    PARTITION: (lambda kind: isinstance(kind, IntegerType), "int"),
    TIMESTAMP: (
        lambda kind: isinstance(kind, TimestampType | TimestampNTZType | LongType),
        "timestamp, timestamp_ntz or bigint (milliseconds)",
    ),
}


def _names(schema: StructType) -> str:
    return ", ".join(schema.fieldNames()) or "no columns"
