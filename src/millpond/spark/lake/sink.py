"""The sink without Spark: tasks write files, the driver commits them.

    task:    rows -> Parquet files with new names (append), or staged last rows per key (upsert) -> a message
    driver:  commit(messages) -> one commit to the log for the whole batch; abort(messages) -> delete their files

Spark may run a task twice, or lose the driver at any point and run the same batch again. No two attempts use the same
file names, and only the commit, which records its batch, makes files part of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millpond.spark.lake import upkeep
from millpond.spark.lake.changes import check_keys
from millpond.spark.lake.commits import WriteId, publish
from millpond.spark.lake.errors import LakeOptionError, WriteTaken
from millpond.spark.lake.files import TableFiles, WrittenFile
from millpond.spark.lake.layout import check_partitionable
from millpond.spark.lake.location import path_in_log
from millpond.spark.lake.options import WriteOptions
from millpond.spark.lake.schemas import check_columns
from millpond.spark.lake.staged_rows import StagedFile, Staging, batch_folder
from millpond.spark.lake.upserts import stored_schema, upsert


@dataclass(frozen=True)
class TaskResult:
    """The result of one task."""

    query_id: str | None
    batch_id: int | None
    """The streaming query and its batch; None outside a stream."""
    files: tuple[WrittenFile, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    run: str = ""
    """The stream's run."""


@dataclass(frozen=True)
class TaskIdentity:
    query_id: str | None
    batch_id: int | None
    partition: int
    run: str = ""


class _RowWriter(Protocol):
    def add(self, batch: pa.RecordBatch) -> None: ...
    def discard(self) -> None: ...


class LakeSink:
    """Writes one frame to one table. Small and picklable, for the executors."""

    def __init__(self, options: WriteOptions, schema: pa.Schema, overwrite: bool = False) -> None:
        self.options = options
        self.schema = schema
        self.overwrite = overwrite
        _check(options, schema, overwrite)

    def write(self, batches: Iterator[pa.RecordBatch], task: TaskIdentity) -> TaskResult:
        """In a task: write the rows to files that are not part of the table yet."""
        options = self.options
        if not options.is_upsert:
            files = TableFiles(
                options.location, self.schema, options.partition_by, options.target_file_bytes, task.partition
            )
            _add_all(files, batches)
            return TaskResult(task.query_id, task.batch_id, files=files.finish(), run=task.run)
        folder = batch_folder(task.query_id, task.batch_id)
        staging = Staging(options.location, self.schema, options.keys, options.order_by, folder, task.partition)
        _add_all(staging, batches)
        return TaskResult(task.query_id, task.batch_id, staged=staging.finish(), run=task.run)

    def commit(self, results: Sequence[TaskResult], batch_id: int | None = None) -> None:
        """In the driver, after all tasks: commit the batch, unless the table already has it."""
        write_id = self._write_id(results, batch_id)
        if self.options.is_upsert:
            self._merge(results, write_id)
        else:
            self._publish(results, write_id)
        if write_id is not None:
            upkeep.after_batch(self.options, write_id.batch_id)

    def abort(self, results: Sequence[TaskResult], batch_id: int | None = None) -> None:
        """In the driver, after a failure, possibly after the commit: delete what is not in the table."""
        staged = [file.path for result in results for file in result.staged]
        self.options.location.remove(staged)
        written = [file.path for result in results for file in result.files]
        if written and not self._may_be_published(written, self._write_id(results, batch_id)):
            self.options.location.remove(written)

    def _publish(self, results: Sequence[TaskResult], write_id: WriteId | None) -> None:
        files = [file for result in results for file in result.files]
        if not files and not self.overwrite:
            return
        options = self.options
        is_new = False
        try:
            is_new = publish(
                options.location, files, self.schema, options.partition_by, write_id, overwrite=self.overwrite
            )
        except WriteTaken:
            options.location.remove(file.path for file in files)
            raise
        if not is_new:
            options.location.remove(file.path for file in files)

    def _merge(self, results: Sequence[TaskResult], write_id: WriteId | None) -> None:
        staged = [file for result in results for file in result.staged]
        if staged:
            upsert(staged, self.schema, self.options, write_id)
            # Whole folders, including what failed attempts of this batch staged.
            for folder in {file.folder for file in staged}:
                self.options.location.remove_folder(folder)

    def _write_id(self, results: Sequence[TaskResult], batch_id: int | None) -> WriteId | None:
        run = next((result.run for result in results), "")
        if self.options.txn_app_id is not None:
            return WriteId(self.options.txn_app_id, self.options.txn_version, is_job=True, run=run)
        for result in results:
            number = result.batch_id if batch_id is None else batch_id
            if result.query_id is not None and number is not None:
                return WriteId(result.query_id, number, is_job=self.options.of_stream, run=run)
        return None

    def _may_be_published(self, paths: Iterable[str], write_id: WriteId | None) -> bool:
        table = self.options.location.table()
        if table is None:
            return False
        if write_id is not None and write_id.is_done(table):
            # These files or those of an earlier attempt. The next vacuum deletes what is not in the table.
            return True
        inside = {path_in_log(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()}
        return not inside.isdisjoint(paths)


def _add_all(writer: _RowWriter, batches: Iterator[pa.RecordBatch]) -> None:
    try:
        for batch in batches:
            writer.add(batch)
    except BaseException:
        writer.discard()
        raise


def _check(options: WriteOptions, schema: pa.Schema, overwrite: bool) -> None:
    """Check the options against the frame."""
    check_columns(options.partition_by, schema, "partitionBy")
    check_columns(options.keys, schema, "keys")
    check_columns(options.order_by, schema, "orderBy")
    check_partitionable(stored_schema(schema, options), options.partition_by)
    check_keys(schema, options.keys)
    if options.delete_when is not None:
        check_columns([options.delete_when], schema, "deleteWhen")
        if not pa.types.is_boolean(schema.field(options.delete_when).type):
            raise LakeOptionError(f"deleteWhen: column {options.delete_when} is not boolean")
    if overwrite and options.is_upsert:
        raise LakeOptionError(
            'mode=upsert changes rows, so it goes with Spark\'s mode "append" or "update", not with '
            '"overwrite" or "complete"'
        )
