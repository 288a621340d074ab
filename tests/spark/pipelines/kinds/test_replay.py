"""replay: selecting rows, and restoring records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.pipelines.kinds.replay import Replay, order_columns, restore, select_rows
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import at, parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_are_selected_by_time_and_condition(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "id int", [{"id": number} for number in range(6)])
    job = Replay(topic="t", from_=at(1), to=at(5), where="id <> 2")
    assert {row.id for row in select_rows(frame, job).collect()} == {1, 3, 4}


def test_a_raw_archive_is_restored_byte_for_byte(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "value binary", [{"value": b"\x00\xff", "_key": b"k", "_headers": [("h", b"1")]}])
    row = restore(frame.drop("_value"), Replay(topic="t", partitions="same")).collect()[0]
    assert row.__fields__ == ["key", "value", "headers", "timestamp", "partition"]
    assert (bytes(row.key), bytes(row.value), row.partition) == (b"k", b"\x00\xff", 0)
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("h", b"1")]
    plain = restore(frame.drop("_value", "_headers"), Replay(topic="t", timestamps="new", key="'all'"))
    assert plain.columns == ["key", "value"]
    assert bytes(plain.collect()[0].key) == b"all"


def test_parsed_columns_become_json_again_and_tombstones_too(spark: SparkSession) -> None:
    rows = [{"id": 1, "at": at(0.000_5), "date": "x"}, {"_key": b"gone", "date": "x"}]
    frame = parsed_frame(spark, "id int, at timestamp, date string", rows).drop("_value")
    first, gone = restore(frame, Replay(topic="t")).orderBy("timestamp").collect()
    assert json.loads(first.value) == {"id": 1, "at": "2026-01-31T12:00:00.000500Z"}, "not the table's own date"
    assert (bytes(gone.key), gone.value) == (b"gone", None)
    some = restore(frame, Replay(topic="t", columns=["date", "id"])).orderBy("timestamp").collect()[0]
    assert json.loads(some.value) == {"date": "x", "id": 1}
    with pytest.raises(DeclarationError, match=r"no column 'idd'; did you mean id\?"):
        restore(frame, Replay(topic="t", columns=["idd"]))


def test_the_order_needs_its_columns(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "id int", []).drop("_offset")
    with pytest.raises(DeclarationError, match="order = \"offset\": there is no column '_offset'"):
        order_columns(frame, Replay(topic="t"))
    assert len(order_columns(frame, Replay(topic="t", order="time"))) == 3


def test_a_slice_has_one_second_of_the_rate() -> None:
    assert Replay(topic="t").slice_rows == 100_000
    assert Replay(topic="t", rate=250).slice_rows == 250
    assert Replay(topic="t", rate=0.1).slice_rows == 1
    assert Replay(topic="t", rate=1e6, batch=5000).slice_rows == 5000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"from_": at(1), "to": at(1)}, "not before `to`"),
        ({"rate": -1}, "from 0"),
        ({"order": "key"}, "no such choice"),
        ({"from_": "yesterday"}, "a moment is written like"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Replay(topic="t", **settings)
