"""The Parquet files of one task: writes batches to files of the target size, one folder per partition."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.spark.lake.layout import Values, folder, split
from millpond.spark.lake.location import Location
from millpond.spark.lake.schemas import fit
from millpond.spark.lake.statistics import file_statistics

ROW_GROUP_BYTES: Final = 32 << 20
"""The in-memory size of a row group: larger ones write faster and compress better, but every open file buffers
one."""
PENDING_BYTES_MAX: Final = 128 << 20
OPEN_FILES_MAX: Final = 64
DICTIONARY_BYTES: Final = 64 << 10
"""A column whose distinct values exceed this is written without a dictionary, which would cost time and save
nothing."""


@dataclass(frozen=True)
class WrittenFile:
    """A complete file in the table's folder that is not part of the table yet."""

    path: str
    size: int
    partition_values: dict[str, str | None]
    statistics: str
    written_ms: int


@dataclass
class _Open:
    """A file being written, and the rows that wait for its next row group."""

    path: str
    values: Values
    writer: Any
    sink: Any
    footers: list[Any]
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0


class TableFiles:
    """The files one task writes. Names are unique per attempt, so attempts do not interfere."""

    def __init__(
        self, location: Location, schema: pa.Schema, partition_by: tuple[str, ...], target_bytes: int, task: int = 0
    ) -> None:
        self._location = location
        self._files = location.files()
        self._schema = schema
        self._inner = pa.schema([each for each in schema if each.name not in partition_by])
        self._partition_by = partition_by
        self._target_bytes = target_bytes
        self._row_group_bytes = min(ROW_GROUP_BYTES, max(1 << 16, target_bytes))
        self._task = task
        self._open: dict[Values, _Open] = {}
        self._pending_bytes = 0
        self._finished: list[WrittenFile] = []
        self._paths: list[str] = []
        self._parquet_options = parquet_options(self._inner)

    def add(self, batch: pa.RecordBatch) -> None:
        for values, rows in split(fit(batch, self._schema), self._partition_by):
            if not rows.num_rows:
                continue
            file = self._open.pop(values, None) or self._begin(values)
            # In order of last use: the first is the next to close.
            self._open[values] = file
            size = rows.nbytes
            file.pending.append(rows)
            file.pending_bytes += size
            self._pending_bytes += size
            if file.pending_bytes >= self._row_group_bytes:
                self._write(file)
        while self._pending_bytes > PENDING_BYTES_MAX:
            self._write(max(self._open.values(), key=lambda each: each.pending_bytes))

    def finish(self) -> tuple[WrittenFile, ...]:
        for file in list(self._open.values()):
            self._close(file)
        return tuple(self._finished)

    def discard(self) -> None:
        """Delete the files of a failed task."""
        for file in self._open.values():
            file.writer.close()
            file.sink.close()
        self._open.clear()
        self._location.remove(self._paths)

    def _begin(self, values: Values) -> _Open:
        if len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open.values())))
        below = folder(self._partition_by, values)
        self._location.make_folder(below)
        name = f"part-{self._task:05d}-{uuid.uuid4()}.zstd.parquet"
        path = f"{below}/{name}" if below else name
        self._paths.append(path)
        sink = self._files.open_output_stream(path)
        footers: list[Any] = []
        writer = pq.ParquetWriter(sink, self._inner, metadata_collector=footers, **self._parquet_options)
        return _Open(path, values, writer, sink, footers)

    def _write(self, file: _Open) -> None:
        file.writer.write_table(pa.Table.from_batches(file.pending, schema=self._inner))
        self._pending_bytes -= file.pending_bytes
        file.pending, file.pending_bytes = [], 0
        if file.sink.tell() >= self._target_bytes:
            self._close(file)

    def _close(self, file: _Open) -> None:
        del self._open[file.values]
        if file.pending:
            file.writer.write_table(pa.Table.from_batches(file.pending, schema=self._inner))
            self._pending_bytes -= file.pending_bytes
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        self._finished.append(
            WrittenFile(
                file.path,
                size,
                dict(zip(self._partition_by, file.values, strict=True)),
                file_statistics(file.footers[0], self._inner),
                time.time_ns() // 1_000_000,
            )
        )


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """zstd, with delta encoding for mostly rising numbers (offsets, times)."""
    rising = [each.name for each in schema if pa.types.is_int64(each.type) or pa.types.is_timestamp(each.type)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "dictionary_pagesize_limit": DICTIONARY_BYTES,
        "use_dictionary": [each.name for each in schema if each.name not in rising],
        "column_encoding": dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
    }
