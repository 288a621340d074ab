"""Changed rows of one task before the merge: the last row of each key, in files no reader sees.

They are in `_millpond_staging/<query>/<batch>`, which Delta's readers and its vacuum ignore.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.spark.lake.changes import check_no_null_keys, last_rows
from millpond.spark.lake.location import STAGING_FOLDER, Location
from millpond.spark.lake.schemas import fit

HELD_BYTES_MAX: Final = 64 << 20
"""Rows in memory before they are reduced to one per key, and written out if still too many."""


@dataclass(frozen=True)
class StagedFile:
    path: str
    rows: int
    bytes_in_memory: int
    task: int

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


def batch_folder(query_id: str | None, batch_id: int | None) -> str:
    """The staging folder of a batch; a write outside a stream has one for each task."""
    if query_id is None:
        return f"{STAGING_FOLDER}/write-{uuid.uuid4()}"
    return f"{STAGING_FOLDER}/{re.sub('[^A-Za-z0-9_.-]', '_', query_id)}/{batch_id}"


class Staging:
    """The rows staged by one task."""

    def __init__(
        self,
        location: Location,
        schema: pa.Schema,
        keys: tuple[str, ...],
        order_by: tuple[str, ...],
        folder: str,
        task: int = 0,
    ) -> None:
        self._location = location
        self._schema = schema
        self._keys = keys
        self._order_by = order_by
        self._folder = folder
        self._task = task
        self._batches: list[pa.RecordBatch] = []
        self._batch_bytes = 0
        self._finished: list[StagedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        batch = fit(batch, self._schema)
        check_no_null_keys(batch, self._keys)
        self._batches.append(batch)
        self._batch_bytes += batch.nbytes
        if self._batch_bytes >= HELD_BYTES_MAX:
            rows = self._last_rows()
            if rows.nbytes * 2 >= HELD_BYTES_MAX:
                self._write(rows)
                self._batches, self._batch_bytes = [], 0
            else:
                self._batches, self._batch_bytes = rows.to_batches(), rows.nbytes

    def finish(self) -> tuple[StagedFile, ...]:
        rows = self._last_rows()
        if rows.num_rows:
            self._write(rows)
        return tuple(self._finished)

    def discard(self) -> None:
        self._location.remove(file.path for file in self._finished)

    def _last_rows(self) -> pa.Table:
        rows = pa.Table.from_batches(self._batches, schema=self._schema)
        return last_rows(rows, self._keys, self._order_by)

    def _write(self, rows: pa.Table) -> None:
        path = f"{self._folder}/part-{self._task:05d}-{uuid.uuid4()}.parquet"
        self._location.make_folder(self._folder)
        with self._location.files().open_output_stream(path) as sink:
            # Read once and soon, so use the fast codec.
            pq.write_table(rows, sink, compression="lz4", use_dictionary=False, write_statistics=False)
        self._finished.append(StagedFile(path, rows.num_rows, rows.nbytes, self._task))
