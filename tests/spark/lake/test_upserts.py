"""Upserts compared with a dictionary, with failures and replays at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableMerger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.spark.lake.errors import LakeError
from support.spark_lake import FAULTS, Row, Stream, data_files, rows_of

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("odd name", pa.string()),
        ("n", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("gone", pa.bool_()),
    ]
)
OPTIONS = {"mode": "upsert", "keys": "key,odd name", "orderBy": "n", "deleteWhen": "gone"}


def row(key: int, n: int | None, gone: bool | None = False) -> Row:
    return {"key": b"%d" % key, "odd name": "o", "n": n, "price": None, "at": None, "gone": gone}


def apply(model: dict[bytes, Row], tasks: list[list[Row]]) -> None:
    """One batch in plain Python: the row with the highest n replaces its key."""
    last: dict[bytes, Row] = {}
    for one in (one for task in tasks for one in task):
        if one["key"] not in last or one["n"] >= last[one["key"]]["n"]:
            last[one["key"]] = one
    for key, one in last.items():
        model.pop(key, None)
        if not one["gone"]:
            model[key] = one


def table_as_model(path: Path) -> dict[bytes, Row]:
    result = rows_of(path)
    assert len({one["key"] for one in result}) == len(result)
    return {one["key"]: {**one, "gone": False} for one in result}


changed = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([False, False, True])), max_size=6)
batches = st.lists(
    st.tuples(changed, changed, st.lists(st.sampled_from(FAULTS[1:]), max_size=2)), min_size=1, max_size=5
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
def test_upserts_match_a_dictionary(tmp_path_factory: pytest.TempPathFactory, given_batches: Any) -> None:
    path = tmp_path_factory.mktemp("table")
    stream = Stream(path, SCHEMA, **OPTIONS)
    model: dict[bytes, Row] = {}
    for batch_id, (left, right, faults) in enumerate(given_batches):
        # Numbers ascend from batch to batch, but not from row to row, and are unique in a batch.
        numbers = iter(n * 7 % 13 + batch_id * 100 for n in range(13))
        tasks = [[row(key, next(numbers), gone or None) for key, gone in task] for task in (left, right)]
        stream.run_until_done(batch_id, tasks, faults)
        apply(model, tasks)
        if stream.sink.options.location.table() is not None:
            expected = {key: {**one, "gone": False} for key, one in model.items()}
            assert table_as_model(path) == expected
    assert [name for name in data_files(path) if name.startswith("_millpond")] == []


def test_a_driver_that_dies_during_the_merge_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the commit of the merge, and after it."""
    stream = Stream(tmp_path, SCHEMA, **OPTIONS)
    stream.run(0, [[row(1, 1), row(2, 2)]])
    real = TableMerger.execute

    def die_before(merger: TableMerger) -> Any:
        raise KeyboardInterrupt

    def die_after(merger: TableMerger) -> Any:
        real(merger)
        raise KeyboardInterrupt

    changes = [[row(1, 3), row(2, 4, gone=True), row(3, 5)]]
    for die, version in ((die_before, 1), (die_after, 2)):
        monkeypatch.setattr(TableMerger, "execute", die)
        with pytest.raises(KeyboardInterrupt):
            stream.run(1, changes)
        assert DeltaTable(tmp_path).version() == version
    monkeypatch.setattr(TableMerger, "execute", real)
    stream.run(1, changes)
    assert DeltaTable(tmp_path).version() == 2
    assert sorted((one["key"], one["n"]) for one in rows_of(tmp_path)) == [(b"1", 3), (b"3", 5)]
    assert not [name for name in data_files(tmp_path) if name.startswith("_millpond")]


def test_late_rows_replace_unless_ignored(tmp_path: Path) -> None:
    for ignore, expected in (("false", [(b"1", 3), (b"3", None)]), ("true", [(b"1", 5), (b"2", 6), (b"3", 1)])):
        path = tmp_path / ignore
        stream = Stream(path, SCHEMA, **OPTIONS, ignoreLate=ignore)
        stream.run(0, [[row(1, 5), row(2, 6), row(3, None)]])
        stream.run(1, [[row(3, 1)]])
        stream.run(2, [[row(1, 3), row(2, 4, gone=True), row(3, None)]])
        assert sorted((one["key"], one["n"]) for one in rows_of(path)) == expected


def test_the_same_key_in_two_tasks_needs_an_order(tmp_path: Path) -> None:
    stream = Stream(tmp_path, SCHEMA, mode="upsert", keys="key")
    stream.run(0, [[row(1, 1), row(1, 0)], [row(2, 1)]])
    assert sorted((one["key"], one["n"]) for one in rows_of(tmp_path)) == [(b"1", 0), (b"2", 1)]
    with pytest.raises(LakeError, match='option\\("orderBy"'):
        stream.run(1, [[row(1, 1)], [row(1, 2)]])


def test_a_batch_that_is_too_large_for_the_driver_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    stream = Stream(tmp_path, schema, mode="upsert", keys="id", upsertBytesMax=str(1 << 20))
    with pytest.raises(LakeError, match="maxOffsetsPerTrigger"):
        stream.run(0, [[{"id": number, "text": "x" * 2_000} for number in range(1_000)]])


def test_a_small_change_rewrites_a_small_part_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    stream = Stream(tmp_path, schema, mode="upsert", keys="id", targetFileBytes=str(1 << 17))
    stream.run(0, [[{"id": number, "text": f"{number * 7919:040d}"} for number in range(60_000)]])
    files = len(DeltaTable(tmp_path).file_uris())
    assert files > 3
    stream.run(1, [[{"id": 50, "text": "new"}]])
    metrics = DeltaTable(tmp_path).history(1)[0]["operationMetrics"]
    assert metrics["num_target_files_removed"] < files / 2
    assert metrics["num_target_rows_copied"] < 30_000


def test_partitioned_tables_and_new_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("text", pa.string())])
    stream = Stream(tmp_path, schema, mode="upsert", keys="id", partitionBy="day")
    stream.run(0, [[{"id": 1, "day": 1, "text": "a"}, {"id": 2, "day": 1, "text": "b"}]])
    grown = pa.schema([*schema, pa.field("more", pa.int32())])
    stream = Stream(tmp_path, grown, mode="upsert", keys="id", partitionBy="day")
    stream.run(1, [[{"id": 1, "day": 2, "text": "moved", "more": 7}]])
    assert DeltaTable(tmp_path).metadata().partition_columns == ["day"]
    assert sorted((one["id"], one["day"].day, one["text"], one["more"]) for one in rows_of(tmp_path)) == [
        (1, 3, "moved", 7),
        (2, 2, "b", None),
    ]
