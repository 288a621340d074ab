"""skew: counts, and predictions with the clients' partitioner."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from millpond.remote.skew import AS_IT_IS
from millpond.spark.pipelines.kinds.skew import Skew, measure
from millpond.spark.pipelines.values import DeclarationError
from millpond.wire.partitioner import partition_for_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [b"whale"] * 50 + [b"key-%d" % (number % 40) for number in range(50)]


def records(spark: SparkSession, places: list[int]) -> DataFrame:
    rows: list[tuple[Any, ...]] = [
        (key, b"v" * 10, place, number) for number, (key, place) in enumerate(zip(KEYS, places, strict=True))
    ]
    rows += [(None, b"v" * 10, 0, 100), (None, None, 1, 101)]
    return spark.createDataFrame(rows, "_key binary, value binary, _partition int, _offset long")


def test_loads_hot_keys_and_predictions_are_those_of_the_records(spark: SparkSession) -> None:
    job = Skew(partitions=[6], keys={"spread": "concat(cast(_key as string), pmod(_offset, 5))"}, top=2)
    report = measure(records(spark, [partition_for_key(key, 3) for key in KEYS]), job, "orders", partitions=3)
    assert (report.topic, report.records, report.keyless, report.keys) == ("orders", 102, 2, 41)
    whale, second = report.hottest
    assert (whale.key, whale.partition, whale.records, whale.bytes) == (
        b"whale",
        partition_for_key(b"whale", 3),
        50,
        750,
    )
    assert second.records == 2
    assert report.followed["murmur2"] == 1.0 > report.followed["crc32"]
    assert report.cause == "hot_key"
    by_key = Counter[int]()
    for key in KEYS:
        by_key[partition_for_key(key, 6)] += len(key) + 10
    predicted = {(each.key, each.partitions): each.loads for each in report.predictions}
    assert predicted[AS_IT_IS, 6] == tuple(by_key[at] + 10 // 6 for at in range(6))
    spread = Counter[int]()
    for number, key in enumerate(KEYS):
        spread[partition_for_key(key + b"%d" % (number % 5), 3)] += len(key) + 10
    assert predicted["spread", 3] == tuple(spread[at] + 10 // 3 for at in range(3))


def test_the_partitioner_of_librdkafka_is_recognised(spark: SparkSession) -> None:
    report = measure(records(spark, [crc32(key) % 3 for key in KEYS]), Skew(partitions=[3]), "orders", 3)
    assert report.followed["crc32"] == 1.0 > report.followed["murmur2"]


def test_an_empty_range_is_reported(spark: SparkSession) -> None:
    report = measure(records(spark, [0] * 100).where("false"), Skew(), "orders", 2)
    assert (report.cause, report.advice) == ("empty", "There are no records in the range.")
    assert [(each.partition, each.records, each.bytes) for each in report.loads] == [(0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partitions": [0]}, "each from 1 to"),
        ({"partitions": ["six"]}, "write whole numbers"),
        ({"from_": "2026-01-31T00:00:00Z", "last": "1 h"}, "give from or last"),
        ({"keys": {AS_IT_IS: "x"}}, "is the name of the present key"),
        ({"top": 0}, "from 1 to"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Skew(**settings)
