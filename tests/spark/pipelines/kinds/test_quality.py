"""quality: broken rules, and where rows are sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millpond.client.dead_letters import read_dead_letter, redriven_headers
from millpond.client.message import Message
from millpond.spark.pipelines.kinds.quality import Quality, check_rows, good_rows
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

RULES = {"positive": "total > 0", "known": "region in ('eu', 'us')"}


def orders(spark: SparkSession) -> DataFrame:
    twice = [("h", b"2"), ("dlq.redriven", b"3")]
    return parsed_frame(
        spark,
        "total int, region string",
        [
            {"total": 5, "region": "eu", "_key": b"a", "_value": b"good", "_headers": [("h", b"1")]},
            {"total": -1, "region": "mars", "_key": b"b", "_value": b"both", "_headers": twice},
            {"total": None, "region": "us", "_value": b"null"},
        ],
    )


def message(row: Row) -> Message:
    headers = tuple((each.key, bytes(each.value)) for each in row.headers or ())
    value = None if row.value is None else bytes(row.value)
    return Message(row.topic, 0, 0, 0, None if row.key is None else bytes(row.key), value, headers)


def test_rows_list_the_rules_that_they_break(spark: SparkSession) -> None:
    rows = check_rows(orders(spark), Quality(rules=RULES))
    assert [row._broken for row in rows.orderBy("_offset").collect()] == [[], ["positive", "known"], ["positive"]]
    assert [row.total for row in good_rows(rows).collect()] == [5]
    assert "_broken" not in good_rows(rows).columns


def test_an_unparsed_record_breaks_the_rule_parses_only(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    frame = orders(spark).withColumn("_fault", f.when(f.col("_offset") == 1, f.lit("line 1: no JSON")))
    rows = check_rows(frame, Quality(rules=RULES)).orderBy("_offset").collect()
    assert [row._broken for row in rows] == [[], ["parses"], ["positive"]]
    letters = Quality(rules=RULES).shape(frame).collect()
    assert {read_dead_letter(message(row)).error_message for row in letters} == {"line 1: no JSON", "breaks positive"}


def test_bad_rows_are_dead_letters_with_their_own_bytes(spark: SparkSession) -> None:
    job = Quality(name="checks", rules=RULES, to={"topic": "orders.good"})
    rows = {message(row).value: message(row) for row in job.shape(orders(spark)).collect()}
    good, both, null = rows[b"good"], rows[b"both"], rows[b"null"]
    assert (good.topic, good.key, good.headers) == ("orders.good", b"a", (("h", b"1"),))
    assert (both.topic, both.key, null.key) == ("orders.bad.dlq", b"b", None)
    letter = read_dead_letter(both)
    assert (str(letter.origin), letter.error_type, letter.error_message) == (
        "orders[0]@1",
        "millpond.quality",
        "breaks positive, known",
    )
    assert (letter.group, letter.attempts, letter.redriven) == ("checks", 1, 3)
    assert letter.origin.timestamp_ms == 1_769_860_801_000 < letter.time_ms
    assert (letter.origin.topic, both.value) == ("orders", b"both")
    assert redriven_headers(both) == (("h", b"2"), ("dlq.redriven", b"4"))


def test_without_a_target_for_good_rows_only_bad_ones_are_written(spark: SparkSession) -> None:
    frame = orders(spark).drop("_value", "_headers")
    rows = [message(row) for row in Quality(rules=RULES, dead_letters="odd").shape(frame).collect()]
    assert {row.topic for row in rows} == {"odd"}
    assert [json.loads(row.value or b"") for row in rows] == [
        {"total": -1, "region": "mars"},
        {"total": None, "region": "us"},
    ], "without its bytes a record is its columns"
    assert [read_dead_letter(row).redriven for row in rows] == [0, 0]


def test_a_transform_must_keep_the_origin_of_records(spark: SparkSession) -> None:
    with pytest.raises(DeclarationError, match=r"keep them in the transforms .* no column '_topic'"):
        Quality(rules=RULES).shape(orders(spark).select("total", "region", "_offset"))


def test_good_rows_in_a_topic_may_have_another_key(spark: SparkSession) -> None:
    job = Quality(rules=RULES, to={"topic": "good", "key": "region"})
    assert {bytes(row.value): row.key and bytes(row.key) for row in job.shape(orders(spark)).collect()} == {
        b"good": b"eu",
        b"both": b"b",
        b"null": None,
    }
    assert job.sink({}).options == {"delivery": "exactly_once"}, "the column `topic` says where each row goes"


@pytest.mark.parametrize(
    ("settings", "error_text"),
    [
        ({"rules": {}}, "rules is empty"),
        ({"rules": {"a b": "true"}}, r"rules\.a b: a rule's name"),
        ({"rules": {"parses": "true"}}, "this name is taken"),
        ({"rules": RULES, "delivery": "once"}, "no such choice"),
        ({"rules": RULES, "delivery": "at_least_once", "to": {"topic": "t"}}, "the same value here and in `to`"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], error_text: str) -> None:
    with pytest.raises(DeclarationError, match=error_text):
        Quality(**settings)
