"""Reading a table: types, partitions, versions, missing columns, and unsupported tables."""

from __future__ import annotations

import json
import string
import struct
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from millpond.spark.lake import reader as lake_reader
from millpond.spark.lake.errors import LakeError, UnsupportedTable
from millpond.spark.lake.options import read_options
from millpond.spark.lake.reader import LakeReading, table_schema
from support.spark_lake import Stream

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        ("shop", pa.string()),
        ("hour", pa.timestamp("us", "UTC")),
        ("number", pa.int32()),
        ("flag", pa.bool_()),
        ("part", pa.decimal128(10, 2)),
    ]
)
PARTITIONS = "day,shop,hour,number,flag,part"


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "day": date(2026, 1, 1 + number % 2),
        "at": datetime(2026, 1, 1, 1, 2, 3, number, UTC),
        "amount": Decimal(number).scaleb(-2),
        "tags": [str(number), None],
        "who": {"name": "x", "age": number},
        "shop": None if number % 2 else "a/b=c %",
        "hour": datetime(2026, 1, 1, number % 2, tzinfo=UTC),
        "number": -(number % 2),
        "flag": number % 2 == 0,
        "part": Decimal("1.50"),
    }


def read(path: Path, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    chosen = read_options({"path": str(path), **options})
    schema = schema or table_schema(chosen)
    expected = to_arrow_schema(schema, timezone="UTC")
    reader = LakeReading(chosen, schema)
    result: list[dict[str, Any]] = []
    for part in reader.parts():
        for batch in reader.read(part):
            assert batch.schema.equals(expected)
            result += batch.to_pylist()
    return sorted(result, key=lambda one: one["id"])


def test_every_type_comes_back_in_columns_and_in_partitions(tmp_path: Path) -> None:
    Stream(tmp_path, SCHEMA, partitionBy=PARTITIONS).run(0, [[row(number) for number in range(10)]])
    assert read(tmp_path) == [row(number) for number in range(10)]


def test_missing_columns_of_older_files_are_null(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([1], pa.int64())}))
    write_deltalake(tmp_path, pa.table({"id": [2], "who": [{"a": 1}]}), mode="append", schema_mode="merge")
    table = pa.table({"id": [3], "who": [{"a": 5, "b": "new"}]})
    write_deltalake(tmp_path, table, mode="append", schema_mode="merge")
    assert read(tmp_path) == [
        {"id": 1, "who": None},
        {"id": 2, "who": {"a": 1, "b": None}},
        {"id": 3, "who": {"a": 5, "b": "new"}},
    ]
    assert read(tmp_path, StructType([StructField("id", LongType())])) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_lists_and_maps_of_other_writers(tmp_path: Path) -> None:
    """Arrow's default field names inside lists and maps differ from Spark's."""
    rows = {
        "id": [1],
        "many": pa.array([[{"x": [1, 2]}]], pa.list_(pa.field("item", pa.struct([("x", pa.list_(pa.int64()))])))),
        "named": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
        "big": pa.array(["x"], pa.large_string()),
    }
    write_deltalake(tmp_path, pa.table(rows), partition_by=["id"])
    assert read(tmp_path) == [{"id": 1, "many": [{"x": [1, 2]}], "named": [("a", 1)], "big": "x"}]


def test_versions_and_times(tmp_path: Path) -> None:
    stream = Stream(tmp_path, pa.schema([("id", pa.int64())]))
    stream.run(0, [[{"id": 0}]])
    # The log counts in milliseconds.
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    stream.run(1, [[{"id": 1}]])
    assert [one["id"] for one in read(tmp_path)] == [0, 1]
    assert [one["id"] for one in read(tmp_path, versionAsOf="0")] == [0]
    assert [one["id"] for one in read(tmp_path, timestampAsOf=between)] == [0]
    with pytest.raises(LakeError, match="timestampAsOf=yesterday"):
        read(tmp_path, timestampAsOf="yesterday")
    with pytest.raises(LakeError, match="versionAsOf=9"):
        read(tmp_path, versionAsOf="9")
    with pytest.raises(LakeError, match="check the path"):
        read(tmp_path / "nothing")


def test_small_files_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(tmp_path, pa.schema([("id", pa.int64())]))
    for batch in range(5):
        stream.run(batch, [[{"id": batch}]])
    reader = LakeReading(read_options({"path": str(tmp_path)}), StructType([StructField("id", LongType())]))
    assert len(reader.parts()) == 1
    monkeypatch.setattr(lake_reader, "PART_BYTES", 1)
    assert len(reader.parts()) == 5


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    mapped = tmp_path / "mapped"
    DeltaTable.create(mapped, pa.schema([("id", pa.int64())]))
    names = {"delta.columnMapping.physicalName": "col-1", "delta.columnMapping.id": 1}
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": names}]
    rewrite_log(
        mapped,
        metaData={
            "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
        },
        protocol={"minReaderVersion": 2, "minWriterVersion": 5},
    )
    with pytest.raises(UnsupportedTable, match="columnMapping"):
        read(mapped)


def test_deletion_vectors_are_refused_if_there_are_any(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2, 3]}))
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    rewrite_log(tmp_path, protocol=protocol)
    assert [one["id"] for one in read(tmp_path)] == [1, 2, 3]
    rewrite_log(tmp_path, add={"deletionVector": deleted_rows(0, 2)})
    with pytest.raises(UnsupportedTable, match="deletion vectors"):
        read(tmp_path)


def rewrite_log(path: Path, **changes: dict[str, Any]) -> None:
    """Edit the first entry of the log."""
    log = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        for name in action.keys() & changes.keys():
            action[name].update(changes[name])
    log.write_text("\n".join(json.dumps(action) for action in actions))


def deleted_rows(*rows: int) -> dict[str, Any]:
    """An inline deletion vector: one roaring bitmap with one array container, in Z85."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    raw = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    letters = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    text = ""
    for (word,) in struct.iter_unpack(">I", raw):
        text += "".join(letters[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(raw), "cardinality": len(rows)}
