"""Writing a task's rows, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from millpond.columns.rows import Shape
from millpond.spark.sink.errors import SinkError
from millpond.spark.sink.task import write_at_least_once, write_part
from support.spark_sink_task import TaskRunner


def batches(*rows: list[str]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["value"]) for values in rows]


def test_rows_are_stored_when_the_task_ends(runner: TaskRunner) -> None:
    write_at_least_once(runner.plan, batches(["a", "b"], [], ["c"]), 0)
    assert runner.seen() == ["a", "b", "c"]


def test_a_job_that_is_never_replayed_needs_no_decision(runner: TaskRunner) -> None:
    part = write_part(runner.plan, batches(["a"], ["b"]), runner.query, None, 5)
    assert (part.partition, part.rows) == (5, 2)
    assert runner.open() == ["5"]
    assert len(part.begins) == 1


def test_a_task_that_fails_leaves_nothing_open(runner: TaskRunner) -> None:
    plan = replace(runner.plan, shape=Shape(runner.topic, frozenset({"value", "partition"})))
    rows = [
        pa.RecordBatch.from_arrays(
            [pa.array(["a" * 5_000_000]), pa.array([expected], pa.int32())], ["value", "partition"]
        )
        for expected in (0, 7)
    ]
    with pytest.raises(Exception, match=r"a row asks for 7|MESSAGE_TOO_LARGE"):
        write_part(plan, rows, runner.query, runner.unit(0), 0)
    assert runner.open() == []


def test_a_missing_topic_is_created_if_the_cluster_allows_it(runner: TaskRunner) -> None:
    plan = replace(runner.plan, shape=Shape(f"{runner.topic}-new", frozenset({"value"})))
    write_at_least_once(plan, batches(["a"]), 0)
    assert f"{runner.topic}-new" in runner.cluster.topics([f"{runner.topic}-new"])


def test_an_invalid_topic_name_is_refused(runner: TaskRunner) -> None:
    plan = replace(runner.plan, shape=Shape("no such/topic", frozenset({"value"})))
    with pytest.raises(Exception, match="no such/topic"):
        write_at_least_once(plan, batches(["a"]), 0)
    assert SinkError is not None
