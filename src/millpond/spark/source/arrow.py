"""The source's rows as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millpond.spark.options import INCLUDE_HEADERS, Options
from millpond.wire.kernel import BinaryBuffers, Columns, HeaderBuffers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millpond.base.ports import Buffer

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
_FIELDS: Final = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
]
SCHEMA: Final = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS: Final = pa.schema([*_FIELDS, pa.field("headers", _HEADERS)])


def schema_of(options: Options) -> StructType:
    """The columns as Spark types: those of a Kafka source, then the parsed columns."""
    from pyspark.sql import types

    from millpond.spark.parsing import parsed_fields

    fields = [
        types.StructField("key", types.BinaryType()),
        types.StructField("value", types.BinaryType()),
        types.StructField("topic", types.StringType()),
        types.StructField("partition", types.IntegerType()),
        types.StructField("offset", types.LongType()),
        types.StructField("timestamp", types.TimestampType()),
        types.StructField("timestampType", types.IntegerType()),
    ]
    if options[INCLUDE_HEADERS]:
        header = [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
        fields.append(types.StructField("headers", types.ArrayType(types.StructType(header))))
    return types.StructType([*fields, *parsed_fields(options)])


class BatchMaker:
    """Builds the record batches of one partition. Constant columns are built once and sliced."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = pa.scalar(topic, pa.string())
        self._partition = pa.scalar(partition, pa.int32())
        self._topics = pa.repeat(self._topic, 0)
        self._partitions = pa.repeat(self._partition, 0)

    def make(self, columns: Columns) -> pa.RecordBatch:
        rows = columns.rows
        if rows > len(self._topics):
            self._topics = pa.repeat(self._topic, rows)
            self._partitions = pa.repeat(self._partition, rows)
        arrays = [
            _binary(pa.binary(), columns.key, rows),
            _binary(pa.binary(), columns.value, rows),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            _numbers(pa.int64(), columns.offsets, rows),
            _numbers(pa.timestamp("us", "UTC"), columns.timestamps, rows),
            _numbers(pa.int32(), columns.timestamp_types, rows),
        ]
        if columns.headers is None:
            return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        return pa.RecordBatch.from_arrays([*arrays, _headers(columns.headers, rows)], schema=SCHEMA_WITH_HEADERS)


def _numbers(kind: pa.DataType, values: Buffer, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], null_count=0)


def _binary(kind: pa.DataType, column: BinaryBuffers, rows: int) -> pa.Array:
    buffers = [_bits(column.validity), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=column.null_count)


def _headers(column: HeaderBuffers, rows: int) -> pa.Array:
    pairs = pa.Array.from_buffers(
        _HEADER,
        column.count,
        [None],
        null_count=0,
        children=[
            _binary(pa.string(), column.names, column.count),
            _binary(pa.binary(), column.values, column.count),
        ],
    )
    lists = [_bits(column.list_validity), pa.py_buffer(column.list_offsets)]
    return pa.Array.from_buffers(_HEADERS, rows, lists, null_count=column.list_null_count, children=[pairs])


def _bits(validity: Buffer | None) -> pa.Buffer | None:
    return None if validity is None else pa.py_buffer(validity)
