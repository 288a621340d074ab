"""Fitting a frame to a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    TimeType,
)

from millpond.spark.lake.errors import LakeOptionError, SchemaConflict, UnsupportedTable
from millpond.spark.lake.schemas import (
    arrow_schema,
    check_columns,
    check_partitions,
    check_writable,
    fit,
    new_columns,
)


def delta(*fields: tuple[str, pa.DataType]) -> Schema:
    return Schema.from_arrow(pa.schema(list(fields)))


def test_every_column_may_be_null_and_times_are_utc() -> None:
    inner = StructType([StructField("x", IntegerType(), nullable=False)])
    result = arrow_schema(
        StructType(
            [
                StructField("id", LongType(), nullable=False),
                StructField("at", TimestampType()),
                StructField("many", ArrayType(inner, containsNull=False)),
                StructField("map", MapType(StringType(), IntegerType())),
            ]
        )
    )
    assert result.field("id").nullable
    assert result.field("at").type == pa.timestamp("us", "UTC")
    assert result.field("many").type == pa.list_(pa.field("element", pa.struct([pa.field("x", pa.int32())])))


@pytest.mark.parametrize("kind", [DayTimeIntervalType(), TimeType(), NullType()])
def test_types_that_delta_does_not_have_are_refused(kind: DataType) -> None:
    with pytest.raises(SchemaConflict, match="column odd cannot be kept"):
        arrow_schema(StructType([StructField("id", LongType()), StructField("odd", kind)]))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SchemaConflict, match="two columns named id"):
        arrow_schema(StructType([StructField("id", LongType()), StructField("ID", LongType())]))


def test_a_batch_in_another_time_zone_keeps_its_instants() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("many", pa.list_(pa.field("element", pa.int32())))])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1_000_000], pa.timestamp("us", "Europe/Berlin")),
            pa.array([[1]], pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ],
        names=["at", "many"],
    )
    result = fit(batch, schema)
    assert result.schema == schema
    assert result.column("at").cast(pa.int64()).to_pylist() == [1_000_000]


def test_new_columns_and_new_fields_inside_structs() -> None:
    table = delta(("id", pa.int64()), ("who", pa.struct([("name", pa.string())])))
    frame = delta(("who", pa.struct([("name", pa.string()), ("age", pa.int32())])), ("more", pa.string()))
    assert [field.name for field in new_columns(table, frame)] == ["who", "more"]
    assert new_columns(table, table) == []


def test_incompatible_schemas_are_refused() -> None:
    table = delta(("id", pa.int64()), ("who", pa.struct([("name", pa.string())])))
    with pytest.raises(SchemaConflict, match="id is string in the frame and long in the table"):
        new_columns(table, delta(("id", pa.string())))
    with pytest.raises(SchemaConflict, match=r"who\.name is integer"):
        new_columns(table, delta(("who", pa.struct([("name", pa.int32())]))))
    with pytest.raises(SchemaConflict, match="ID is id in the table"):
        new_columns(table, delta(("ID", pa.int64())))
    strict = Schema.from_arrow(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(SchemaConflict, match="the frame does not have it"):
        new_columns(strict, delta(("x", pa.int64())))
    with pytest.raises(UnsupportedTable, match="may not be null"):
        new_columns(strict, delta(("id", pa.int64())))


def test_options_name_columns_of_the_frame() -> None:
    schema = pa.schema([("customer", pa.string())])
    with pytest.raises(LakeOptionError, match="keys: the frame has no column custmer; did you mean customer"):
        check_columns(["custmer"], schema, "keys")


def test_tables_with_constraints_are_refused(tmp_path: Path) -> None:
    table = DeltaTable.create(tmp_path, delta(("id", pa.int64()), ("day", pa.string())), partition_by="day")
    check_writable(table)
    check_partitions(table, ("day",))
    with pytest.raises(SchemaConflict, match="partitioned by day, the option partitionBy says nothing"):
        check_partitions(table, ())
    table.alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(UnsupportedTable, match=r"delta\.constraints\.positive"):
        check_writable(DeltaTable(tmp_path))
