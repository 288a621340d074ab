"""Values as columns: every type of JSON and Avro, and what is not as expected."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millpond.analysis.errors import BadValue
from millpond.remote.errors import ConfigError
from millpond.testing import Pond

OWN = ["_topic", "_partition", "_offset", "_timestamp", "_key", "_headers"]


def rows(read: Any, topic: str, **more: Any) -> list[dict[str, Any]]:
    """The fields of each value."""
    table = read(topic, **more).read_all()
    assert table.schema.names[:6] == OWN
    return [dict(list(row.items())[6:]) for row in table.to_pylist()]


def test_every_kind_of_json_is_found_in_a_sample(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    first = {
        "yes": True, "whole": 1 << 40, "real": 2.5, "text": "ü", "day": "2026-01-31", "at": "2026-01-31T08:00:00Z",
        "tags": ["a", None], "inner": {"n": 1, "deep": {"x": [1]}}, "huge": 1 << 70, "nothing": None,
    }  # fmt: skip
    pond.produce(topic, json.dumps(first), "{}", None, json.dumps({"whole": 7, "real": 3, "other": "x"}))
    full, *others = rows(read, topic, value="json")
    assert full == {
        "yes": True, "whole": 1 << 40, "real": 2.5, "text": "ü", "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 8, tzinfo=UTC), "tags": ["a", None], "inner": {"n": 1, "deep": {"x": [1]}},
        "huge": str(1 << 70), "nothing": None, "other": None,
    }  # fmt: skip
    empty: dict[str, Any] = dict.fromkeys(full)
    assert others == [empty, empty, {**empty, "whole": 7, "real": 3.0, "other": "x"}]


def test_every_type_by_a_schema(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    schema = (
        "a boolean, b tinyint, c smallint, d int, e long, f float, g double, h string, i binary, j date, "
        "k timestamp, l timestamp_ntz, m decimal(10,2), n array<int>, o map<string,long>, "
        "p struct<x:int,y:array<struct<z:string>>>"
    )
    value = {
        "a": False, "b": -128, "c": 32767, "d": 1 << 30, "e": -(1 << 63), "f": 0.5, "g": 1e300, "h": {"any": 1},
        "i": "AAE=", "j": "0001-01-01", "k": 1_700_000_000, "l": "2026-01-31T08:00", "m": "12345678.90",
        "n": [1, None], "o": {"k": 1}, "p": {"x": 1, "y": [{"z": "w"}]}, "unknown": 1,
    }  # fmt: skip
    pond.produce(topic, json.dumps(value), "{}")
    given, empty = rows(read, topic, value=schema)
    assert given == {
        "a": False, "b": -128, "c": 32767, "d": 1 << 30, "e": -(1 << 63), "f": 0.5, "g": 1e300, "h": '{"any":1}',
        "i": b"\0\1", "j": date(1, 1, 1), "k": datetime.fromtimestamp(1_700_000_000, UTC),
        "l": datetime(2026, 1, 31, 8), "m": Decimal("12345678.90"), "n": [1, None], "o": [("k", 1)],
        "p": {"x": 1, "y": [{"z": "w"}]},
    }  # fmt: skip
    assert empty == dict.fromkeys(given)


def test_ten_thousand_columns(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    pond.produce(topic, json.dumps({f"f{number}": number for number in range(10_000)}))
    schema = ", ".join(f"f{number} long" for number in range(10_000))
    table = read(topic, value=schema).read_all()
    assert table.num_columns == 10_006
    assert table["f9999"].to_pylist() == [9999]
    assert read(topic, value=schema, columns=["f77"]).read_all().to_pylist() == [{"f77": 77}]


def test_mixed_types_in_the_sample_are_text(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    pond.produce(topic, '{"a": 1}', '{"a": "x"}', '{"a": [1, 2]}', '{"a": null}')
    assert rows(read, topic, value="json") == [{"a": "1"}, {"a": "x"}, {"a": "[1,2]"}, {"a": None}]


def test_a_value_that_differs_from_the_sample(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    head = ['{"a": 1}'] * 600
    pond.produce(topic, *head, '{"a": "late"}', "no json", *head)
    with pytest.raises(BadValue) as caught:
        read(topic, value="json").read_all()
    assert str(caught.value).startswith(
        f'{topic}[0]@600 does not parse as json: a: a whole number was expected, not "late" (1 more of '
    )
    table = read(topic, value="json", bad="null").read_all()
    assert table.num_rows == 1202
    late = table.slice(600, 2).select(["a", "_fault"]).to_pylist()
    assert [row["a"] for row in late] == [None, None]
    assert late[0]["_fault"] == 'a: a whole number was expected, not "late"'
    assert "not JSON" in late[1]["_fault"]
    assert table["_fault"].null_count == 1200
    # Nobody asks for the field, so it is not parsed.
    assert read(topic, value="json", columns=["_offset"]).read_all().num_rows == 1202


def test_a_missing_field_is_null_even_if_the_sample_always_has_it(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    head = ['{"a": 1, "b": 2}'] * 600
    pond.produce(topic, *head, '{"a": 1}', *head)
    assert rows(read, topic, value="json")[600] == {"a": 1, "b": None}


def test_values_that_are_no_json(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    pond.produce(topic, "plain", "text")
    with pytest.raises(
        ConfigError, match=rf"none of the 2 sampled values of {topic} is a JSON object; read them with"
    ):
        read(topic, value="json")
    prefixed = pond.new_topic()
    pond.produce(prefixed, b"\0\0\0\0\1\2\3")
    with pytest.raises(ConfigError, match="schema registry's prefix: give their Avro schema"):
        read(prefixed, value="json")
    empty = pond.new_topic()
    assert read(empty, value="json").read_all().schema.names == OWN


def test_a_field_with_the_name_of_a_record_s_column(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    pond.produce(topic, '{"_offset": 1, "key": 2}')
    with pytest.raises(ConfigError, match="a field _offset, which is a column of the record itself"):
        read(topic, value="json")
    assert rows(read, topic, value="key long") == [{"key": 2}]


def test_text(pond: Pond, read: Any) -> None:
    topic = pond.new_topic()
    pond.produce(topic, ("ü", "ä"), (None, None))
    table = read(topic, value="text", key="text", columns=["key", "value"]).read_all()
    assert table.to_pylist() == [{"key": "ü", "value": "ä"}, {"key": None, "value": None}]
    pond.produce(topic, ("k", b"\xff"))
    with pytest.raises(BadValue, match=rf"{topic}\[0\]@2: the value is not UTF-8 text: read values as bytes"):
        read(topic, value="text").read_all()


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "flag", "type": "boolean"},
        {"name": "real", "type": "double"},
        {"name": "single", "type": "float"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["open", "done"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "inner", "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
ORDER = {
    "id": 7, "small": -1, "flag": True, "real": 2.5, "single": 0.5, "name": None, "raw": b"\0", "fixed": b"ab",
    "state": "done", "tags": ["a"], "counts": {"k": 1}, "inner": {"x": 1}, "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 8, tzinfo=UTC), "price": Decimal("12.34"),
}  # fmt: skip


@pytest.mark.parametrize("prefix", [b"", b"\0\0\0\0\7"])
def test_every_type_of_avro(pond: Pond, read: Any, prefix: bytes) -> None:
    fastavro = pytest.importorskip("fastavro", reason="pip install 'millpond[arrow]'")
    topic = pond.new_topic()
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO, ORDER)
    pond.produce(topic, prefix + stream.getvalue(), None)
    schema = json.dumps(AVRO)
    for given in ({"value": schema}, {"value": "avro", "schema": schema}):
        written, tombstone = rows(read, topic, **given)
        assert written == {**ORDER, "counts": [("k", 1)]}
        assert tombstone == dict.fromkeys(ORDER)
    assert read(topic, value=schema, columns=["price"]).read_all().to_pylist() == [
        {"price": Decimal("12.34")},
        {"price": None},
    ]
    pond.produce(topic, b"\xff")
    with pytest.raises(BadValue, match=rf"{topic}\[0\]@2 does not parse as avro: "):
        read(topic, value=schema).read_all()


def test_the_same_rows_as_spark_gives(pond: Pond, read: Any) -> None:
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    from millpond.base.ids import TopicPartition
    from millpond.spark.options import read_options
    from millpond.spark.source.range_reader import read_rows
    from millpond.spark.source.ranges import Range

    topic = pond.new_topic()
    values = [
        '{"a": 1, "b": {"c": ["x", null]}, "d": "1.50", "e": 1700000000123}', "{}", None,
        '{"a": null, "e": "2026-01-31"}',
        '{"b": {}, "d": 2, "more": 1}', '{"a": 1.0}', "[]", "", '{"a":', '{"d": "12345.678"}',
    ]  # fmt: skip
    pond.produce(topic, *(("k", value) for value in values), headers={"h": b"1"})
    schema = "a long, b struct<c:array<string>>, d decimal(5,2), e timestamp"
    options = read_options(
        {
            "kafka.bootstrap.servers": pond.bootstrap, "valueFormat": "json", "valueSchema": schema,
            "badRecords": "null", "includeHeaders": "true",
        },
        "read",
    )  # fmt: skip
    spark = pa.Table.from_batches(list(read_rows(options, Range(TopicPartition(topic, 0), 0, len(values)))))
    ours = read(topic, value=schema, bad="null").read_all()
    assert ours["_fault"].to_pylist() == spark["fault"].to_pylist()
    assert sum(each is not None for each in ours["_fault"].to_pylist()) == 5
    for name in ("topic", "partition", "offset", "timestamp", "key", "headers"):
        assert ours[f"_{name}"].equals(spark[name])
    parsed = spark["parsed"].to_pylist()
    for name in ("a", "b", "d", "e"):
        assert ours[name].to_pylist() == [None if each is None else each[name] for each in parsed]
