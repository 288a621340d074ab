"""Compaction and vacuum keep every row, and every file that may still be needed."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from millpond.spark.lake import upkeep
from millpond.spark.lake.errors import LakeError
from millpond.spark.lake.upkeep import compact, vacuum
from support.spark_lake import Stream, data_files, rows_of

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def rows(start: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "day": f"d{number % 2}"} for number in range(start, start + count)]


def ids_of(path: Path, version: int | None = None) -> list[int]:
    return sorted(row["id"] for row in rows_of(path, version))


def make_old(path: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    stream = Stream(tmp_path, SCHEMA, partitionBy="day")
    for batch in range(4):
        stream.run(batch, [rows(batch * 10, 10)])
    return tmp_path


def test_compaction_merges_files_and_keeps_rows_and_transactions(table: Path) -> None:
    done = compact(str(table))
    assert (done.files_before, done.files_after) == (8, 2)
    assert ids_of(table) == list(range(40))
    assert ids_of(table, version=0) == list(range(10))
    assert DeltaTable(table).transaction_version("query") == 3
    assert compact(str(table)).files_before == 0


def test_a_vacuum_deletes_old_files_only(table: Path) -> None:
    compact(str(table))
    stray, fresh = table / "day=d0" / "stray.parquet", table / "day=d1" / "fresh.parquet"
    staged = table / "_millpond_staging" / "q" / "1" / "part.parquet"
    just_staged = staged.with_name("now.parquet")
    staged.parent.mkdir(parents=True)
    for file in (stray, fresh, staged, just_staged):
        file.write_bytes(b"left by a task")
    make_old(stray, 200)
    make_old(staged, 200)
    assert sorted(vacuum(str(table), dry_run=True)) == sorted(
        str(each.relative_to(table)) for each in (stray, staged)
    )
    assert stray.exists()
    vacuum(str(table), 190)
    assert not stray.exists()
    assert not staged.exists()
    assert fresh.exists()
    assert just_staged.exists()
    assert ids_of(table) == list(range(40))
    assert ids_of(table, version=0) == list(range(10))


def test_a_vacuum_below_the_retention_must_be_allowed(table: Path) -> None:
    compact(str(table))
    with pytest.raises(LakeError, match="allow_short=True"):
        vacuum(str(table), 1)
    with pytest.raises(LakeError, match="0 or more"):
        vacuum(str(table), -1, allow_short=True)
    assert len(data_files(table)) == 10
    assert len(vacuum(str(table), 0, allow_short=True)) == 8
    assert len(data_files(table)) == 2
    assert ids_of(table) == list(range(40))


def test_a_stream_compacts_its_table(tmp_path: Path) -> None:
    stream = Stream(tmp_path, SCHEMA, compactEvery="4", vacuumHours="1", vacuumShort="true")
    for batch in range(9):
        stream.run(batch, [rows(batch * 10, 10)])
    assert len(DeltaTable(tmp_path).file_uris()) == 2
    # Less than an hour has passed, so nothing was deleted.
    assert len(data_files(tmp_path)) == 9 + 2
    assert ids_of(tmp_path) == list(range(90))


def test_failed_maintenance_does_not_stop_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def contested(path: str, **named: Any) -> Any:
        raise CommitFailedError("somebody was faster")

    stream = Stream(tmp_path, SCHEMA, compactEvery="1")
    monkeypatch.setattr(upkeep, "compact", contested)
    with caplog.at_level(logging.WARNING, "millpond.lake"):
        stream.run(0, [rows(0, 3)])
    assert "put off: somebody was faster" in caplog.text
    assert ids_of(tmp_path) == [0, 1, 2]


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no Delta table"):
        compact(str(tmp_path / "nothing"))
    with pytest.raises(LakeError, match="no Delta table"):
        vacuum(str(tmp_path / "nothing"))
    Stream(tmp_path, SCHEMA, compactEvery="1").run(0, [[]])
