"""Declared columns, and records as bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.pipelines.kinds.columns import COLUMNS, as_json, key_bytes, need_columns, value_bytes
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import at, parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_columns_are_names_or_sql() -> None:
    assert COLUMNS.read(["a", "b`c"]) == {"a": "`a`", "b`c": "`b``c`"}
    assert COLUMNS.read("a, b") == {"a": "`a`", "b": "`b`"}
    assert COLUMNS.read({"x": "lower(a)"}) == {"x": "lower(a)"}
    given: Any
    for given in ([""], {"x": 1}, {"x": " "}):
        with pytest.raises(ValueError, match="names of columns"):
            COLUMNS.read(given)


def test_keys_and_values_as_bytes(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "a int, b string, t timestamp", [{"a": 1, "b": "ö", "t": at(0.25)}]).drop("_value")
    row = frame.select(
        key_bytes([]).alias("none"),
        key_bytes(["b"]).alias("one"),
        key_bytes(["a", "b"]).alias("two"),
        value_bytes(frame).alias("all"),
        as_json(["t"], "SSSSSS").alias("t"),
    ).collect()[0]
    assert (row.none, bytes(row.one), bytes(row.two)) == (None, "ö".encode(), '{"a":1,"b":"ö"}'.encode())
    assert json.loads(row["all"]) == {"a": 1, "b": "ö", "t": "2026-01-31T12:00:00.250Z"}
    assert json.loads(row.t) == {"t": "2026-01-31T12:00:00.250000Z"}


def test_a_missing_column_is_reported_with_the_nearest(spark: SparkSession) -> None:
    frame = parsed_frame(spark, "region string", [])
    need_columns(frame, ["REGION"], "here")
    with pytest.raises(DeclarationError, match=r"here: there is no column 'reqion'; did you mean region\?"):
        need_columns(frame, ["reqion"], "here")
