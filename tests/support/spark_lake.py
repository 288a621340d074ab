"""A small model of Spark's micro-batch loop around the lake sink: tasks, commit, abort, and a crash at any point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable

from millpond.spark.lake.options import write_options
from millpond.spark.lake.sink import LakeSink, TaskIdentity

Row = dict[str, Any]

Fault = Literal[
    "none", "task fails", "dies before commit", "fails before commit", "fails after commit", "dies after commit"
]
FAULTS: tuple[Fault, ...] = (
    "none",
    "task fails",
    "dies before commit",
    "fails before commit",
    "fails after commit",
    "dies after commit",
)


class Broken(Exception):
    """A failure that a test injected."""


class Stream:
    """One streaming query over one table. A batch is the rows of each of its tasks."""

    def __init__(self, path: Path, schema: pa.Schema, query_id: str = "query", **options: str) -> None:
        self.path = path
        self.query_id = query_id
        self.schema = schema
        self.sink = LakeSink(write_options({"path": str(path), **options}), schema)

    def run(self, batch_id: int, tasks: Sequence[Sequence[Row]], fault: Fault = "none") -> None:
        """One attempt at a batch; with a fault, it ends as Spark would end it, and raises Broken."""
        results = [self._task(batch_id, number, rows) for number, rows in enumerate(tasks)]
        if fault == "task fails":
            # The last task is lost after its write; Spark passes on what the others have.
            self.sink.abort(results[:-1], batch_id)
            raise Broken(fault)
        if fault == "dies before commit":
            raise Broken(fault)
        if fault == "fails before commit":
            self.sink.abort(results, batch_id)
            raise Broken(fault)
        self.sink.commit(results, batch_id)
        if fault == "fails after commit":
            self.sink.abort(results, batch_id)
        if fault != "none":
            raise Broken(fault)

    def run_until_done(self, batch_id: int, tasks: Sequence[Sequence[Row]], faults: Sequence[Fault] = ()) -> None:
        for fault in (*faults, "none"):
            try:
                self.run(batch_id, tasks, fault)
                return
            except Broken:
                continue

    def _task(self, batch_id: int, number: int, rows: Sequence[Row]) -> Any:
        half = len(rows) // 2
        batches = [pa.RecordBatch.from_pylist(list(part), self.schema) for part in (rows[:half], rows[half:])]
        return self.sink.write(iter(batches), TaskIdentity(self.query_id, batch_id, number))


def rows_of(path: Path | str, version: int | None = None) -> list[Row]:
    """The table as deltalake itself reads it."""
    rows: list[Row] = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return rows


def data_files(path: Path) -> list[str]:
    """Every Parquet file below the folder, in the table or not, including staged ones."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*.parquet") if "_delta_log" not in file.parts)
