"""Spark's writer interface for `format("millpond_delta")`, on top of the sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millpond.spark.lake.errors import LakeError
from millpond.spark.lake.options import write_options
from millpond.spark.lake.schemas import arrow_schema
from millpond.spark.lake.sink import LakeSink, TaskIdentity, TaskResult


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    result: TaskResult


def results_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The results of finished tasks."""
    return [message.result for message in messages if isinstance(message, TaskDone)]


def this_task() -> TaskIdentity:
    context = TaskContext.get()
    if context is None:
        return TaskIdentity(None, None, 0)
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    # The job group of a stream's jobs is the id of its run.
    run = context.getLocalProperty("spark.jobGroup.id") if query_id else None
    return TaskIdentity(query_id, None if batch_id is None else int(batch_id), context.partitionId(), run or "")


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, sink: LakeSink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return TaskDone(self.sink.write(iterator, this_task()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.sink.commit(results_of(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.sink.abort(results_of(messages), batchId)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, sink: LakeSink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        task = this_task()
        if not self.sink.options.of_stream:
            # Inside foreachBatch the task still belongs to a stream, which may write to this table more than once.
            task = TaskIdentity(None, None, task.partition, task.run)
        elif task.query_id is None or task.batch_id is None:
            raise LakeError("ofStream is for a write inside foreachBatch: this one belongs to no stream")
        return TaskDone(self.sink.write(iterator, task))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.commit(results_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.abort(results_of(messages))


def sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> LakeSink:
    return LakeSink(write_options(options), arrow_schema(schema), overwrite)
