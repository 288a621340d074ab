"""The files of one task: sizes, partitions, limits, and cleanup after a failure."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.spark.lake import files
from millpond.spark.lake.files import TableFiles
from millpond.spark.lake.location import Location
from support.spark_lake import data_files

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("text", pa.string())])


def batch(start: int, count: int, days: int = 1) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {"id": list(ids), "day": [f"d{n % days}" for n in ids], "text": [f"text {n * 7919}" for n in ids]}, SCHEMA
    )


def ids_in(path: Path) -> list[int]:
    result: list[int] = []
    for name in data_files(path):
        result += pq.ParquetFile(path / name).read(["id"]).column("id").to_pylist()
    return sorted(result)


def test_a_file_is_closed_at_its_size_and_described_correctly(tmp_path: Path) -> None:
    task = TableFiles(Location.of(str(tmp_path)), SCHEMA, (), 1 << 16, task=7)
    for start in range(0, 40_000, 1_000):
        task.add(batch(start, 1_000))
    done = task.finish()
    assert len(done) > 1
    assert [(tmp_path / file.path).stat().st_size for file in done] == [file.size for file in done]
    assert all(file.size < 1 << 18 and file.path.startswith("part-00007-") for file in done)
    assert ids_in(tmp_path) == list(range(40_000))


def test_partitions_are_folders_without_their_columns(tmp_path: Path) -> None:
    task = TableFiles(Location.of(str(tmp_path)), SCHEMA, ("day",), 1 << 20)
    task.add(batch(0, 10, days=3))
    task.add(batch(10, 10, days=3))
    done = task.finish()
    assert sorted((file.path.split("/")[0], file.partition_values["day"]) for file in done) == [
        ("day=d0", "d0"),
        ("day=d1", "d1"),
        ("day=d2", "d2"),
    ]
    assert pq.read_schema(tmp_path / done[0].path).names == ["id", "text"]
    assert ids_in(tmp_path) == list(range(20))


def test_open_files_and_buffers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(files, "PENDING_BYTES_MAX", 700)
    task = TableFiles(Location.of(str(tmp_path)), SCHEMA, ("day",), 1 << 20)
    for start in range(0, 500, 100):
        task.add(batch(start, 100, days=5))
        assert len(task._open) <= 2
        held = sum(rows.nbytes for file in task._open.values() for rows in file.pending)
        assert held == task._pending_bytes <= 700
    assert len(task.finish()) > 5
    assert ids_in(tmp_path) == list(range(500))


def test_a_failed_task_leaves_no_files(tmp_path: Path) -> None:
    task = TableFiles(Location.of(str(tmp_path)), SCHEMA, ("day",), 1 << 16)
    for start in range(0, 20_000, 1_000):
        task.add(batch(start, 1_000, days=2))
    assert data_files(tmp_path)
    task.discard()
    assert data_files(tmp_path) == []


def test_no_rows_write_no_file(tmp_path: Path) -> None:
    task = TableFiles(Location.of(str(tmp_path)), SCHEMA, ("day",), 1 << 16)
    task.add(batch(0, 0))
    assert task.finish() == ()
    assert data_files(tmp_path) == []
