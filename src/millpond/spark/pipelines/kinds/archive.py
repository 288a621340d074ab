"""archive: writes a topic to a partitioned Delta table, each record once.

The table has the parsed columns, the record's own (_key, _topic, _partition, _offset, _timestamp, _headers) and the
partition columns. With `raw` it has the value's bytes instead of parsed columns, so that a replay is identical byte
for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millpond.spark.pipelines.kind import Asked, Context, Kind
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
    moment,
    named,
    need_columns,
)
from millpond.spark.pipelines.kinds.flows import TABLES, Flow, Sink, Table, asked, asked_names, plan
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
    raw: bool = value("Keep the value's bytes, parsed or not, so that it can be replayed as it was.", FLAG, False)
    time: str = value("When it happened, in SQL; partitions by date are made of it.", TEXT, TIMESTAMP)
    partition_by: tuple[str, ...] = value(
        "Columns that the table's folders are made of; year, month, date and hour are made of the time.",
        NAMES,
        ("date",),
    )
    columns: dict[str, str] = value("Further columns, in SQL by name.", COLUMNS, {})

    def source(self, context: Context) -> DataFrame:
        return raw_columns(context.raw(includeHeaders="true")) if self.raw else context.frame()

    def shape(self, frame: DataFrame) -> DataFrame:
        return archived(frame, self)

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        return Sink(TABLES, self.table_options(self.table))


def raw_columns(frame: DataFrame) -> DataFrame:
    """The source's columns, renamed to their names in a pipeline."""
    from pyspark.sql import functions as f

    names = {"value": "value", "key": KEY, "topic": TOPIC, "partition": PARTITION, "offset": OFFSET}
    names |= {"timestamp": TIMESTAMP, "headers": HEADERS}
    return frame.select(*[f.col(old).alias(new) for old, new in names.items() if old in frame.columns])


def archived(frame: DataFrame, job: Archive) -> DataFrame:
    """The rows of the table."""
    rows = frame.drop(VALUE) if not job.raw else frame
    if job.columns:
        rows = rows.select("*", *named(job.columns))
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


def asks(job: Archive, columns: Columns) -> Iterator[Asked]:
    known = (RAW_VALUE, *RECORD) if job.raw else columns
    yield from asked("columns", job.columns, known)
    rows = None if known is None else (*known, *job.columns)
    made = [name for name in job.partition_by if name in CALENDAR and name not in (rows or ())]
    if made:
        # The time is only used for these columns.
        yield Asked("time", job.time, rows)
        yield from asked_names("time, which falls back to it", [TIMESTAMP], rows)
    yield from asked_names("partition_by", [name for name in job.partition_by if name not in made], rows)


KIND = Kind(
    name="archive",
    doc="A topic into a partitioned Delta table, each record once.",
    job=Archive,
    plan=plan,
    asks=asks,
    outputs=lambda job: {"table": job.table},
    example="""\
[archive]
table = "lake/orders"
partition_by = ["date"]
compact_every = 50
""",
)
