"""Staged rows of a task: one per key, in limited memory, invisible to readers of the table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.spark.lake import staged_rows
from millpond.spark.lake.errors import LakeError
from millpond.spark.lake.location import Location
from millpond.spark.lake.staged_rows import Staging, batch_folder
from support.spark_lake import data_files

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def batch(ids: list[int], text: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": ids, "text": [text] * len(ids)}, SCHEMA)


def stage(path: Path) -> Staging:
    return Staging(Location.of(str(path)), SCHEMA, ("id",), (), batch_folder("q/1", 7), task=3)


def test_one_row_per_key_is_staged(tmp_path: Path) -> None:
    task = stage(tmp_path)
    task.add(batch([1, 2, 1], "old"))
    task.add(batch([2], "new"))
    (done,) = task.finish()
    assert (done.rows, done.task, done.folder) == (2, 3, "_millpond_staging/q_1/7")
    assert pq.read_table(tmp_path / done.path).to_pylist() == [{"id": 1, "text": "old"}, {"id": 2, "text": "new"}]


def test_few_keys_stay_in_memory_and_many_keys_go_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "HELD_BYTES_MAX", 10_000)
    few = stage(tmp_path)
    for number in range(50):
        few.add(batch(list(range(10)), f"{number:020d}"))
        assert few._batch_bytes < 10_000
    assert [file.rows for file in few.finish()] == [10]
    many = stage(tmp_path)
    for number in range(50):
        many.add(batch(list(range(number * 10, number * 10 + 10)), "x" * 40))
    done = many.finish()
    assert len(done) > 1
    assert sum(file.rows for file in done) == 500
    many.discard()
    assert len(data_files(tmp_path)) == 1


def test_a_row_without_a_key_is_refused(tmp_path: Path) -> None:
    task = stage(tmp_path)
    with pytest.raises(LakeError, match="a row has no id"):
        task.add(pa.RecordBatch.from_pydict({"id": [None], "text": ["x"]}, SCHEMA))


def test_no_rows_stage_nothing(tmp_path: Path) -> None:
    assert stage(tmp_path).finish() == ()
    assert batch_folder(None, None) != batch_folder(None, None)
