"""latest: a compacted topic as a table of the current values, one row for each key: the read model of CQRS.

The last record of a key is the one with the highest offset in its partition. A record without a value (a tombstone)
deletes the row of its key. Records without a key, and those that did not parse, change nothing and are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from millpond.spark.pipelines.kind import ColumnUse, Kind
from millpond.spark.pipelines.kinds.columns import (
    COLUMNS,
    FAULT,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    VALUE,
    aliased,
    bytes_column,
    content_columns,
    need_columns,
    quote,
)
from millpond.spark.pipelines.kinds.flows import TABLES, Flow, Sink, Table, expression_uses, name_uses, plan
from millpond.spark.pipelines.values import NAMES, PATH, TEXT, value
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED: Final = "_deleted"


@dataclass(frozen=True, kw_only=True)
class Latest(Table, Flow):
    """A table of the last value of each key."""

    kind = "latest"

    table: str = value("The table, as a folder or an address.", PATH)
    key: dict[str, str] = value(
        "The columns that name a row. A tombstone has nothing but the record's key, so make them of _key.",
        COLUMNS,
        {"key": "cast(_key as string)"},
    )
    delete_when: str = value("Which rows delete, in SQL; records without a value if not given.", TEXT, "")
    order_by: tuple[str, ...] = value(
        "Which of several rows of a key in one batch is the last.", NAMES, (PARTITION, OFFSET)
    )

    def shape(self, frame: DataFrame) -> DataFrame:
        return changes(frame, self)

    def sink(self, cluster: Mapping[str, str]) -> Sink:
        upsert = {
            "mode": "upsert",
            "keys": ",".join(self.key),
            "orderBy": ",".join(self.order_by),
            "deleteWhen": DELETED,
        }
        return Sink(TABLES, upsert | self.table_options(self.table))


def changes(frame: DataFrame, job: Latest) -> DataFrame:
    """One row for each record: its key columns, its content, and whether it is a delete."""
    from pyspark.sql import functions as f

    need_columns(frame, job.order_by, "[latest] order_by")
    deletes = f.expr(job.delete_when) if job.delete_when else is_tombstone(frame)
    content = [name for name in content_columns(frame.columns) if name not in job.key]
    own = [name for name in frame.columns if name.startswith("_") and name not in (KEY, VALUE, HEADERS, FAULT)]
    rows = frame.select(
        *aliased(job.key),
        *[f.col(quote(name)) for name in (*content, *own) if name not in job.key],
        f.coalesce(deletes, f.lit(False)).alias(DELETED),
        (f.col(FAULT).isNotNull() if FAULT in frame.columns else f.lit(False)).alias(FAULT),
    )
    keyless = reduce(lambda one, other: one | other, [f.col(quote(name)).isNull() for name in job.key])
    counted = rows.observe(
        "latest",
        f.count_if(f.col(FAULT)).alias("bad"),
        f.count_if(keyless & ~f.col(FAULT)).alias("without_key"),
        f.count_if(f.col(DELETED) & ~keyless & ~f.col(FAULT)).alias("deletes"),
    )
    return counted.where(~keyless & ~f.col(FAULT)).drop(FAULT)


def is_tombstone(frame: DataFrame) -> Column:
    """Whether the record has no value; if its bytes are not available, whether all content columns are null."""
    from pyspark.sql import functions as f

    name = bytes_column(frame)
    if name is not None:
        return f.col(name).isNull()
    empty = [f.col(quote(name)).isNull() for name in content_columns(frame.columns)]
    return reduce(lambda one, other: one & other, empty, f.lit(True))


def column_uses(job: Latest, columns: Columns) -> Iterator[ColumnUse]:
    yield from expression_uses("key", job.key, columns)
    if job.delete_when:
        yield ColumnUse("delete_when", job.delete_when, columns)
    yield from name_uses("order_by", job.order_by, columns)


KIND = Kind(
    name="latest",
    doc="A compacted topic as a table of the last value of each key.",
    job=Latest,
    plan=plan,
    column_uses=column_uses,
    outputs=lambda job: {"table": job.table},
    example="""\
[latest]
table = "lake/customers"
key = { id = "cast(cast(_key as string) as bigint)" }
""",
)
