"""A fingerprint of the rows that a task was given, to tell whether a replay brought the same ones again."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millpond.spark.sink.shape import Shape
from millpond.wire.checksum import crc32c

DIGEST_BYTES: Final = 8


class RowChecksum:
    """Rows and their order count; how they were cut into Arrow batches does not."""

    def __init__(self, shape: Shape) -> None:
        self._columns = sorted(shape.columns)
        self._sums: dict[str, int] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in self._columns:
            self._add(name, batch.column(name))

    def text(self) -> str:
        """Empty without rows."""
        if not self.rows:
            return ""
        told = "\n".join(f"{name} {value}" for name, value in sorted(self._sums.items()))
        return blake2b(f"{self.rows}\n{told}".encode(), digest_size=DIGEST_BYTES).hexdigest()

    def _add(self, name: str, column: pa.Array) -> None:
        kind = column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._add_numbers(name, pc.list_value_length(column))
            pairs = column.flatten()
            for number, part in enumerate(pairs.flatten()):
                self._add(f"{name}.{number}", part)
        elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
            self._add_numbers(name, column.cast(pa.int64()))
        else:
            self._add_numbers(name, pc.binary_length(column))
            self._add_bytes(f"{name} bytes", column)

    def _add_numbers(self, name: str, column: pa.Array) -> None:
        if column.null_count:
            # No length, partition or time of a record is -1.
            column = column.fill_null(-1)
        column = column.cast(pa.int64())
        data = column.buffers()[1]
        if data is not None and len(column):
            start = column.offset * 8
            self._sum(name, memoryview(data)[start : start + len(column) * 8])

    def _add_bytes(self, name: str, column: pa.Array) -> None:
        if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.binary())
        if column.null_count:
            # What lies under a null is nobody's business.
            column = column.drop_null()
        _, offsets, data = column.buffers()
        if data is None or not len(column):
            return
        ends = memoryview(offsets).cast("B").cast("i")
        self._sum(name, memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]])

    def _sum(self, name: str, data: memoryview) -> None:
        self._sums[name] = crc32c(data, self._sums.get(name, 0))
