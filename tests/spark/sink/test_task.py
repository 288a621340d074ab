"""What a task does with its rows, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from millpond.spark.sink.errors import SinkError
from millpond.spark.sink.shape import Shape
from millpond.spark.sink.task import write_at_least_once, write_part
from support.spark_sink_play import Play


def batches(*rows: list[str]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["value"]) for values in rows]


def test_rows_are_there_when_the_task_ends(play: Play) -> None:
    write_at_least_once(play.plan, batches(["a", "b"], [], ["c"]), 0)
    assert play.seen() == ["a", "b", "c"]


def test_a_job_that_is_never_replayed_looks_nothing_up(play: Play) -> None:
    part = write_part(play.plan, batches(["a"], ["b"]), play.query, None, 5)
    assert (part.partition, part.rows) == (5, 2)
    assert play.open() == ["5"]
    assert len(part.begins) == 1


def test_a_task_that_fails_leaves_nothing_open(play: Play) -> None:
    plan = replace(play.plan, shape=Shape(play.topic, frozenset({"value", "partition"})))
    rows = [
        pa.RecordBatch.from_arrays(
            [pa.array(["a" * 5_000_000]), pa.array([wanted], pa.int32())], ["value", "partition"]
        )
        for wanted in (0, 7)
    ]
    with pytest.raises(Exception, match=r"a row asks for 7|MESSAGE_TOO_LARGE"):
        write_part(plan, rows, play.query, play.unit(0), 0)
    assert play.open() == []


def test_a_topic_that_is_not_there_is_made_where_the_cluster_does_so(play: Play) -> None:
    plan = replace(play.plan, shape=Shape(f"{play.topic}-new", frozenset({"value"})))
    write_at_least_once(plan, batches(["a"]), 0)
    assert f"{play.topic}-new" in play.cluster.topics([f"{play.topic}-new"])


def test_a_name_that_no_topic_can_have_is_said(play: Play) -> None:
    plan = replace(play.plan, shape=Shape("no such/topic", frozenset({"value"})))
    with pytest.raises(Exception, match="no such/topic"):
        write_at_least_once(plan, batches(["a"]), 0)
    assert SinkError is not None
