"""Read a version of a table as Arrow batches with Spark's columns.

The version is fixed when the query is planned, so a table that changes meanwhile is read as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millpond.spark.lake.errors import LakeError, UnsupportedTable
from millpond.spark.lake.location import path_in_log
from millpond.spark.lake.options import ReadOptions, read_options

PART_BYTES: Final = 64 << 20
"""Small files are read together, up to this size."""
BATCH_ROWS: Final = 16_384
_READABLE: Final = frozenset({"timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"})


@dataclass(frozen=True)
class FilesPart:
    """What one task reads: files with their partition values from the log."""

    files: tuple[tuple[str, dict[str, str | None]], ...]


def open_table(options: ReadOptions) -> DeltaTable:
    table = options.location.table()
    if table is None:
        raise LakeError(f"there is no Delta table at {options.location.uri}: check the path")
    _travel(table, options)
    _check_readable(table)
    return table


def _travel(table: DeltaTable, options: ReadOptions) -> None:
    newest = table.version()
    try:
        if options.version is not None:
            table.load_as_version(options.version)
        elif options.timestamp is not None:
            table.load_as_version(options.timestamp)
    except ValueError as error:
        raise LakeError(f"timestampAsOf={options.timestamp}: {error}; write it as 2026-01-31T12:00:00Z") from None
    except DeltaError as error:
        raise LakeError(
            f"versionAsOf={options.version} cannot be read, the newest is {newest} and old ones go in time: "
            f"{str(error).splitlines()[0]}"
        ) from None


def table_schema(options: ReadOptions) -> StructType:
    """The table's columns as Spark types: both use the same JSON."""
    return StructType.fromJson(json.loads(open_table(options).schema().to_json()))


def _check_readable(table: DeltaTable) -> None:
    features = set(table.protocol().reader_features or ())
    strange = features - _READABLE
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        strange.add("columnMapping")
    if (
        "deletionVectors" in features
        and pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all().num_rows
    ):
        strange.add("deletion vectors")
    if strange:
        raise UnsupportedTable(
            f"the table uses {', '.join(sorted(strange))}, which this reader does not know: rewrite it without (for "
            "deletion vectors: REORG TABLE … APPLY (PURGE)), or read it with Delta's own connector"
        )


class LakeReading:
    """One read of a table. Picklable, for the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def parts(self) -> list[FilesPart]:
        table = open_table(self.options)
        names = table.metadata().partition_columns
        actions = pa.table(table.get_add_actions())
        parts: list[FilesPart] = []
        files: list[tuple[str, dict[str, str | None]]] = []
        size = 0
        for action in actions.to_pylist():
            path = path_in_log(action["path"])
            if "://" in path:
                raise UnsupportedTable(f"the table names files of another location ({path}): copy them into it")
            if files and size + action["size_bytes"] > PART_BYTES:
                parts.append(FilesPart(tuple(files)))
                files, size = [], 0
            files.append((path, {name: action["partition"][name] for name in names}))
            size += action["size_bytes"]
        return [*parts, FilesPart(tuple(files))] if files else parts

    def read(self, part: FilesPart) -> Iterator[pa.RecordBatch]:
        where = self.options.location.files()
        for path, values in part.files:
            with where.open_input_file(path) as source:
                yield from self._read_file(pq.ParquetFile(source), values)

    def _read_file(self, file: Any, values: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        inside = [field.name for field in file.schema_arrow]
        columns_to_read = [name for name in self.schema.names if name in inside and name not in values]
        for batch in file.iter_batches(BATCH_ROWS, columns=columns_to_read):
            columns = [self._column(field, batch, values) for field in self.schema]
            # Casts where an older file has fewer fields in a struct, or other names for list elements.
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch, values: dict[str, Any]) -> pa.Array:
        if field.name in values:
            return pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        return batch.column(field.name)


@dataclass
class Part(InputPartition):
    files: FilesPart

    def __init__(self, files: FilesPart) -> None:
        super().__init__(None)
        self.files = files


class TableReader(DataSourceReader):
    def __init__(self, reading: LakeReading) -> None:
        self.reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(each) for each in self.reading.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):
            yield from self.reading.read(partition.files)


def schema_of(options: Mapping[str, str]) -> StructType:
    return table_schema(read_options(options))


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    return TableReader(LakeReading(read_options(options), schema))
