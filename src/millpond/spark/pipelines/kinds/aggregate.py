"""aggregate: event-time windows into a table or a topic.

With mode = "append" a window is written once, when the watermark has passed its end; Spark drops and counts later
rows. With mode = "update" a window is written whenever it changes: a table is updated in place, a topic gets a newer
record with the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from millpond.spark.pipelines.kind import ColumnUse, Kind
from millpond.spark.pipelines.kinds.columns import COLUMNS, EVENT_TIME, aliased, as_json, moment, need_columns, quote
from millpond.spark.pipelines.kinds.flows import Flow, Sink, To, as_records, expression_uses, name_uses, plan
from millpond.spark.pipelines.values import (
    DURATION,
    NAMES,
    TEXT,
    TEXTS,
    DeclarationError,
    Duration,
    one_of,
    table_of,
    value,
)
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

START: Final = "window_start"
END: Final = "window_end"
ROW: Final = "_row"
"""The key column of a window and its group in an updated table: a key must not be null, but a group may be."""


@dataclass(frozen=True, kw_only=True)
class Aggregate(Flow):
    """Aggregates over time windows."""

    kind = "aggregate"

    time: str = value("The event time, in SQL.", TEXT)
    window: Duration = value("The length of a window.", DURATION)
    slide: Duration | None = value(
        "How often a window begins; by default, when the previous one ends.", DURATION, None
    )
    watermark: Duration = value("How late an event may be.", DURATION, Duration(60_000))
    group_by: dict[str, str] = value("Columns to group by.", COLUMNS, {})
    measures: dict[str, str] = value('Aggregates, in SQL by name, such as { orders = "count(*)" }.', TEXTS)
    distinct_by: tuple[str, ...] = value("Events with the same values in these columns count once.", NAMES, ())
    mode: str = value("Write closed windows once, or every change.", one_of("append", "update"), "append")
    to: To = value("The target of the windows.", table_of(To))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_windows(self.window, self.slide)
        if not self.measures:
            raise DeclarationError('measures is empty: declare aggregates, such as { orders = "count(*)" }')
        twice = {START, END, *self.group_by} & self.measures.keys()
        if twice:
            raise DeclarationError(f"measures: {', '.join(sorted(twice))} is a column of the result already")
        if self.distinct_by and self.mode == "update":
            raise DeclarationError('distinct_by needs mode = "append": Spark keeps both only for closed windows')

    def shape(self, frame: DataFrame) -> DataFrame:
        return output(windows(frame, self), self)

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        sink = self.to.sink(cluster)
        if self.mode == "append":
            return sink
        upsert = {"mode": "upsert", "keys": f"{START},{ROW}"} if self.to.table else {}
        return replace(sink, options={**sink.options, **upsert}, mode="update")


def check_windows(window: Duration, slide: Duration | None) -> None:
    if window.ms <= 0 or (slide is not None and slide.ms <= 0):
        raise DeclarationError("window: it must be longer than 0")
    if slide is not None and slide > window:
        raise DeclarationError("slide: it is longer than the window, so events between two windows would be lost")


def windows(frame: DataFrame, job: Aggregate) -> DataFrame:
    """One row for each window and group: window_start, window_end, the groups, the measures."""
    from pyspark.sql import functions as f

    slide = str(job.slide or job.window)
    timed = with_time(frame, job.time, job.watermark, "aggregate")
    if job.distinct_by:
        need_columns(frame, job.distinct_by, "[aggregate] distinct_by")
        # A batch frame has no watermark, and needs none: all rows are available.
        once = timed.dropDuplicatesWithinWatermark if frame.isStreaming else timed.dropDuplicates
        timed = once(list(job.distinct_by))
    window = f.window(EVENT_TIME, str(job.window), slide)
    return (
        timed.groupBy(window.alias("window"), *aliased(job.group_by))
        .agg(*aliased(job.measures))
        .select(
            f.col("window.start").alias(START),
            f.col("window.end").alias(END),
            *[f.col(quote(name)) for name in (*job.group_by, *job.measures)],
        )
    )


def with_time(frame: DataFrame, time: str, watermark: Duration, name: str) -> DataFrame:
    """The rows with a time, as `_event_time` with a watermark. Rows without one belong to no window and are
    counted."""
    from pyspark.sql import functions as f

    timed = frame.withColumn(EVENT_TIME, moment(time))
    counted = timed.observe(name, f.count_if(f.col(EVENT_TIME).isNull()).alias("without_time"))
    return counted.where(f.col(EVENT_TIME).isNotNull()).withWatermark(EVENT_TIME, str(watermark))


def output(rows: DataFrame, job: Aggregate) -> DataFrame:
    """The windows as rows for the sink."""
    named_by = [*job.group_by, START] if job.mode == "update" else list(job.group_by)
    if job.to.topic:
        return as_records(rows, job.to.key_column(named_by))
    if job.mode == "append":
        return rows
    return rows.withColumn(ROW, as_json(named_by).cast("string"))


def column_uses(job: Aggregate, columns: Columns) -> Iterator[ColumnUse]:
    timed = None if columns is None else (*columns, EVENT_TIME)
    yield ColumnUse("time", job.time, columns)
    yield from expression_uses("group_by", job.group_by, timed)
    yield from expression_uses("measures", job.measures, timed)
    yield from name_uses("distinct_by", job.distinct_by, columns)
    yield from job.to.column_uses((START, END, *job.group_by, *job.measures))


KIND = Kind(
    name="aggregate",
    doc="Windows of event time into a table or a topic.",
    job=Aggregate,
    plan=plan,
    column_uses=column_uses,
    outputs=lambda job: job.to.outputs(),
    example="""\
[aggregate]
time = "at"
window = "1 minute"
watermark = "2 minutes"
group_by = ["region"]
measures = { orders = "count(*)", revenue = "sum(total)" }
to = { table = "lake/revenue" }
""",
)
