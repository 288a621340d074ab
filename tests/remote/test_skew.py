"""The causes of skew, and advice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from millpond.remote.skew import (
    AS_IT_IS,
    HotKey,
    PartitionLoad,
    Prediction,
    Report,
    best,
    imbalance,
    judged,
)
from millpond.wire.partitioner import partition_for_key


def loads(*sizes: int) -> tuple[PartitionLoad, ...]:
    return tuple(PartitionLoad(at, size // 10, size) for at, size in enumerate(sizes))


def report(sizes: Sequence[int], **known: Any) -> Report:
    plain: dict[str, Any] = {"keys": 1000, "followed": {"murmur2": 1.0, "crc32": 0.3}}
    now = Prediction(AS_IT_IS, len(sizes), tuple(sizes))
    others = known.pop("predictions", ())
    return judged(Report("orders", loads(*sizes), predictions=(now, *others), **plain | known), balance=1.25)


def test_imbalance_is_the_busiest_relative_to_the_average() -> None:
    assert imbalance([10, 10, 10]) == 1.0
    assert imbalance([30, 0, 0]) == 3.0
    assert imbalance([0, 0]) == 1.0


@pytest.mark.parametrize(
    ("sizes", "known", "cause", "message"),
    [
        ([0, 0], {}, "empty", "no records"),
        ([100, 110, 90], {}, "balanced", "1.10 times the average: that is even enough"),
        ([200, 100, 100], {"keys": 5}, "few_keys", "only 5 keys for 3 partitions"),
        (
            [200, 100, 100],
            {"followed": {"murmur2": 0.4, "crc32": 0.3}},
            "other_partitioner",
            "choose partitions by them",
        ),
        ([200, 100, 100], {"followed": {"murmur2": 0.4, "crc32": 0.99}}, "unlucky_hash", "No key is too hot"),
        ([200, 100, 100], {"keys": 0, "followed": {}}, "other_partitioner", "predicted holds when they use murmur2"),
    ],
)
def test_causes(sizes: list[int], known: dict[str, Any], cause: str, message: str) -> None:
    result = report(sizes, **known)
    assert result.cause == cause
    assert message in result.advice


def test_the_smallest_change_that_is_enough_is_advised() -> None:
    tried = (
        Prediction(AS_IT_IS, 2, (200, 200)),
        Prediction(AS_IT_IS, 6, (80, 60, 60, 60, 70, 70)),
        Prediction(AS_IT_IS, 9, (45, 45, 45, 45, 44, 44, 44, 44, 44)),
        Prediction("by_user", 3, (134, 133, 133)),
    )
    result = report([200, 100, 100], predictions=tried)
    assert result.cause == "unlucky_hash"
    assert result.advice.endswith("With 6 partitions it would be 1.20."), "partitions are never taken away"
    poor = report([200, 100, 100], predictions=(Prediction("worse", 3, (300, 50, 50)),))
    assert poor.advice.endswith("None of the keys and counts that were tried is better.")
    assert best([], 1.0) is None


def test_a_hot_key_is_split_until_the_load_is_even() -> None:
    hot = b"whale"
    at = partition_for_key(hot, 4)
    sizes = [100_000] * 4
    sizes[at] += 400_000
    result = report(sizes, hottest=(HotKey(hot, at, 40_000, 400_000), HotKey(b"x", 0, 1, 10)))
    assert result.cause == "hot_key"
    assert "The key 'whale' alone has 50.0%, which no partition count can divide." in result.advice
    salted = {each.key: each for each in result.predictions if each.key.startswith("hot keys")}
    assert [*salted] == [f"hot keys in {salt} parts" for salt in (2, 4, 8, 16, 32, 64)]
    # Computed by hand: each part of the whale in its partition.
    eight = [100_000] * 4
    for part in range(8):
        eight[partition_for_key(b"whale-%d" % part, 4)] += 50_000
    assert salted["hot keys in 8 parts"].loads == tuple(eight)
    helps = best(salted.values(), 1.25)
    assert helps is not None
    assert f"With {helps.key} it would be {helps.imbalance:.2f}." in result.advice


def test_a_report_survives_json_and_reads_as_tables() -> None:
    result = report([200, 100, 100], hottest=(HotKey(b"\xffkey", 2, 3, 40),))
    again = Report.from_object(json.loads(json.dumps(result.as_object())))
    assert again == result
    partitions, hottest, predicted = result.tables()
    assert partitions.rows[0] == ["0", 20, 200, "50.0%"]
    assert hottest.rows == [[r"\xffkey", "2", 3, 40, "10.0%"]]
    assert predicted.rows[0] == [AS_IT_IS, 3, "1.50", "50.0%"]
