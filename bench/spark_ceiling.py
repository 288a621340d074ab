"""The most that Spark can read and write: a source with prepared rows, and a sink that discards rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

BATCH_ROWS = 32 << 10
"""The batch size of the topic's source."""

PARTITIONS = 2
VALUE_BYTES = 100
COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


class Ceiling(DataSource):
    """`rows` in total; `shape` is arrow, or tuples as in ordinary Python sources."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyRows(int(self.options["rows"]) // PARTITIONS, self.options["shape"] == "arrow")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return Nowhere()


class ReadyRows(DataSourceReader):
    def __init__(self, rows: int, in_arrow: bool) -> None:
        self._rows = rows
        self._in_arrow = in_arrow

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        row = (None, b"v" * VALUE_BYTES, "topic", 0, 1, datetime.now(UTC), 0)
        if not self._in_arrow:
            for _ in range(self._rows):
                yield row
            return
        columns = [pa.array([value] * BATCH_ROWS, field.type) for value, field in zip(row, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        for first in range(0, self._rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, self._rows - first))


class Nowhere(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            assert batch.num_columns
        return WriterCommitMessage()
