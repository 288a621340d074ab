"""Convert schemas from Spark to Arrow to Delta, and check a frame against a table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import StructType

from millpond.spark.lake.errors import LakeOptionError, SchemaConflict, UnsupportedTable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkStruct

_APPENDABLE = frozenset({"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "checkConstraints"})
"""Delta writer features that appending plain files respects, if there is no constraint to check."""


def arrow_schema(schema: SparkStruct) -> pa.Schema:
    """The stored schema: times in UTC and nullable columns, as in Delta's writers."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        exact = to_arrow_schema(schema, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
    except TypeError as error:
        raise SchemaConflict(f"{error}; cast or drop the column before writing") from None
    names = [field.name.lower() for field in exact]
    for name in names:
        if names.count(name) > 1:
            raise SchemaConflict(f"the frame has two columns named {name}: rename or drop one of them")
    stored = pa.schema([_nullable(field) for field in exact])
    for field in stored:
        delta_schema(pa.schema([field]))
    return stored


def _nullable(field: pa.Field) -> pa.Field:
    if pa.types.is_null(field.type):
        raise SchemaConflict(f"column {field.name} cannot be kept in a Delta table (it has no type); cast or drop it")
    return pa.field(field.name, _nullable_type(field.type), nullable=True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(child) for child in kind])
    if pa.types.is_map(kind):
        key = pa.field("key", _nullable_type(kind.key_type), nullable=False)
        return pa.map_(key, _nullable(pa.field("value", kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(pa.field("element", kind.value_type)))
    return kind


def delta_schema(schema: pa.Schema) -> Schema:
    try:
        return Schema.from_arrow(schema)
    except Exception as error:
        # deltalake raises a bare Exception here, with the trace of its own code below the first line.
        what = str(error).splitlines()[0]
        names = ", ".join(schema.names)
        raise SchemaConflict(f"column {names} cannot be kept in a Delta table ({what}); cast or drop it") from None


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema. Spark's time zone and nullability differ, the bytes do not."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch.cast(schema)


def check_columns(names: Iterable[str], schema: pa.Schema, option: str) -> None:
    """Check that the frame has the columns an option names."""
    for name in names:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise LakeOptionError(f"{option}: the frame has no column {name}{hint}")


def new_columns(table: Schema, frame: Schema) -> list[Field]:
    """The columns to add to the table for the frame. SchemaConflict if that cannot work."""
    there = {field.name: field for field in table.fields}
    lower = {name.lower(): name for name in there}
    missing: list[Field] = []
    for field in frame.fields:
        old = there.get(field.name)
        if old is None:
            other = lower.get(field.name.lower())
            if other is not None:
                raise SchemaConflict(f"the frame's column {field.name} is {other} in the table: rename it")
            missing.append(field)
        elif _grows(field.name, old, field):
            missing.append(field)
    present = {field.name for field in frame.fields}
    for field in table.fields:
        if not field.nullable and field.name not in present:
            raise SchemaConflict(f"column {field.name} of the table must not be null, but the frame does not have it")
    return missing


def _grows(name: str, old: Field, new: Field) -> bool:
    """Whether a struct has new fields; SchemaConflict if the types differ otherwise."""
    if not old.nullable:
        raise UnsupportedTable(
            f"column {name} of the table may not be null, which is not checked here: drop that rule"
        )
    if isinstance(old.type, StructType) and isinstance(new.type, StructType):
        inner = {field.name: field for field in old.type.fields}
        grown = [
            field.name not in inner or _grows(f"{name}.{field.name}", inner[field.name], field)
            for field in new.type.fields
        ]
        return any(grown)
    if old.type != new.type:
        raise SchemaConflict(
            f"column {name} is {_named(new)} in the frame and {_named(old)} in the table: cast it in the frame, "
            "or write to a new table"
        )
    return False


def _named(field: Field) -> str:
    kind = field.type
    return str(kind.type) if hasattr(kind, "type") and isinstance(kind.type, str) else kind.to_json()


def check_partitions(table: DeltaTable, partition_by: tuple[str, ...]) -> None:
    there = tuple(table.metadata().partition_columns)
    if partition_by != there:
        raise SchemaConflict(
            f"the table is partitioned by {', '.join(there) or 'nothing'}, the option partitionBy says "
            f"{', '.join(partition_by) or 'nothing'}: say the same, or write to a new table"
        )


def check_writable(table: DeltaTable) -> None:
    """UnsupportedTable if rows would need checks or changes that we do not implement."""
    strange = set(table.protocol().writer_features or ()) - _APPENDABLE
    settings = table.metadata().configuration
    strange.update(name for name in settings if name.startswith("delta.constraints."))
    if settings.get("delta.columnMapping.mode", "none") != "none":
        strange.add("columnMapping")
    for field in table.schema().fields:
        strange.update(key for key in field.metadata if key in ("delta.invariants", "delta.generationExpression"))
    if strange:
        raise UnsupportedTable(
            f"the table uses {', '.join(sorted(strange))}, which this sink cannot keep: write to a table without"
        )
