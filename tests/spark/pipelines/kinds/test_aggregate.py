"""aggregate: windows, groups and measures, and their sinks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.pipelines.kinds.aggregate import Aggregate, windows
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import at, parsed_frame, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def orders(spark: SparkSession) -> DataFrame:
    events = [(1, 5, "eu", 10.0), (2, 59, "eu", 5.0), (2, 59, "eu", 5.0), (3, 61, "us", 1.0), (4, 62, None, 2.0)]
    rows: list[dict[str, Any]] = [{"id": id, "at": at(s), "region": r, "total": t} for id, s, r, t in events]
    return parsed_frame(spark, "id long, at timestamp, region string, total double", [*rows, {"id": 9}])


def job(**settings: Any) -> Aggregate:
    plain: dict[str, Any] = {
        "time": "at",
        "window": "1 minute",
        "group_by": ["region"],
        "measures": {"orders": "count(*)", "revenue": "sum(total)"},
        "to": {"table": "t"},
    }
    return Aggregate(**plain | settings)


def test_windows_by_group(spark: SparkSession) -> None:
    rows = windows(orders(spark), job()).collect()
    assert {(seconds_of(r.window_start), seconds_of(r.window_end), r.region, r.orders, r.revenue) for r in rows} == {
        (0, 60, "eu", 3, 20.0),
        (60, 120, "us", 1, 1.0),
        (60, 120, None, 1, 2.0),
    }


def test_sliding_windows_without_duplicate_events(spark: SparkSession) -> None:
    sliding = job(slide="30 seconds", group_by={"area": "coalesce(region, 'none')"}, distinct_by=["id"])
    result = {(seconds_of(r.window_start), r.area): r.revenue for r in windows(orders(spark), sliding).collect()}
    assert result == {
        (-30, "eu"): 10.0, (0, "eu"): 15.0, (30, "eu"): 5.0,
        (30, "us"): 1.0, (60, "us"): 1.0, (30, "none"): 2.0, (60, "none"): 2.0,
    }  # fmt: skip


def test_windows_as_records(spark: SparkSession) -> None:
    closed = job(to={"topic": "revenue"})
    rows = {bytes(row.key or b"none"): json.loads(row.value) for row in closed.shape(orders(spark)).collect()}
    assert rows[b"eu"] == {
        "window_start": "2026-01-31T12:00:00.000Z", "window_end": "2026-01-31T12:01:00.000Z",
        "region": "eu", "orders": 3, "revenue": 20.0,
    }  # fmt: skip
    assert rows[b"none"]["region"] is None, "a null is written"
    changing = job(to={"topic": "revenue"}, mode="update")
    keys = {bytes(row.key) for row in changing.shape(orders(spark)).collect()}
    assert b'{"region":"eu","window_start":"2026-01-31T12:00:00.000Z"}' in keys
    own = job(to={"topic": "revenue", "key": "concat(region, '!')"})
    assert {row.key and bytes(row.key) for row in own.shape(orders(spark)).collect()} == {b"eu!", b"us!", None}


def test_the_sink_of_windows() -> None:
    topic = job(to={"topic": "revenue"}).sink({"kafka.bootstrap.servers": "here:1"})
    assert topic.format == "millpond"
    assert topic.options == {"kafka.bootstrap.servers": "here:1", "delivery": "exactly_once", "topic": "revenue"}
    table = job(mode="update").sink({})
    assert (table.mode, table.options["mode"], table.options["keys"]) == ("update", "upsert", "window_start,_row")
    assert job().sink({}).mode == "append"


def test_a_row_of_an_updated_table_has_a_key_even_without_a_group(spark: SparkSession) -> None:
    rows = job(mode="update").shape(orders(spark)).collect()
    assert len({row._row for row in rows}) == len(rows) == 3
    assert '{"region":null,"window_start":"2026-01-31T12:01:00.000Z"}' in {row._row for row in rows}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": "0 s"}, "longer than 0"),
        ({"slide": "2 minutes"}, "between two windows"),
        ({"measures": {}}, "measures is empty"),
        ({"measures": {"region": "count(*)"}}, "region is a column of the result already"),
        ({"distinct_by": ["id"], "mode": "update"}, 'needs mode = "append"'),
        ({"to": {"table": "t", "topic": "u"}}, "one of them"),
        ({"to": {"tabel": "t"}}, r"no key 'tabel'; did you mean table\?"),
        ({"to": {"topic": "t", "partition_by": ["a"]}}, "partition_by is for a table"),
        ({"mode": "complete"}, "no such choice"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        job(**settings)
