"""replay: sends a table or a time range of a topic to a topic again, in order and at a given rate.

Restores what an archive keeps of a record: key, value, headers and timestamp. The value of parsed columns is written
as JSON. Records are sent in slices, one after another, by default each exactly once even if the run is killed: the
next run continues with the slice where the last one stopped. The order within a key is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kinds.archive import CALENDAR
from millpond.spark.pipelines.kinds.columns import (
    HEADER_TYPE,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    as_json,
    bytes_column,
    content_columns,
    moment,
    need_columns,
    quote,
)
from millpond.spark.pipelines.tables import Job
from millpond.spark.pipelines.values import (
    MOMENT,
    NAME,
    NAMES,
    PATH,
    SETTINGS,
    TEXT,
    DeclarationError,
    number,
    one_of,
    value,
    whole,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SLICE_SECONDS: Final = 1.0
"""The duration of one slice."""


@dataclass(frozen=True, kw_only=True)
class Replay(Job):
    """Sends a table or a time range again."""

    kind = "replay"
    reads_source = False

    topic: str = value("Where the records go.", NAME)
    table: str = value("The table to replay; the topics of [source] if not given.", PATH, "")
    from_: datetime | None = value("From this moment on.", MOMENT, None)
    to: datetime | None = value("Until before this moment.", MOMENT, None)
    time: str = value("The time that `from`, `to` and the order by time refer to, in SQL.", TEXT, TIMESTAMP)
    where: str = value("Which rows, in SQL; all if not given.", TEXT, "")
    order: str = value("In the order of the log, or of the time.", one_of("offset", "time"), "offset")
    rate: float = value("Records a second; 0 is as fast as they go.", number(0, 1e9), 0.0)
    batch: int = value("The most records in one slice.", whole(1, 10_000_000), 100_000)
    key: str = value("The key of a record, in SQL; the one it had if not given.", TEXT, "")
    columns: tuple[str, ...] = value("What a value in JSON is made of; all but those of a calendar.", NAMES, ())
    partitions: str = value("By the key, or the partition it had.", one_of("by_key", "same"), "by_key")
    timestamps: str = value("The time it had, or that of writing.", one_of("kept", "new"), "kept")
    bootstrap: str = value("The brokers to send to; those of [source] if not given.", TEXT, "")
    delivery: str = value("The delivery guarantee.", one_of("exactly_once", "at_least_once"), "exactly_once")
    options: dict[str, str] = value("Other options of the sink, by name.", SETTINGS, {})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_ is not None and self.to is not None and self.from_ >= self.to:
            raise DeclarationError("from: it is not before `to`, so there is nothing between them")

    @property
    def slice_rows(self) -> int:
        """Records per slice."""
        return max(1, min(self.batch, round(self.rate * SLICE_SECONDS))) if self.rate else self.batch

    def cluster(self, context: JobContext) -> dict[str, str]:
        if self.bootstrap:
            return {"kafka.bootstrap.servers": self.bootstrap}
        if not context.cluster():
            raise DeclarationError('[replay] bootstrap is missing: write where the topic is, as "127.0.0.1:9092"')
        return context.cluster()


def select_rows(frame: DataFrame, job: Replay) -> DataFrame:
    """The rows to replay, from all of a table or a topic."""
    from pyspark.sql import functions as f

    rows = frame
    if job.from_ is not None:
        rows = rows.where(moment(job.time) >= f.lit(job.from_))
    if job.to is not None:
        rows = rows.where(moment(job.time) < f.lit(job.to))
    return rows.where(f.expr(job.where)) if job.where else rows


def order_columns(frame: DataFrame, job: Replay) -> list[Column]:
    """The columns that order the rows of one key."""
    from pyspark.sql import functions as f

    by_log = [name for name in (TOPIC, PARTITION, OFFSET) if name in frame.columns]
    if job.order == "offset":
        need_columns(frame, (PARTITION, OFFSET), '[replay] order = "offset"')
        return [f.col(name) for name in by_log]
    return [moment(job.time), *[f.col(name) for name in by_log]]


def restore(frame: DataFrame, job: Replay, further: Sequence[Column] = ()) -> DataFrame:
    """The rows with exactly the columns of the topic sink."""
    from pyspark.sql import functions as f

    columns = {"key": _key(frame, job), "value": _value(frame, job)}
    if HEADERS in frame.columns:
        columns["headers"] = f.col(HEADERS).cast(HEADER_TYPE)
    if job.timestamps == "kept":
        columns["timestamp"] = f.col(TIMESTAMP) if TIMESTAMP in frame.columns else moment(job.time)
    if job.partitions == "same":
        need_columns(frame, [PARTITION], '[replay] partitions = "same"')
        columns["partition"] = f.col(PARTITION).cast("int")
    return frame.select(*[column.alias(name) for name, column in columns.items()], *further)


def _key(frame: DataFrame, job: Replay) -> Column:
    from pyspark.sql import functions as f

    if job.key:
        return f.encode(f.expr(job.key).cast("string"), "UTF-8")
    return f.col(KEY).cast("binary") if KEY in frame.columns else f.lit(None).cast("binary")


def _value(frame: DataFrame, job: Replay) -> Column:
    from pyspark.sql import functions as f

    own = bytes_column(frame)
    if own is not None and not job.columns:
        return f.col(own)
    need_columns(frame, job.columns, "[replay] columns")
    names = list(job.columns) or [name for name in content_columns(frame.columns) if name not in CALENDAR]
    if not names:
        raise DeclarationError("[replay] the table has no column to make a value of")
    # A tombstone was archived as a row of nulls, and becomes a tombstone again.
    is_empty = f.coalesce(*[f.col(quote(name)).cast("string") for name in names]).isNull()
    return f.when(~is_empty, as_json(names, "SSSSSS"))
