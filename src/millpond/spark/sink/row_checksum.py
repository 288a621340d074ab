"""A checksum of a task's rows, to detect whether a replay brought the same rows.

Batches of a stream are compared task by task: the order counts, and the checksum costs next to nothing. A job may
split the same rows into other tasks when it runs again, so its rows are hashed one by one and summed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.columns.rows import Shape
from millpond.wire.checksum import crc32c

DIGEST_BYTES: Final = 8
SUM_MODULUS: Final = 1 << 8 * DIGEST_BYTES


class RowSum:
    """Independent of row order: the sums of several tasks add up to the sum of all rows."""

    def __init__(self, shape: Shape) -> None:
        self._columns = sorted(shape.columns)
        self._sum = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if batch.num_rows:
            rows = _joined([batch.column(name) for name in self._columns]).to_pylist()
            # Not a CRC, which is linear: different sets of rows that share parts could have the same sum.
            digests = b"".join(blake2b(row, digest_size=DIGEST_BYTES).digest() for row in rows)
            self._sum = (self._sum + int(np.frombuffer(digests, np.uint64).sum())) % SUM_MODULUS

    def text(self) -> str:
        """Empty without rows."""
        return f"{self._sum:x}" if self.rows else ""


def total_of(sums: Iterable[str]) -> int:
    """The sum of all tasks' sums."""
    return sum(int(each, 16) for each in sums if each) % SUM_MODULUS


def _joined(columns: list[pa.Array]) -> pa.Array:
    """Each row as bytes with length-prefixed columns, so that different rows differ."""
    parts: list[pa.Array] = []
    for column in columns:
        data = _bytes_of(column)
        parts += [pc.binary_length(data).fill_null(-1).cast(pa.string()).cast(pa.binary()), data]
    return pc.binary_join_element_wise(*parts, b":", null_handling="replace", null_replacement=b"")


def _bytes_of(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        pairs = column.flatten()
        headers = _joined(pairs.flatten()) if len(pairs) else pa.array([], pa.binary())
        lengths = pc.list_value_length(column).fill_null(0).cast(pa.int64()).to_numpy()
        ends = np.concatenate([[0], np.cumsum(lengths)])
        lists = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), headers), b",")
        return pc.if_else(column.is_valid(), lists, None)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).cast(pa.string()).cast(pa.binary())
    return column.cast(pa.binary())


class RowChecksum:
    """Depends on row order, not on how rows were split into Arrow batches."""

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
        sums = "\n".join(f"{name} {value}" for name, value in sorted(self._sums.items()))
        return blake2b(f"{self.rows}\n{sums}".encode(), digest_size=DIGEST_BYTES).hexdigest()

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
            # Ignore the bytes under a null.
            column = column.drop_null()
        _, offsets, data = column.buffers()
        if data is None or not len(column):
            return
        ends = memoryview(offsets).cast("B").cast("i")
        self._sum(name, memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]])

    def _sum(self, name: str, data: memoryview) -> None:
        self._sums[name] = crc32c(data, self._sums.get(name, 0))
