"""Split rows by partition: values as in Delta's log, folders named as in Hive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from millpond.spark.lake.errors import LakeOptionError

Values = tuple[str | None, ...]

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
FOLDER_MAX: Final = 120
"""Longer names end in a digest: file systems allow 255 bytes, and only the log is read back."""


def check_partitionable(schema: pa.Schema, columns: Sequence[str]) -> None:
    for name in columns:
        kind = schema.field(name).type
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_string(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_date(kind)
            or pa.types.is_timestamp(kind)
            or pa.types.is_decimal(kind)
        ):
            raise LakeOptionError(f"partitionBy: column {name} is {kind}; a text, a whole number or a date will do")
    if columns and len(columns) == len(schema.names):
        raise LakeOptionError("partitionBy: at least one column must remain for the files themselves")


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The batch split by partition values, without those columns, in row order."""
    if not columns:
        yield (), batch
        return
    keys = [batch.column(name) for name in columns]
    rest = batch.drop_columns(list(columns))
    codes = _codes(keys)
    if len(codes.unique()) <= 1:
        if batch.num_rows:
            yield _values(keys, 0), rest
        return
    # Imported on use: slow to import, and rarely needed.
    import pyarrow.compute as pc

    order = pc.sort_indices(codes)
    runs = pc.run_end_encode(codes.take(order))
    gathered = rest.take(order)
    start = 0
    for end in runs.run_ends.to_pylist():
        yield _values(keys, order[start].as_py()), gathered.slice(start, end - start)
        start = end


def _codes(keys: Sequence[pa.Array]) -> pa.Array:
    """One number per row, equal where all keys are."""
    codes = keys[0].dictionary_encode(null_encoding="encode").indices.cast(pa.int64())
    if len(keys) == 1:
        return codes
    import pyarrow.compute as pc

    for key in keys[1:]:
        encoded = key.dictionary_encode(null_encoding="encode")
        joined = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        # Renumbered after each column, so that the product stays below rows squared.
        codes = joined.dictionary_encode().indices.cast(pa.int64())
    return codes


def _values(keys: Sequence[pa.Array], row: int) -> Values:
    return tuple(partition_value(key[row].as_py()) for key in keys)


def partition_value(value: Any) -> str | None:
    """A partition value in Delta's log. There the empty text means null, for every type."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        case date():
            return value.isoformat()
        case int() | str() | Decimal():
            return str(value)
        case _:
            raise AssertionError(f"{type(value).__name__} is no partition value")


def folder(columns: Sequence[str], values: Values) -> str:
    return "/".join(f"{quote(name, safe='')}={_named(value)}" for name, value in zip(columns, values, strict=True))


def _named(value: str | None) -> str:
    if value is None:
        return NULL_FOLDER
    name = quote(value, safe=" +,@")
    if len(name) <= FOLDER_MAX:
        return name
    return name[:FOLDER_MAX].rpartition("%")[0] + "-" + hashlib.sha256(value.encode()).hexdigest()[:16]
