"""archive: writes a topic to a partitioned Delta table, each record once.

The table has the parsed columns, the record's own (_key, _topic, _partition, _offset, _timestamp, _headers) and the
partition columns. With `raw` it has the value's bytes instead of parsed columns, so that a replay is identical byte
for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kind import ColumnUse, Kind
from millpond.spark.pipelines.kinds.columns import (
    COLUMNS,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    RAW_VALUE,
    RECORD,
    TIMESTAMP,
    TOPIC,
    VALUE,
    aliased,
    moment,
    need_columns,
)
from millpond.spark.pipelines.kinds.flows import TABLES, Flow, Sink, Table, expression_uses, name_uses, plan
from millpond.spark.pipelines.values import FLAG, NAMES, PATH, TEXT, value
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CALENDAR: Final[Mapping[str, str]] = {
    "year": "yyyy",
    "month": "yyyy-MM",
    "date": "",
    "hour": "yyyy-MM-dd-HH",
}
"""Partition columns derived from the time, and their formats; `date` is a date column."""


@dataclass(frozen=True, kw_only=True)
class Archive(Table, Flow):
    """Writes a topic to a table."""

    kind = "archive"

    table: str = value("The table, as a folder or an address.", PATH)
    raw: bool = value(
        "Store the value's bytes instead of parsed columns, so that records can be replayed unchanged.", FLAG, False
    )
    time: str = value("The event time, in SQL, from which partitions by date are derived.", TEXT, TIMESTAMP)
    partition_by: tuple[str, ...] = value(
        "The partition columns; year, month, date and hour are derived from the time.",
        NAMES,
        ("date",),
    )
    columns: dict[str, str] = value("Additional columns, in SQL by name.", COLUMNS, {})

    def source(self, context: JobContext) -> DataFrame:
        return raw_columns(context.raw(includeHeaders="true")) if self.raw else context.frame()

    def shape(self, frame: DataFrame) -> DataFrame:
        return archive_rows(frame, self)

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        return Sink(TABLES, self.table_options(self.table))


def raw_columns(frame: DataFrame) -> DataFrame:
    """The source's columns, renamed to their names in a pipeline."""
    from pyspark.sql import functions as f

    names = {"value": "value", "key": KEY, "topic": TOPIC, "partition": PARTITION, "offset": OFFSET}
    names |= {"timestamp": TIMESTAMP, "headers": HEADERS}
    return frame.select(*[f.col(old).alias(new) for old, new in names.items() if old in frame.columns])


def archive_rows(frame: DataFrame, job: Archive) -> DataFrame:
    """The rows of the table."""
    rows = frame.drop(VALUE) if not job.raw else frame
    if job.columns:
        rows = rows.select("*", *aliased(job.columns))
    made = [name for name in job.partition_by if name in CALENDAR and name not in rows.columns]
    if made:
        rows = rows.select("*", *[calendar_column(job.time, name).alias(name) for name in made])
    need_columns(rows, job.partition_by, "[archive] partition_by")
    return rows


def calendar_column(time: str, name: str) -> Column:
    from pyspark.sql import functions as f

    # A record without a time is archived, too, under the record's timestamp.
    when = moment(time) if time == TIMESTAMP else f.coalesce(moment(time), f.col(TIMESTAMP))
    return f.to_date(when) if name == "date" else f.date_format(when, CALENDAR[name])


def column_uses(job: Archive, columns: Columns) -> Iterator[ColumnUse]:
    available = (RAW_VALUE, *RECORD) if job.raw else columns
    yield from expression_uses("columns", job.columns, available)
    rows = None if available is None else (*available, *job.columns)
    made = [name for name in job.partition_by if name in CALENDAR and name not in (rows or ())]
    if made:
        # The time is only used for these columns.
        yield ColumnUse("time", job.time, rows)
        yield from name_uses("time, which falls back to it", [TIMESTAMP], rows)
    yield from name_uses("partition_by", [name for name in job.partition_by if name not in made], rows)


KIND = Kind(
    name="archive",
    doc="A topic into a partitioned Delta table, each record once.",
    job=Archive,
    plan=plan,
    column_uses=column_uses,
    outputs=lambda job: {"table": job.table},
    example="""\
[archive]
table = "lake/orders"
partition_by = ["date"]
compact_every = 50
""",
)
