"""sessions: one row for the events of a key that follow each other within a gap: start, end, events and measures.

If only the gap ends a session, Spark's session windows are used, and measures can be any SQL aggregates. With
`ends_when` or `longest` the job keeps its own state (`session_state`), and measures are limited to count, sum, min,
max, first and last. Either way a session is written once, when the watermark has passed its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.spark.pipelines.kind import ColumnUse, Kind
from millpond.spark.pipelines.kinds.aggregate import with_time
from millpond.spark.pipelines.kinds.columns import COLUMNS, EVENT_TIME, aliased, quote
from millpond.spark.pipelines.kinds.flows import Flow, Sink, To, as_records, expression_uses, plan
from millpond.spark.pipelines.kinds.session_folds import END, EVENTS, START, read_folds
from millpond.spark.pipelines.values import (
    DURATION,
    TEXT,
    TEXTS,
    DeclarationError,
    Duration,
    table_of,
    value,
)
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class Sessions(Flow):
    """One row per session of a key."""

    kind = "sessions"

    key: dict[str, str] = value("The columns that identify whose session it is.", COLUMNS)
    time: str = value("The event time, in SQL.", TEXT)
    gap: Duration = value("A session ends after this long without an event.", DURATION)
    watermark: Duration = value("How late an event may be.", DURATION, Duration(60_000))
    measures: dict[str, str] = value('Aggregates, in SQL by name, such as { total = "sum(price)" }.', TEXTS, {})
    ends_when: str = value("An event that ends its session, in SQL.", TEXT, "")
    longest: Duration | None = value("The maximum length of a session.", DURATION, None)
    to: To = value("The target of the sessions.", table_of(To))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap.ms <= 0 or (self.longest is not None and self.longest.ms <= 0):
            raise DeclarationError("gap and longest must be longer than 0")
        if not self.key:
            raise DeclarationError("key is empty: name the columns that identify a session")
        twice = {START, END, EVENTS, *self.key} & self.measures.keys()
        if twice:
            raise DeclarationError(f"measures: {', '.join(sorted(twice))} is a column of the result already")
        if self.needs_state:
            read_folds(self.measures)

    @property
    def needs_state(self) -> bool:
        return bool(self.ends_when) or self.longest is not None

    def shape(self, frame: DataFrame) -> DataFrame:
        rows = stateful_sessions(frame, self) if self.needs_state else sessions(frame, self)
        return as_records(rows, self.to.key_column(list(self.key))) if self.to.topic else rows

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        return self.to.sink(cluster)


def sessions(frame: DataFrame, job: Sessions) -> DataFrame:
    """One row for each session, by Spark's session windows."""
    from pyspark.sql import functions as f

    timed = with_time(frame, job.time, job.watermark, "sessions")
    return (
        timed.groupBy(f.session_window(EVENT_TIME, str(job.gap)).alias("window"), *aliased(job.key))
        .agg(f.max(EVENT_TIME).alias(END), f.count("*").alias(EVENTS), *aliased(job.measures))
        .select(
            *[f.col(quote(name)) for name in job.key],
            f.col("window.start").alias(START),
            *[f.col(quote(name)) for name in (END, EVENTS, *job.measures)],
        )
    )


def stateful_sessions(frame: DataFrame, job: Sessions) -> DataFrame:
    """The same with our own state."""
    from millpond.spark.pipelines.kinds.session_state import sessions_with_state

    return sessions_with_state(
        with_time(frame, job.time, job.watermark, "sessions"),
        job.key,
        read_folds(job.measures),
        gap=job.gap,
        longest=job.longest,
        ends_when=job.ends_when,
    )


def column_uses(job: Sessions, columns: Columns) -> Iterator[ColumnUse]:
    timed = None if columns is None else (*columns, EVENT_TIME)
    yield ColumnUse("time", job.time, columns)
    yield from expression_uses("key", job.key, timed)
    yield from expression_uses("measures", job.measures, timed)
    if job.ends_when:
        yield ColumnUse("ends_when", job.ends_when, timed)
    yield from job.to.column_uses((*job.key, START, END, EVENTS, *job.measures))


KIND = Kind(
    name="sessions",
    doc="Events of a key that follow each other within a gap, as one row.",
    job=Sessions,
    plan=plan,
    column_uses=column_uses,
    outputs=lambda job: job.to.outputs(),
    example="""\
[sessions]
key = ["customer"]
time = "at"
gap = "30 minutes"
watermark = "5 minutes"
measures = { orders = "count(*)", spent = "sum(total)" }
to = { table = "lake/sessions" }
""",
)
