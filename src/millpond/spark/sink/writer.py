"""The writers that Spark calls: `write` in each task, then `commit` or `abort` on the driver.

Spark creates a new writer for each of these calls, so writers keep no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millpond.spark.options import (
    DELIVERY,
    INCLUDE_TIMESTAMPS,
    TOPIC,
    TXN_APP_ID,
    TXN_VERSION,
    OptionError,
    Where,
    read_options,
)
from millpond.spark.sink import exactly_once
from millpond.spark.sink.decisions import Part
from millpond.spark.sink.errors import SinkError
from millpond.spark.sink.exactly_once import Unit, job_unit
from millpond.spark.sink.settings import write_settings
from millpond.spark.sink.shape import shape_of
from millpond.spark.sink.task import WritePlan, write_at_least_once, write_part

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
RUN_PROPERTY = "spark.jobGroup.id"
"""The job group of a stream's jobs is the id of its run."""


@dataclass
class Written(WriterCommitMessage):
    """A task's result. `part` is None for at-least-once writes, which are already stored."""

    owner: str
    part: Part | None = None
    run: str = ""
    """The id of the stream's run, inside foreachBatch."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """For `df.write.format("millpond")`."""
    if overwrite:
        raise SinkError("a topic cannot be overwritten, only appended to: use mode('append')")
    return TopicWriter(_plan(options, schema, "write"))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """For `df.writeStream.format("millpond")`."""
    if overwrite:
        raise SinkError(
            "a topic cannot be overwritten, only appended to: outputMode('complete') would write the whole result "
            "again with each batch; use outputMode('append')"
        )
    return TopicStreamWriter(_plan(options, schema, "writeStream"))


def _plan(given: Mapping[str, str], schema: StructType, where: Where) -> WritePlan:
    options = read_options(given, where)
    if (options.get(TXN_APP_ID) is None) != (options.get(TXN_VERSION) is None):
        raise OptionError("txnAppId and txnVersion belong together: give both")
    if options.get(TXN_APP_ID) is not None and options[DELIVERY] != "exactly_once":
        raise OptionError("txnAppId and txnVersion need delivery=exactly_once")
    shape = shape_of(schema, options.get(TOPIC), with_timestamps=options[INCLUDE_TIMESTAMPS])
    settings = write_settings(options.kafka, exactly_once=options[DELIVERY] == "exactly_once")
    return WritePlan(options, settings, shape)


class TopicWriter(DataSourceArrowWriter):
    """A batch job.

    With exactly_once the transactions of its tasks are committed together, but a restarted job writes its rows again.
    With txnAppId and txnVersion, which identify the write, it gives the same guarantee as a stream.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        app_id, version = plan.options.get(TXN_APP_ID), plan.options.get(TXN_VERSION)
        self._unit = None
        if app_id is not None and version is not None:
            self._unit = job_unit(app_id, version, plan.options.get(TOPIC))
        self._owner = self._unit.owner if self._unit else str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        if not self._plan.is_exactly_once:
            write_at_least_once(self._plan, iterator, task.partitionId())
            return Written(self._owner)
        run = task.getLocalProperty(RUN_PROPERTY) if task.getLocalProperty(QUERY_PROPERTY) else None
        part = write_part(self._plan, iterator, self._owner, self._unit, task.partitionId())
        return Written(self._owner, part, run or "")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = _parts(messages)
        if not parts:
            return
        with self._plan.cluster() as cluster:
            if self._unit is None:
                exactly_once.commit_unnumbered(cluster, parts)
            else:
                run = next(each.run for each in messages if isinstance(each, Written))
                exactly_once.commit(cluster, replace(self._unit, run=run), parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = _parts(messages)
        if not parts:
            return
        with self._plan.cluster() as cluster:
            if self._unit is None:
                exactly_once.abort_unnumbered(cluster, parts)
            else:
                exactly_once.abort(cluster, self._unit, parts)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query. With exactly_once each batch is in the topic once, however often it is replayed."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query = task.getLocalProperty(QUERY_PROPERTY) or ""
        batch = int(task.getLocalProperty(BATCH_PROPERTY) or 0)
        if not self._plan.is_exactly_once:
            write_at_least_once(self._plan, iterator, task.partitionId() + batch)
            return Written(query)
        if not query:
            raise SinkError("Spark does not say which query this is, so it cannot be written exactly once")
        return Written(query, write_part(self._plan, iterator, query, self._unit(query, batch), task.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        parts = _parts(messages)
        if parts:
            with self._plan.cluster() as cluster:
                exactly_once.commit(cluster, self._unit(_owner(messages), batchId), parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        parts = _parts(messages)
        if parts:
            with self._plan.cluster() as cluster:
                exactly_once.abort(cluster, self._unit(_owner(messages), batchId), parts)

    def _unit(self, query: str, batch: int) -> Unit:
        return Unit(query, batch, self._plan.options.get(TOPIC))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written in tasks only"
    return task


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [each.part for each in messages if isinstance(each, Written) and each.part is not None]


def _owner(messages: Sequence[WriterCommitMessage | None]) -> str:
    owners = {each.owner for each in messages if isinstance(each, Written)}
    assert len(owners) == 1, owners
    return owners.pop()
