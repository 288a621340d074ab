"""Merge staged rows into the table in one commit, at most once for each batch of a query."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import DeltaError

from millpond.spark.lake.changes import last_rows, newer, quoted, same_keys
from millpond.spark.lake.commits import WriteId, add_columns, contend, properties
from millpond.spark.lake.errors import LakeError
from millpond.spark.lake.options import WriteOptions
from millpond.spark.lake.row_summary import summary_of_table
from millpond.spark.lake.schemas import check_partitions, check_writable, delta_schema
from millpond.spark.lake.staged_rows import StagedFile


def stored_schema(schema: pa.Schema, options: WriteOptions) -> pa.Schema:
    """The frame's columns without the delete marker."""
    return pa.schema([field for field in schema if field.name != options.delete_when])


def upsert(files: Sequence[StagedFile], schema: pa.Schema, options: WriteOptions, write_id: WriteId | None) -> bool:
    """Merge the staged rows into the table. False: this batch was already in it."""
    stored = stored_schema(schema, options)

    def once(table: DeltaTable | None) -> None:
        table = table or _make(options, stored)
        check_writable(table)
        if options.partition_by:
            check_partitions(table, options.partition_by)
        add_columns(table, stored)
        # A merge without changes writes no commit; repeating it is harmless.
        merge(table, changes(files, schema, options), stored, options, write_id)

    return contend(options.location, write_id, once, lambda: summary_of_table(changes(files, schema, options)))


def changes(files: Sequence[StagedFile], schema: pa.Schema, options: WriteOptions) -> pa.Table:
    """All staged rows, the last one of every key."""
    size = sum(file.bytes_in_memory for file in files)
    if size > options.upsert_bytes_max:
        raise LakeError(
            f"one batch changes {size} bytes of rows, more than upsertBytesMax={options.upsert_bytes_max}: read less "
            "per batch (maxOffsetsPerTrigger), or allow more where the driver has the memory"
        )
    where = options.location.files()
    parts = [pq.read_table(file.path, filesystem=where, schema=schema) for file in sorted(files, key=_order)]
    rows = pa.concat_tables(parts) if parts else schema.empty_table()
    last = last_rows(rows, options.keys, options.order_by)
    if last.num_rows < rows.num_rows and not options.order_by and len({file.task for file in files}) > 1:
        _refuse_doubtful(parts, files, options)
    return last


def _order(file: StagedFile) -> int:
    # The sort is stable, so the files of one task stay in the order in which it wrote them.
    return file.task


def _refuse_doubtful(parts: Sequence[pa.Table], files: Sequence[StagedFile], options: WriteOptions) -> None:
    """Refuse a key from two tasks without an order: which row is last would be random."""
    keys = list(options.keys)
    by_task: dict[int, list[pa.Table]] = {}
    for file, part in zip(sorted(files, key=_order), parts, strict=True):
        by_task.setdefault(file.task, []).append(part.select(keys))
    distinct = [pa.concat_tables(each).group_by(keys).aggregate([]) for each in by_task.values()]
    joined = pa.concat_tables(distinct)
    if joined.group_by(keys).aggregate([]).num_rows < joined.num_rows:
        raise LakeError(
            "rows with the same keys came from two tasks of one batch, and nothing says which is the last: give "
            'option("orderBy", …) with a column that rises, such as an offset or a time'
        )


def merge(
    table: DeltaTable, rows: pa.Table, stored: pa.Schema, options: WriteOptions, write_id: WriteId | None
) -> None:
    if not rows.num_rows:
        return
    columns = {quoted(name): f"source.{quoted(name)}" for name in stored.names}
    is_newer = newer(options.order_by) if options.ignore_late else "true"
    merger = table.merge(
        rows if options.delete_when is None else _with_plain_deletes(rows, options.delete_when),
        same_keys(options.keys),
        source_alias="source",
        target_alias="target",
        # Not streamed: with the bounds of the changed keys, other files are skipped.
        streamed_exec=False,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
        commit_properties=properties(write_id, summary_of_table(rows) if write_id and write_id.is_job else ""),
    )
    if options.delete_when is None:
        merger.when_matched_update(columns, predicate=is_newer).when_not_matched_insert(columns).execute()
        return
    gone = f"source.{quoted(options.delete_when)}"
    merger = merger.when_matched_delete(f"{gone} AND {is_newer}")
    merger = merger.when_matched_update(columns, predicate=f"NOT {gone} AND {is_newer}")
    merger.when_not_matched_insert(columns, predicate=f"NOT {gone}").execute()


def _with_plain_deletes(rows: pa.Table, column: str) -> pa.Table:
    """Null counts as false: with SQL's null a row would neither be deleted nor inserted."""
    return rows.set_column(rows.schema.get_field_index(column), column, rows.column(column).fill_null(False))


def _make(options: WriteOptions, stored: pa.Schema) -> DeltaTable:
    """Create the empty table in a separate commit, which is harmless if a crash follows."""
    try:
        return DeltaTable.create(
            options.location.uri,
            delta_schema(stored),
            partition_by=list(options.partition_by),
            # Merges take their target file size from here.
            configuration={"delta.targetFileSize": str(options.target_file_bytes)},
            storage_options=dict(options.location.storage) or None,
            commit_properties=properties(None, "", tries=0),
        )
    except DeltaError:
        table = options.location.table()
        if table is None:
            raise
        return table
