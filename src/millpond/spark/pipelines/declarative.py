"""The same declaration as a Spark Declarative Pipelines project: every job becomes a sink and a flow into it.

In a file of the project's transformations:

    from millpond.spark.pipelines.declarative import define

    define("orders.toml")

`spark-pipelines run` then does what `millpond pipeline run` would do with trigger = "available_now", with checkpoints
in the project's own storage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.spark.pipelines.context import JobContext, kafka_options, sql_word
from millpond.spark.pipelines.declaration import Pipeline
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.kinds.flows import Flow
from millpond.spark.pipelines.kinds.quality import Quality
from millpond.spark.pipelines.progress import JobWatch
from millpond.spark.pipelines.tables import Job, Transform
from millpond.spark.pipelines.values import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def define(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Pipeline:
    """Register the jobs of a declaration with the project being loaded; returns the declaration."""
    pipeline = Pipeline.load(Path(path), environment)
    for job in pipeline.jobs:
        define_job(pipeline, flow_of(job))
    return pipeline


def flow_of(job: Job) -> Flow:
    """The job, if it only appends rows to one sink: no other job can be a flow here."""
    kind = kind_of(job).name
    if not isinstance(job, Flow):
        raise DeclarationError(f"{job.name}: {kind} is not a flow of rows; run it with `millpond pipeline run`")
    if isinstance(job, Quality) and job.splits:
        raise DeclarationError(
            f'{job.name}: good rows and dead letters are two sinks; give [quality] to = {{ topic = "…" }} here, '
            "or run it with `millpond pipeline run`"
        )
    if job.sink({}).mode != "append":
        raise DeclarationError(
            f'{job.name}: mode = "update" changes rows that were written; declare it with mode = "append" here, '
            "or run it with `millpond pipeline run`"
        )
    return job


def define_job(pipeline: Pipeline, job: Flow) -> None:
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    assert pipeline.source is not None, "a flow has a source"
    name = f"{sql_word(pipeline.name)}_{sql_word(job.name)}"
    sink = job.sink(kafka_options(pipeline.source))
    dp.create_sink(name, sink.format, dict(sink.options))

    # Created here, because a flow may not ask for the columns of a frame.
    context = FlowContext(SparkSession.active(), pipeline, job, JobWatch(job.name, job.kind))
    rows = job.shape(job.source(context))

    @dp.append_flow(target=name, name=f"{name}_flow")
    def flow() -> Any:
        return rows


@dataclass(frozen=True)
class FlowContext(JobContext):
    """Creates frames without views in the session, which all flows of a project share."""

    def _step(self, step: Transform, number: int, frames: Mapping[str, DataFrame]) -> DataFrame:
        return transformed(self.spark, step.sql, frames)


def transformed(spark: SparkSession, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """A query over frames, which it refers to by name."""
    views = ", ".join(f"{name} AS (SELECT * FROM {{{name}}})" for name in frames)
    plain = sql.replace("{", "{{").replace("}", "}}")
    named: dict[str, Any] = dict(frames)
    return spark.sql(f"WITH {views} SELECT * FROM ({plain})", **named)
