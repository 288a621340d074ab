"""Jobs with a single flow, as in most kinds: rows are transformed and written to one sink.

The shape is a pure function of a frame, streaming or not; the sink is a format and its options. A run starts them as
a streaming query; `declarative` passes the same two to Spark Declarative Pipelines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kind import ColumnUse
from millpond.spark.pipelines.kinds.columns import key_bytes, quote, value_bytes
from millpond.spark.pipelines.plan import Plan
from millpond.spark.pipelines.tables import Job
from millpond.spark.pipelines.values import (
    DURATION,
    NAME,
    NAMES,
    PATH,
    SETTINGS,
    SIZE,
    TEXT,
    DeclarationError,
    Duration,
    one_of,
    read_fields,
    value,
    whole,
)
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Mode: TypeAlias = Literal["append", "update"]
TABLES: Final = "millpond_delta"
TOPICS: Final = "millpond"


@dataclass(frozen=True)
class Sink:
    """A sink: a Spark format with its options."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = "append"


@dataclass(frozen=True, kw_only=True)
class Table:
    """The keys that all jobs writing to a table share."""

    partition_by: tuple[str, ...] = value("The partition columns of the table.", NAMES, ())
    compact_every: int = value("Compact small files after this many batches; 0 means never.", whole(0, 1_000_000), 50)
    vacuum: Duration = value(
        'After a compaction, delete files that were removed from the table this long ago; "0 s" means never.',
        DURATION,
        Duration(7 * 86_400_000),
    )
    file_size: int = value("The target size of files.", SIZE, 128 << 20)
    options: dict[str, str] = value("Other options of the sink, by name.", SETTINGS, {})

    def table_options(self, path: str) -> dict[str, str]:
        options = {"path": path, "targetFileBytes": str(self.file_size)}
        if self.partition_by:
            options["partitionBy"] = ",".join(self.partition_by)
        if self.compact_every:
            options["compactEvery"] = str(self.compact_every)
            options["vacuumHours"] = str(self.vacuum.ms // 3_600_000)
        return options | self.options


@dataclass(frozen=True, kw_only=True)
class To(Table):
    """The target of a job's results: a table or a topic."""

    table: str = value("The table, as a folder or an address.", PATH, "")
    topic: str = value("The topic. Rows become JSON, unless they have a binary column `value`.", NAME, "")
    key: str = value("The key of a record, in SQL; the grouping columns by default.", TEXT, "")
    delivery: str = value("The delivery guarantee.", one_of("exactly_once", "at_least_once"), "exactly_once")

    def __post_init__(self) -> None:
        read_fields(self)
        if bool(self.table) == bool(self.topic):
            raise DeclarationError('write { table = "…" } or { topic = "…" }, one of them')
        if self.topic and self.partition_by:
            raise DeclarationError("partition_by is for a table")

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        if self.table:
            return Sink(TABLES, self.table_options(self.table))
        return Sink(TOPICS, topic_options(cluster, self.topic, self.delivery) | self.options)

    def key_column(self, columns: Sequence[str]) -> Column:
        """The declared key, or a key made of these columns."""
        from pyspark.sql import functions as f

        return f.encode(f.expr(self.key).cast("string"), "UTF-8") if self.key else key_bytes(columns)

    def outputs(self) -> dict[str, str]:
        return {"table": self.table} if self.table else {"topic": self.topic}

    def column_uses(self, columns: Columns) -> Iterator[ColumnUse]:
        """The expressions it needs from the job's rows, which have these columns."""
        if self.key:
            yield ColumnUse("to.key", self.key, columns)
        yield from name_uses("to.partition_by", self.partition_by, columns)


def expression_uses(key: str, expressions: Mapping[str, str], columns: Columns) -> Iterator[ColumnUse]:
    """Expressions by name."""
    for name, sql in expressions.items():
        if sql == quote(name):
            yield ColumnUse(key, name, columns, is_name=True)
        else:
            yield ColumnUse(f"{key}.{name}", sql, columns)


def name_uses(key: str, names: Iterable[str], columns: Columns) -> Iterator[ColumnUse]:
    """Plain names of columns."""
    for name in names:
        yield ColumnUse(key, name, columns, is_name=True)


def topic_options(cluster: Mapping[str, str], topic: str, delivery: str) -> dict[str, str]:
    return {**cluster, "delivery": delivery} | ({"topic": topic} if topic else {})


class Flow(Job, ABC):
    """A job with one shape and one sink."""

    @abstractmethod
    def shape(self, frame: DataFrame) -> DataFrame:
        """The rows for the sink."""

    @abstractmethod
    def sink(self, cluster: Mapping[str, str]) -> Sink:
        """The sink of the rows; `cluster` has the `kafka.*` options of the source's cluster."""

    def source(self, context: JobContext) -> DataFrame:
        """The stream that the job reads."""
        return context.frame()


def plan(context: JobContext, job: Flow) -> Plan:
    """A flow as one streaming query."""
    return context.plan(writer(job.shape(job.source(context)), job.sink(context.cluster())))


def writer(frame: DataFrame, sink: Sink) -> DataStreamWriter:
    # Spark Connect analyzes a frame only on demand: force it now.
    assert frame.columns is not None
    if sink.mode == "append":
        return frame.writeStream.format(sink.format).options(**sink.options).outputMode("append")
    return frame.writeStream.outputMode(sink.mode).foreachBatch(
        lambda batch, number: write_batch(batch, number, sink)
    )


def write_batch(batch: DataFrame, number: int, sink: Sink) -> None:
    """Write one batch of a stream separately and once: the sink skips a batch number that it has already.

    Python sinks accept only appended rows from a stream (as of Spark 4.3), so updates are written this way.
    """
    once = _once(batch.sparkSession, number, sink)
    batch.write.format(sink.format).options(**sink.options, **once).mode("append").save()


def _once(session: SparkSession, number: int, sink: Sink) -> dict[str, str]:
    """Options that identify the write for the sink."""
    context = getattr(session, "sparkContext", None)
    if context is None:
        # Over Connect only tasks know their query; the lake sink gets it there.
        if sink.format == TABLES:
            return {"ofStream": "true"}
        raise DeclarationError("over Spark Connect, rows that update can go to a table only; run it with --master")
    if sink.format == TOPICS and sink.options.get("delivery") != "exactly_once":
        return {}
    query = context.getLocalProperty("sql.streaming.queryId")
    assert query is not None, "a batch of a stream runs under the id of its query"
    return {"txnAppId": query, "txnVersion": str(number)}


def as_records(frame: DataFrame, key: Column) -> DataFrame:
    """Rows as the topic sink takes them: every column goes into the value."""
    return frame.select(key.alias("key"), value_bytes(frame).alias("value"))
