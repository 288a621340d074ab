"""One commit per batch: replays, lost responses, races, and new columns."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from millpond.spark.lake import commits
from millpond.spark.lake.commits import WriteId, publish
from millpond.spark.lake.errors import CommitContested, SchemaConflict, WriteTaken
from millpond.spark.lake.files import TableFiles, WrittenFile
from millpond.spark.lake.location import Location
from support.spark_lake import rows_of

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def written(
    path: Path, ids: list[int], schema: pa.Schema = SCHEMA, partition_by: tuple[str, ...] = ()
) -> list[WrittenFile]:
    rows = [{"id": number, "day": f"d {number % 2}/é%:", "more": "new"} for number in ids]
    task = TableFiles(Location.of(str(path)), schema, partition_by, 1 << 20)
    task.add(pa.RecordBatch.from_pylist(rows, schema))
    return list(task.finish())


def put(path: Path, ids: list[int], turn: WriteId | None, **how: Any) -> bool:
    return publish(Location.of(str(path)), written(path, ids), SCHEMA, (), turn, **how)


def ids_of(path: Path) -> list[int]:
    return sorted(row["id"] for row in rows_of(path))


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(commits, "LONGEST_WAIT_S", 0.01)


def test_a_batch_is_published_once(tmp_path: Path) -> None:
    assert put(tmp_path, [1, 2], WriteId("q", 0))
    assert not put(tmp_path, [1, 2], WriteId("q", 0))
    assert put(tmp_path, [3], WriteId("q", 1))
    assert not put(tmp_path, [1, 2], WriteId("q", 0))
    assert put(tmp_path, [4], WriteId("another", 0))
    assert put(tmp_path, [5], None)
    assert put(tmp_path, [5], None)
    assert ids_of(tmp_path) == [1, 2, 3, 4, 5, 5]


JOB = WriteId("job", 0, is_job=True)


def test_a_reused_number_for_other_rows_is_refused(tmp_path: Path) -> None:
    assert put(tmp_path, [1, 2], JOB)
    assert put(tmp_path, [8], None)
    assert not put(tmp_path, [2, 1], JOB)
    for ids in ([1], [1, 2, 3], [1, 3]):
        with pytest.raises(WriteTaken, match=rf"job, number 0 .* 2 rows of .* other rows \({len(ids)}\).*txnVersion"):
            put(tmp_path, ids, JOB)
    assert ids_of(tmp_path) == [1, 2, 8]
    assert put(tmp_path / "another", [5], JOB), "the same number for another table is another write"
    assert put(tmp_path, [3], WriteId("job", 2, is_job=True))
    assert not put(tmp_path, [9], WriteId("job", 1, is_job=True)), "what it was is not known any more"


def test_a_write_may_split_its_rows_differently(tmp_path: Path) -> None:
    location = Location.of(str(tmp_path))
    for parts in ([[1, 2, 3, 4]], [[4, 1], [3], [2]]):
        files = [file for ids in parts for file in written(tmp_path, ids, partition_by=("day",))]
        assert publish(location, files, SCHEMA, ("day",), JOB) is (len(parts) == 1)
    with pytest.raises(WriteTaken):
        publish(location, written(tmp_path, [1, 1, 3, 4], partition_by=("day",)), SCHEMA, ("day",), JOB)


def test_other_rows_are_allowed_in_a_replay_but_not_in_the_same_run(tmp_path: Path) -> None:
    first = WriteId("job", 0, is_job=True, run="first")
    assert put(tmp_path, [1], first)
    assert not put(tmp_path, [2], WriteId("job", 0, is_job=True, run="second"))
    with pytest.raises(WriteTaken):
        put(tmp_path, [2], first)


def test_statistics_and_odd_partition_values_are_in_the_log(tmp_path: Path) -> None:
    files = written(tmp_path, [1, 2, 3], partition_by=("day",))
    publish(Location.of(str(tmp_path)), files, SCHEMA, ("day",), None)
    actions = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["partition.day"], one["min.id"], one["max.id"], one["num_records"]) for one in actions) == [
        ("d 0/é%:", 2, 2, 1),
        ("d 1/é%:", 1, 3, 2),
    ]
    assert sorted(row["day"] for row in rows_of(tmp_path)) == ["d 0/é%:", "d 1/é%:", "d 1/é%:"]
    assert DeltaTable(tmp_path).vacuum(0, enforce_retention_duration=False, full=True) == []


def test_overwriting_replaces_rows_and_schema_in_one_commit(tmp_path: Path) -> None:
    put(tmp_path, [1, 2], WriteId("q", 0))
    other = pa.schema([("id", pa.string())])
    task = TableFiles(Location.of(str(tmp_path)), other, (), 1 << 20)
    task.add(pa.RecordBatch.from_pydict({"id": ["x"]}, other))
    publish(Location.of(str(tmp_path)), task.finish(), other, (), WriteId("q", 1), overwrite=True)
    assert rows_of(tmp_path) == [{"id": "x"}]
    assert DeltaTable(tmp_path).version() == 1


def test_new_columns_are_added_and_other_types_refused(tmp_path: Path) -> None:
    location = Location.of(str(tmp_path))
    put(tmp_path, [1], WriteId("q", 0))
    grown = pa.schema([("id", pa.int64()), ("more", pa.string())])
    publish(location, written(tmp_path, [2], grown), grown, (), WriteId("q", 1))
    assert sorted(rows_of(tmp_path), key=lambda row: row["id"]) == [
        {"id": 1, "day": "d 1/é%:", "more": None},
        {"id": 2, "day": None, "more": "new"},
    ]
    clash = pa.schema([("id", pa.int32())])
    with pytest.raises(SchemaConflict, match="id is integer in the frame and long in the table"):
        publish(location, written(tmp_path, [3], clash), clash, (), WriteId("q", 2))
    assert DeltaTable(tmp_path).transaction_version("q") == 1


def test_a_commit_whose_response_was_lost_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, [1], WriteId("q", 0))
    real = DeltaTable.create_write_transaction

    def answer_lost(table: DeltaTable, *given: Any, **named: Any) -> None:
        real(table, *given, **named)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", answer_lost)
    assert put(tmp_path, [2], WriteId("q", 1))
    assert ids_of(tmp_path) == [1, 2]


def test_endless_conflicts_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, [1], None)

    def contested(table: DeltaTable, *given: Any, **named: Any) -> None:
        raise CommitFailedError("somebody was faster")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", contested)
    with pytest.raises(CommitContested, match="20 tries"):
        put(tmp_path, [2], None)


def test_concurrent_writers_create_one_table_with_every_row_once(tmp_path: Path) -> None:
    """Five queries, each run by two independent drivers."""
    start = threading.Barrier(10)
    outcomes: list[bool] = []

    def drive(query: int) -> None:
        start.wait()
        outcomes.extend(put(tmp_path, [query * 10 + batch], WriteId(f"q{query}", batch)) for batch in range(4))

    threads = [threading.Thread(target=drive, args=(number // 2,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 40
    assert ids_of(tmp_path) == sorted(query * 10 + batch for query in range(5) for batch in range(4))


def test_concurrent_drivers_of_one_query_write_their_batch_once(tmp_path: Path) -> None:
    for number in range(30):
        table = tmp_path / str(number)
        start = threading.Barrier(4)

        def drive(table: Path = table, start: threading.Barrier = start) -> None:
            files = written(table, [0])
            start.wait()
            publish(Location.of(str(table)), files, SCHEMA, (), WriteId("q", 0))

        threads = [threading.Thread(target=drive) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [entry["operation"] for entry in DeltaTable(table).history()] == ["CREATE TABLE"]
        assert ids_of(table) == [0]
