"""Statistics of a file: correct, or missing if Parquet does not guarantee them."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.spark.lake.statistics import file_statistics


def stats(table: pa.Table, **how: Any) -> dict[str, Any]:
    sink = io.BytesIO()
    pq.write_table(table, sink, **how)
    statistics: dict[str, Any] = json.loads(file_statistics(pq.read_metadata(sink), table.schema))
    return statistics


def test_bounds_and_nulls_over_all_row_groups() -> None:
    table = pa.table(
        {
            "number": pa.array([3, None, -5, 9], pa.int32()),
            "word": ["pear", "apple", None, "fig"],
            "day": [date(2026, 1, 2), date(2026, 1, 1), None, None],
            "at": pa.array([datetime(2026, 1, 1, 0, 0, 0, 7, UTC)] * 4, pa.timestamp("us", "UTC")),
            "local": pa.array([datetime(2026, 1, 1)] * 4, pa.timestamp("us")),
            "nothing": pa.nulls(4, pa.string()),
        }
    )
    statistics = stats(table, row_group_size=2)
    assert statistics["numRecords"] == 4
    assert statistics["minValues"] == {
        "number": -5,
        "word": "apple",
        "day": "2026-01-01",
        "at": "2026-01-01T00:00:00.000007Z",
        "local": "2026-01-01T00:00:00.000000",
    }
    assert statistics["maxValues"]["number"] == 9
    assert statistics["maxValues"]["word"] == "pear"
    assert statistics["nullCount"] == {"number": 1, "word": 1, "day": 2, "at": 0, "local": 0, "nothing": 4}


def test_structs_are_nested_and_lists_are_left_out() -> None:
    table = pa.table(
        {
            "list": [[1, 2], [3]],
            "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
            "inner": [{"x": 1, "deep": {"y": "b"}}, {"x": 2, "deep": None}],
            "last": [10, 20],
        }
    )
    statistics = stats(table)
    assert statistics["minValues"] == {"inner": {"x": 1, "deep": {"y": "b"}}, "last": 10}
    assert statistics["nullCount"] == {"inner": {"x": 0, "deep": {"y": 1}}, "last": 0}


def test_truncated_texts_are_still_bounds() -> None:
    low, high = "a" * 100, "z" * 100
    statistics = stats(pa.table({"word": [low, high]}))
    assert statistics["minValues"]["word"] == "a" * 32
    assert statistics["maxValues"]["word"] == "z" * 32 + "\U0010ffff"
    assert statistics["minValues"]["word"] < low < high < statistics["maxValues"]["word"]


def test_uncertain_bounds_are_left_out() -> None:
    table = pa.table(
        {
            "real": [1.0, float("nan")],
            "amount": [Decimal("1.5"), Decimal("2.5")],
            "raw": [b"a", b"b"],
            "flag": [True, False],
            "broken": pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"\xfe"]).buffers()),
            "highest": ["\U0010ffff", "b"],
        }
    )
    statistics = stats(table)
    assert statistics["minValues"] == statistics["maxValues"] == {}
    assert statistics["nullCount"]["real"] == 0


def test_an_empty_file_and_more_columns_than_are_indexed() -> None:
    assert stats(pa.table({"a": pa.array([], pa.int64())}))["numRecords"] == 0
    wide = stats(pa.table({f"c{number:02d}": [number] for number in range(40)}))
    assert len(wide["nullCount"]) == len(wide["minValues"]) == 32
