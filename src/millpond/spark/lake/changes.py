"""The last row of every key: pure functions over Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millpond.spark.lake.errors import LakeError, LakeOptionError

_ROW = "__millpond_row"


def check_keys(schema: pa.Schema, keys: Sequence[str]) -> None:
    for name in keys:
        kind = schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise LakeOptionError(f"keys: column {name} is {kind}, which cannot name a row; cast it to a text")


def check_no_null_keys(rows: pa.RecordBatch | pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if rows.column(name).null_count:
            raise LakeError(f"a row has no {name}, and rows are named by it: filter such rows before the sink")


def last_rows(rows: pa.Table, keys: Sequence[str], order_by: Sequence[str]) -> pa.Table:
    """One row per key, the highest by `order_by` (null is lowest), the last one among equals."""
    import pyarrow.compute as pc

    if order_by:
        # The sort is stable, so equal rows keep their order of arrival.
        order = [(name, "ascending", "at_start") for name in order_by]
        rows = rows.take(pc.sort_indices(rows.select(list(order_by)), sort_keys=order))
    numbered = rows.select(list(keys)).append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(_ROW, "max")])
    if last.num_rows == rows.num_rows:
        return rows
    return rows.take(last.column(f"{_ROW}_max").sort())


def newer(order_by: Sequence[str]) -> str:
    """SQL: the source's row is not older than the target's; null is the oldest."""
    condition = "true"
    for name in reversed(order_by):
        source, target = f"source.{quoted(name)}", f"target.{quoted(name)}"
        condition = (
            f"(({target} IS NULL AND {source} IS NOT NULL) OR {source} > {target} "
            f"OR (({source} = {target} OR ({source} IS NULL AND {target} IS NULL)) AND {condition}))"
        )
    return condition


def same_keys(keys: Sequence[str]) -> str:
    return " AND ".join(f"target.{quoted(name)} = source.{quoted(name)}" for name in keys)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
