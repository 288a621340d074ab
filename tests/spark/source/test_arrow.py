"""The kernel's columns as record batches for Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from millpond.columns.batches import BatchMaker
from millpond.spark.options import read_options
from millpond.spark.source.arrow import schema_of
from millpond.wire.batch import read_header
from millpond.wire.kernel import ColumnBuilder
from millpond.wire.records import Record, encode_batch, records_section

RECORDS = [
    Record(0, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("", None))),
    Record(1, -1, None, None, ()),
    Record(2, 0, b"", b"", (("ü", b""),)),
]


def columns(records: list[Record], *, with_headers: bool):  # type: ignore[no-untyped-def]
    encoded = encode_batch(records)
    header = read_header(encoded, 0)
    builder = ColumnBuilder(with_headers)
    builder.add(records_section(encoded, 0, header), header.record_count, 40, header.base_timestamp, None, 0, 1 << 62)
    return builder.take()


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_batch_has_the_schema_that_spark_expects(with_headers: bool) -> None:
    options = read_options({"includeHeaders": str(with_headers)}, "read")
    batch = BatchMaker("orders", 3).make(columns(RECORDS, with_headers=with_headers))
    batch.validate(full=True)
    assert to_arrow_schema(schema_of(options), timezone="UTC").equals(batch.schema)


def test_values_are_unchanged() -> None:
    batch = BatchMaker("orders", 3).make(columns(RECORDS, with_headers=True))
    assert batch.column("key").to_pylist() == [b"k", None, b""]
    assert batch.column("value").to_pylist() == [b"v", None, b""]
    assert batch.column("topic").to_pylist() == ["orders"] * 3
    assert batch.column("partition").to_pylist() == [3] * 3
    assert batch.column("offset").to_pylist() == [40, 41, 42]
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros == [1_700_000_000_123_000, -1000, 0]
    assert batch.column("timestampType").to_pylist() == [0, 0, 0]
    assert batch.column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "", "value": None}],
        None,
        [{"key": "ü", "value": b""}],
    ]


def test_batches_of_different_sizes_share_columns() -> None:
    maker = BatchMaker("orders", 3)
    for count in (2, 3, 1):
        batch = maker.make(columns(RECORDS[:count], with_headers=False))
        batch.validate(full=True)
        assert batch.column("topic").to_pylist() == ["orders"] * count


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    result = schema_of(read_options({"includeHeaders": "true"}, "readStream"))
    assert result.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in result.fields)


def test_a_parsed_value_comes_last() -> None:
    given = {"valueFormat": "json", "valueSchema": "id long, name string", "badRecords": "null"}
    names = [field.name for field in schema_of(read_options(given, "read")).fields]
    assert names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "parsed", "fault"]
    parsed = schema_of(read_options(given, "read"))["parsed"].dataType
    assert isinstance(parsed, types.StructType)
    assert parsed.names == ["id", "name"]
