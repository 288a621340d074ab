"""Records as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millpond.wire.kernel import BinaryBuffers, ColumnBuilder, Columns, HeaderBuffers

if TYPE_CHECKING:
    from millpond.base.ids import TopicPartition
    from millpond.base.ports import Buffer
    from millpond.remote.reader import RawBatch

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


ROWS_PER_BATCH: Final = 32 << 10
BYTES_PER_BATCH: Final = 4 << 20
"""A batch is complete when it reaches either limit. Larger ones only need more memory."""


def arrow_batches(
    raw: Iterable[tuple[int, RawBatch]], partition: TopicPartition, end: int, *, with_headers: bool
) -> Iterator[pa.RecordBatch]:
    """The records below `end` of batches as fetched, each given with its first offset to use."""
    builder = ColumnBuilder(with_headers)
    maker = BatchMaker(*partition)
    for first, (header, payload) in raw:
        builder.add(
            payload,
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp if header.is_append_time else None,
            first,
            end,
        )
        if builder.rows >= ROWS_PER_BATCH or builder.data_bytes >= BYTES_PER_BATCH:
            yield maker.make(builder.take())
    if builder.rows:
        yield maker.make(builder.take())


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
