"""Columns that several kinds use: those of a record, those that a declaration names, and values as JSON.

In a pipeline the columns of a record's content have plain names; columns of the record itself begin with `_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millpond.spark.pipelines.values import DeclarationError, Reader, nearest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = "_key"
VALUE: Final = "_value"
TOPIC: Final = "_topic"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
FAULT: Final = "_fault"
RECORD: Final = (KEY, TOPIC, PARTITION, OFFSET, TIMESTAMP, HEADERS)
"""The columns of the record itself, in every stream of records."""

EVENT_TIME: Final = "_event_time"
"""The event time, in kinds that use it."""

HEADER_TYPE: Final = "array<struct<key:string,value:binary>>"

RAW_VALUE: Final = "value"
"""The only content column if values are not parsed."""

COLUMNS_MAX: Final = 1_000


def _expressions(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    aliased = value if isinstance(value, Mapping) else {each: quote(str(each)) for each in value}
    if len(aliased) > COLUMNS_MAX:
        raise ValueError(f"there are more than {COLUMNS_MAX:,}")
    if not all(isinstance(each, str) and each.strip() for pair in aliased.items() for each in pair):
        raise ValueError('write names of columns, as ["a", "b"], or SQL by name, as { a = "lower(x)" }')
    return {str(name): str(sql) for name, sql in aliased.items()}


COLUMNS: Final = Reader('columns, as ["a", "b"] or { a = "lower(x)" }', _expressions)
"""Columns by name, or new columns by name and SQL expression."""


def quote(name: str) -> str:
    """A quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def content_columns(names: Iterable[str]) -> list[str]:
    """The content columns, without those of the record itself."""
    return [name for name in names if not name.startswith("_")]


def need_columns(frame: DataFrame, names: Iterable[str], what: str) -> None:
    """Report a missing column with its nearest name, before Spark's planner does."""
    columns = frame.columns
    lower = {each.lower() for each in columns}
    for name in names:
        if name.lower() not in lower:
            raise DeclarationError(f"{what}: there is no column {name!r}{nearest(name, columns)}")


def aliased(expressions: Mapping[str, str]) -> list[Column]:
    """SQL expressions as named columns."""
    from pyspark.sql import functions as f

    return [f.expr(sql).alias(name) for name, sql in expressions.items()]


def as_json(names: Sequence[str], fraction: str = "SSS") -> Column:
    """The columns as one JSON object in bytes. Nulls are written, so that every record has the same fields."""
    from pyspark.sql import functions as f

    # Written with the zone's offset, so that readers in other time zones get the same time.
    how = {"ignoreNullFields": "false", "timestampFormat": f"yyyy-MM-dd'T'HH:mm:ss.{fraction}XXX"}
    return f.encode(f.to_json(f.struct(*[quote(name) for name in names]), how), "UTF-8")


def bytes_column(frame: DataFrame) -> str | None:
    """The column with the record's original bytes, if present."""
    types = dict(frame.dtypes)
    return next((name for name in (VALUE, RAW_VALUE) if types.get(name) == "binary"), None)


def value_bytes(frame: DataFrame) -> Column:
    """The record's value: its original bytes if present, otherwise its columns as JSON."""
    from pyspark.sql import functions as f

    name = bytes_column(frame)
    return as_json(content_columns(frame.columns)) if name is None else f.col(name)


def key_bytes(names: Sequence[str]) -> Column:
    """A record key from these columns: the text of a single column, a JSON object of several, or null for none."""
    from pyspark.sql import functions as f

    if not names:
        return f.lit(None).cast("binary")
    if len(names) == 1:
        return f.encode(f.col(quote(names[0])).cast("string"), "UTF-8")
    return as_json(names)


def moment(sql: str) -> Column:
    """The expression as a timestamp."""
    from pyspark.sql import functions as f

    return f.expr(sql).cast("timestamp")
