"""Every row once despite failures: the sink in a small model of Spark's micro-batch loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.spark.lake import upkeep
from millpond.spark.lake.errors import LakeOptionError, WriteTaken
from millpond.spark.lake.options import write_options
from millpond.spark.lake.sink import LakeSink, TaskIdentity
from support.spark_lake import FAULTS, Broken, Fault, Stream, data_files, rows_of

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def rows(start: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "day": f"d{number % 3}"} for number in range(start, start + count)]


def ids_of(path: Path) -> list[int]:
    return sorted(row["id"] for row in rows_of(path))


def in_table(path: Path) -> list[str]:
    return sorted(pa.table(DeltaTable(path).get_add_actions()).column("path").to_pylist())


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.sampled_from(FAULTS[1:]), max_size=3)), max_size=6))
def test_each_row_is_in_the_table_once(tmp_path_factory: pytest.TempPathFactory, plan: Any) -> None:
    path = tmp_path_factory.mktemp("table")
    stream = Stream(path, SCHEMA, partitionBy="day", compactEvery="3")
    written = 0
    for batch_id, (count, faults) in enumerate(plan):
        stream.run_until_done(batch_id, [rows(written, count), rows(written + count, 2)], faults)
        written += count + 2
        assert ids_of(path) == list(range(written))


@pytest.mark.parametrize(
    ("fault", "left_over"),
    [
        ("task fails", 1),
        ("dies before commit", 2),
        ("fails before commit", 0),
        ("fails after commit", 0),
        ("dies after commit", 0),
    ],
)
def test_a_failure_leaves_few_files_and_deletes_none_of_the_table(
    tmp_path: Path, fault: Fault, left_over: int
) -> None:
    """Only attempts that could not clean up leave files outside of the table; files of the table stay."""
    stream = Stream(tmp_path, SCHEMA)
    stream.run(0, [rows(0, 5)])
    with pytest.raises(Broken):
        stream.run(1, [rows(5, 5), rows(10, 5)], fault)
    assert set(in_table(tmp_path)) <= set(data_files(tmp_path))
    stream.run(1, [rows(5, 5), rows(10, 5)])
    assert ids_of(tmp_path) == list(range(15))
    assert len(set(data_files(tmp_path)) - set(in_table(tmp_path))) == left_over


def test_a_late_abort_deletes_nothing(tmp_path: Path) -> None:
    """Not even files that a compaction removed from the newest version: older versions need them."""
    stream = Stream(tmp_path, SCHEMA)
    results = [stream.sink.write(iter([pa.RecordBatch.from_pylist(rows(0, 3), SCHEMA)]), TaskIdentity("query", 0, 0))]
    stream.sink.commit(results, 0)
    stream.run(1, [rows(3, 3)])
    upkeep.compact(str(tmp_path))
    stream.sink.abort(results, 0)
    assert len(rows_of(tmp_path, version=0)) == 3


def test_a_task_that_fails_in_the_middle_cleans_up_after_itself(tmp_path: Path) -> None:
    sink = LakeSink(write_options({"path": str(tmp_path), "partitionBy": "day"}), SCHEMA)

    def broken() -> Any:
        yield pa.RecordBatch.from_pylist(rows(0, 100), SCHEMA)
        raise Broken("the source is gone")

    with pytest.raises(Broken):
        sink.write(broken(), TaskIdentity("q", 0, 0))
    assert data_files(tmp_path) == []


def test_empty_batches_write_no_commit(tmp_path: Path) -> None:
    stream = Stream(tmp_path, SCHEMA)
    stream.run(0, [[], []])
    stream.run(1, [])
    assert stream.sink.options.location.table() is None
    stream.run(2, [rows(0, 1)])
    assert DeltaTable(tmp_path).version() == 0


def test_batch_writes_repeat_unless_they_are_numbered(tmp_path: Path) -> None:
    unknown_task = TaskIdentity(None, None, 0)
    for number, (options, expected) in enumerate([({}, [0, 0]), ({"txnAppId": "loader", "txnVersion": "7"}, [0])]):
        path = tmp_path / str(number)
        sink = LakeSink(write_options({"path": str(path), **options}), SCHEMA)
        for _ in range(2):
            sink.commit([sink.write(iter([pa.RecordBatch.from_pylist(rows(0, 1), SCHEMA)]), unknown_task)])
        assert ids_of(path) == expected
        assert data_files(path) == in_table(path)


@pytest.mark.parametrize("given", [{}, {"mode": "upsert", "keys": "id"}])
@pytest.mark.parametrize("named", [{"txnAppId": "loader", "txnVersion": "7"}, {"ofStream": "true"}])
def test_a_reused_number_for_another_write_is_refused(
    tmp_path: Path, given: dict[str, str], named: dict[str, str]
) -> None:
    sink = LakeSink(write_options({"path": str(tmp_path), **given, **named}), SCHEMA)
    task = TaskIdentity("q", 3, 0, "run") if "ofStream" in named else TaskIdentity(None, None, 0)

    def write(first: int, count: int) -> None:
        sink.commit([sink.write(iter([pa.RecordBatch.from_pylist(rows(first, count), SCHEMA)]), task)])

    write(0, 3)
    write(0, 3)
    with pytest.raises(WriteTaken, match=r"other rows \(4\)"):
        write(0, 4)
    with pytest.raises(WriteTaken, match=r"other rows \(3\)"):
        write(3, 3)
    assert ids_of(tmp_path) == [0, 1, 2]
    if not given:
        assert data_files(tmp_path) == in_table(tmp_path)


def test_an_abort_after_the_commit_keeps_published_files(tmp_path: Path) -> None:
    sink = LakeSink(write_options({"path": str(tmp_path), "partitionBy": "day"}), SCHEMA)
    odd = [{"id": 0, "day": "1:00 % é"}]
    results = [sink.write(iter([pa.RecordBatch.from_pylist(odd, SCHEMA)]), TaskIdentity(None, None, 0))]
    sink.commit(results)
    sink.abort(results)
    assert ids_of(tmp_path) == [0]


def test_overwriting_with_nothing_empties_the_table(tmp_path: Path) -> None:
    Stream(tmp_path, SCHEMA).run(0, [rows(0, 3)])
    sink = LakeSink(write_options({"path": str(tmp_path)}), SCHEMA, overwrite=True)
    sink.commit([])
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "overwrite", "message"),
    [
        ({"partitionBy": "dya"}, False, "partitionBy: the frame has no column dya; did you mean day"),
        ({"mode": "upsert", "keys": "idd"}, False, "keys: .* did you mean id"),
        ({"mode": "upsert", "keys": "id", "deleteWhen": "day"}, False, "not boolean"),
        ({"mode": "upsert", "keys": "id"}, True, "overwrite"),
    ],
)
def test_options_that_do_not_fit_the_frame(
    tmp_path: Path, options: dict[str, str], overwrite: bool, message: str
) -> None:
    with pytest.raises(LakeOptionError, match=message):
        LakeSink(write_options({"path": str(tmp_path), **options}), SCHEMA, overwrite)
