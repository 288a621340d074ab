"""Slices, rate and stored progress of a replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.pipelines.kinds.replay import Replay
from millpond.spark.pipelines.kinds.replay_work import (
    SLICES_MAX,
    Pace,
    Progress,
    fixed_settings,
    in_order,
    join_steps,
    slice_count,
    with_slices,
)
from millpond.spark.pipelines.values import DeclarationError
from support.spark_kinds import at, parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_slices_by_offset_cut_every_partition_alike_and_in_order(spark: SparkSession) -> None:
    rows = [{"_partition": 0, "_offset": n} for n in range(8)] + [
        {"_partition": 1, "_offset": 100 + n} for n in range(4)
    ]
    sliced, count = with_slices(parsed_frame(spark, "id int", rows), Replay(topic="t"), slice_rows=3)
    result = {(row._partition, row._offset): row._slice for row in sliced.collect()}
    assert count == 4
    assert [result[0, n] for n in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [result[1, 100 + n] for n in range(4)] == [0, 1, 2, 3]


def test_slices_by_time_are_in_order_and_not_too_large(spark: SparkSession) -> None:
    times: list[Any] = [5, 1, 2, 3, 4, 1000, 1001, 1002, 1003, None]
    rows = [{"id": n, "seen": None if time is None else at(time)} for n, time in enumerate(times)]
    job = Replay(topic="t", order="time", time="seen")
    sliced, count = with_slices(parsed_frame(spark, "id int, seen timestamp", rows), job, slice_rows=2)
    result = {row.id: row._slice for row in sliced.collect()}
    known = sorted((time, result[n]) for n, time in enumerate(times) if time is not None)
    assert [number for _, number in known] == sorted(number for _, number in known)
    assert result[9] == 0
    assert max(result.values()) + 1 == count > 1


def test_steps_are_joined_up_to_the_size_of_a_slice() -> None:
    assert join_steps({0: 1, 1: 1, 5: 1, 6: 9, 7: 1}, 2) == {0: 0, 1: 0, 5: 1, 6: 2, 7: 3}
    assert join_steps({}, 2) == {}
    assert (slice_count(0, 5), slice_count(11, 5), slice_count(10**9, 1)) == (0, 3, SLICES_MAX)


def test_records_of_a_key_are_in_one_task_and_in_order(spark: SparkSession) -> None:
    rows = [{"value": b"%d" % n, "_key": b"k%d" % (n % 5), "_offset": n} for n in reversed(range(40))]
    frame = parsed_frame(spark, "value binary", rows).drop("_value").repartition(4)
    for tasks in (1, 2):
        records = in_order(frame, Replay(topic="t"), tasks)
        assert records.columns == ["key", "value", "headers", "timestamp"]
        assert records.rdd.getNumPartitions() == tasks
        parts = records.rdd.map(lambda row: (bytes(row.key), int(row.value))).glom().collect()
        where: dict[bytes, list[int]] = {}
        for part in parts:
            assert not {key for key, _ in part} & where.keys(), "a key is in one task"
            for key, number in part:
                where.setdefault(key, []).append(number)
        assert where == {b"k%d" % n: list(range(n, 40, 5)) for n in range(5)}


def test_the_rate_is_kept_and_a_stall_is_not_made_up_for() -> None:
    pace = Pace(rate=100, begun_at=0)
    assert pace.wait_seconds(0) == 0
    pace.sent += 100
    assert pace.wait_seconds(0.25) == 0.75
    pace.sent += 100
    assert pace.wait_seconds(10) == 0, "late by far"
    pace.sent += 100
    assert pace.wait_seconds(10) == 0, "one second of what was lost goes out at once"
    pace.sent += 100
    assert pace.wait_seconds(10) == pytest.approx(1)
    assert Pace(rate=0, begun_at=0, sent=10**9).wait_seconds(0) == 0


def test_progress_is_stored_with_the_fixed_settings(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "replay.json"
    assert Progress.load(path) is None
    job = Replay(topic="t", from_=at(0), rate=5)
    progress = Progress(fixed_settings(job), offsets={"orders": {"0": [1, 5]}}, slice_rows=5, slices=3, sent=2)  # type: ignore[dict-item]
    progress.save(path)
    assert Progress.load(path) == progress
    assert fixed_settings(Replay(topic="t", from_=at(0), rate=50)) == fixed_settings(job), "the rate may change"
    assert fixed_settings(Replay(topic="t", from_=at(1), rate=5)) != fixed_settings(job)
    path.write_text("{")
    with pytest.raises(DeclarationError, match="delete it to replay from the beginning"):
        Progress.load(path)
