"""`millpond.write_arrow`: tables into topics, and back."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from millpond import ClientError, TopicPartition
from millpond.analysis import write_arrow
from millpond.remote.cluster import Cluster
from millpond.remote.reader import read_range
from millpond.testing import Pond
from millpond.wire.partitioner import partition_for_key

TABLE = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "f": pa.array([0.5, math.inf, math.nan], pa.float64()),
        "ok": [True, None, False],
        "name": ["ü", None, ""],
        "raw": pa.array([b"\0\1", None, b""], pa.binary()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(9, 2)),
        "day": [date(2026, 1, 31), None, date(1, 1, 1)],
        "at": pa.array([datetime(2026, 1, 31, 8, 0, 0, 5, UTC), None, None], pa.timestamp("us", "Europe/Berlin")),
        "local": pa.array([datetime(2026, 1, 31, 8), None, None], pa.timestamp("ms")),
        "tags": [["a", None], [], None],
        "inner": [{"x": 1, "y": [{"z": "w"}]}, None, {"x": None, "y": None}],
        "counts": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
    }
)
SCHEMA = (
    "id long, f double, ok boolean, name string, raw binary, price decimal(9,2), day date, at timestamp, "
    "local timestamp_ntz, tags array<string>, inner struct<x:long,y:array<struct<z:string>>>, "
    "counts map<string,long>, kind string"
)


@pytest.fixture
def write(pond: Pond) -> Any:
    return partial(write_arrow, bootstrap=pond.bootstrap)


def comparable(table: pa.Table) -> list[Any]:
    return [{name: "NaN" if value != value else value for name, value in row.items()} for row in table.to_pylist()]


def test_every_type_is_read_back_as_it_was_written(pond: Pond, read: Any, write: Any) -> None:
    topic = pond.new_topic()
    assert write(topic, TABLE) == 3
    back = read(topic, value=SCHEMA, columns=TABLE.schema.names).read_all()
    assert comparable(back) == comparable(TABLE)


def test_keys_choose_partitions_as_in_every_client(pond: Pond, read: Any, write: Any) -> None:
    topic = pond.new_topic(4)
    assert write(topic, [{"customer": f"c{number % 9}", "n": number} for number in range(300)], key="customer") == 300
    for row in read(topic, value="json").read_all().to_pylist():
        assert row["_key"] == row["customer"].encode()
        assert row["_partition"] == partition_for_key(row["_key"], 4)
    numbers = pond.new_topic()
    write(numbers, [{"id": 7}, {"id": None}], key="id")
    assert read(numbers).read_all()["key"].to_pylist() == [b"7", None]


def test_a_table_that_was_read_is_written_as_it_was(pond: Pond, read: Any, write: Any) -> None:
    source, raw, parsed = pond.new_topic(), pond.new_topic(), pond.new_topic()
    pond.produce(source, ("k", '{"a":1}'), ("l", '{"a":2}'), headers={"h": b"1"})
    write(raw, read(source))
    write(parsed, read(source, value="json"))
    wanted = read(source).read_all().select(["key", "value", "headers"])
    for target in (raw, parsed):
        assert read(target).read_all().select(["key", "value", "headers"]).equals(wanted)


def test_a_column_of_values_and_one_of_times(pond: Pond, read: Any, write: Any) -> None:
    topic = pond.new_topic()
    at = datetime(2026, 1, 31, 8, tzinfo=UTC)
    write(topic, pa.table({"body": ["x", None], "at": [at, at]}), value="body", timestamp="at")
    rows = read(topic, value="text").read_all()
    assert rows["value"].to_pylist() == ["x", None]
    assert rows["timestamp"].to_pylist() == [at, at]


def test_frames_and_readers(pond: Pond, read: Any, write: Any) -> None:
    pandas = pytest.importorskip("pandas")
    topic = pond.new_topic()
    frame = pandas.DataFrame({"a": [1, 2]}, index=["x", "y"])
    assert write(topic, frame) == 2
    assert write(topic, pa.record_batch({"a": [3]})) == 1
    assert write(topic, pa.table({"a": pa.array([], pa.int64())})) == 0
    values = [json.loads(each) for each in read(topic).read_all()["value"].to_pylist()]
    assert values == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_batches_are_idempotent_and_compressed(pond: Pond, write: Any, compression: str) -> None:
    topic = pond.new_topic()
    write(topic, [{"a": "x" * 100}] * 1000, compression=compression)
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        headers = [each.header for each in read_range(cluster, TopicPartition(topic, 0), 0, 1000)]
    assert sum(each.record_count for each in headers) == 1000
    assert all(each.producer_id >= 0 and each.base_sequence >= 0 for each in headers)
    assert all(bool(each.attributes & 7) == (compression == "zstd") for each in headers)


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        (5, {}, "a int is no table"),
        ([], {}, "a list is no table"),
        ([{"a": 1}, {"a": "x"}], {}, "the rows have no common type"),
        ([{"a": 1}], {"key": "b"}, "there is no column b; there are a"),
        ([{"a": 1.5}], {"key": "a"}, "column a is double, and must be text, bytes or whole numbers"),
        ([{"a": 1}], {"value": "a"}, "column a is int64, and must be text or bytes"),
        ([{"a": 1}], {"timestamp": "a"}, "column a is int64, and must be a timestamp"),
        ([{"_offset": 1}], {}, "the table has no columns to write"),
        (pa.table({"d": pa.array([1], pa.duration("s"))}), {}, "column d of type duration"),
        (pa.table({"t": pa.array([1 << 60], pa.timestamp("us"))}), {}, "column t cannot be written as JSON"),
        ([{"a": 1}], {"compression": "rar"}, "compression='rar' is none of"),
    ],
)
def test_what_cannot_be_written(pond: Pond, write: Any, table: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError, match=message):
        write(pond.new_topic(), table, **given)


def test_an_unknown_topic_is_not_created(pond: Pond, read: Any, write: Any) -> None:
    for _ in range(2):
        with pytest.raises(ClientError, match="There is no topic never-made"):
            write("never-made", [{"a": 1}])
