"""sessions with Spark's session windows, and declarations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.pipelines.kinds.session_folds import Fold, read_folds
from millpond.spark.pipelines.kinds.sessions import Sessions, sessions
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import at, parsed_frame, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def job(**settings: Any) -> Sessions:
    plain: dict[str, Any] = {"key": ["user"], "time": "at", "gap": "30 s", "to": {"table": "t"}}
    return Sessions(**plain | settings)


def clicks(spark: SparkSession) -> DataFrame:
    events = [("ann", 50), ("ann", 0), ("bob", 5), ("ann", 25), ("ann", 81), ("ann", None)]
    rows: list[dict[str, Any]] = [{"user": user, "at": at(s) if s is not None else None} for user, s in events]
    return parsed_frame(spark, "user string, at timestamp", rows)


def test_a_session_ends_after_the_gap(spark: SparkSession) -> None:
    rows = sessions(clicks(spark), job(measures={"last_offset": "max(_offset)"})).collect()
    assert {
        (r.user, seconds_of(r.session_start), seconds_of(r.session_end), r.events, r.last_offset) for r in rows
    } == {("ann", 0, 50, 3, 3), ("ann", 81, 81, 1, 4), ("bob", 5, 5, 1, 2)}


def test_sessions_as_records(spark: SparkSession) -> None:
    rows = job(to={"topic": "s"}).shape(clicks(spark)).where("key = cast('bob' as binary)").collect()
    assert [json.loads(row.value) for row in rows] == [
        {
            "user": "bob",
            "session_start": "2026-01-31T12:00:05.000Z",
            "session_end": "2026-01-31T12:00:05.000Z",
            "events": 1,
        }
    ]


def test_measures_with_state() -> None:
    measures = {"n": "count(*)", "spent": " SUM( price * (1 + tax) ) ", "page": "first(concat(a, ')'))"}
    assert read_folds(measures) == (
        Fold("n", "count", "true"),
        Fold("spent", "sum", "price * (1 + tax)"),
        Fold("page", "first", "concat(a, ')')"),
    )


@pytest.mark.parametrize("sql", ["avg(x)", "sum(a) + sum(b)", "x", "sum()", "summ(x)"])
def test_other_measures_are_refused_with_state(sql: str) -> None:
    assert job(measures={"m": sql}).needs_state is False
    with pytest.raises(DeclarationError, match=r"measures\.m = .* a measure is one call"):
        job(measures={"m": sql}, longest="1 h")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gap": "0 s"}, "longer than 0"),
        ({"key": []}, "key is empty"),
        ({"measures": {"events": "count(*)"}}, "events is a column of the result already"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        job(**settings)
