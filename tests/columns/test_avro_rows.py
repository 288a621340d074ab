"""Avro values: read by fastavro, checked to the last byte."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="pip install 'millpond[arrow]'")

import fastavro
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.columns.errors import SchemaError
from millpond.columns.parser import Parser

SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "ok", "type": "boolean"},
        {"name": "ratio", "type": ["null", "float"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "n", "type": "int"},
                        {
                            "name": "cost",
                            "type": [
                                "null",
                                {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1},
                            ],
                        },
                    ],
                },
            },
        },
    ],
}
TOKEN = "6f1b6a4e-0000-4000-8000-000000000001"
ORDER = {
    "id": 7,
    "at": datetime(2024, 1, 2, 3, 4, 5, 123000, tzinfo=UTC),
    "seen": datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
    "local": datetime(2024, 1, 2, 3, 4, 5, 5000),
    "day": date(2024, 1, 2),
    "price": Decimal("-12.50"),
    "state": "PAID",
    "token": TOKEN,
    "hash": b"abcd",
    "ok": True,
    "ratio": 0.5,
    "tags": {"a": "b"},
    "lines": [{"sku": "A", "n": 2, "cost": Decimal("1.5")}, {"sku": "é", "n": 1, "cost": None}],
}
parser = Parser("avro", json.dumps(SCHEMA))


def encoded(row: dict[str, Any], schema: Any = SCHEMA) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


GOOD = encoded(ORDER)


def parse(*values: bytes | None, with_: Parser = parser) -> tuple[list[Any], dict[int, str]]:
    result = with_.parse(pa.array(values, pa.binary()))
    result.rows.validate(full=True)
    assert result.rows.type == with_.arrow_type
    return result.rows.to_pylist(), dict(result.faults)


def test_every_type_and_null() -> None:
    empty = ORDER | {"seen": None, "ratio": None, "tags": {}, "lines": []}
    rows, faults = parse(GOOD, None, encoded(empty))
    assert not faults
    assert rows == [
        ORDER | {"tags": [("a", "b")]},
        None,
        empty | {"tags": []},
    ]
    assert parser.type.text.startswith("struct<id:bigint,at:timestamp,seen:timestamp,local:timestamp_ntz,")


def test_a_truncated_or_extended_value_is_bad_at_every_length() -> None:
    rows, faults = parse(*(GOOD[:end] for end in range(len(GOOD))), GOOD + b"\0", GOOD)
    assert rows == [None] * (len(GOOD) + 1) + [ORDER | {"tags": [("a", "b")]}]
    assert faults.keys() == set(range(len(GOOD) + 1))
    assert faults[3] == "not this Avro schema: the value ends too early, after 3 bytes"
    assert faults[len(GOOD)] == "not this Avro schema: 1 bytes are left over"


def simple(kind: Any) -> Parser:
    return Parser("avro", json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x04", "has no such choice"),
        (["null", "long"], b"\x04", "has no such choice"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("int", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "does not fit"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "does not fit",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x08\x7f\xff\xff\xff",
            "does not fit",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4},
            b"\xa0\x06" + b"\1" * 400,
            "fits into no column",
        ),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02", "ends too early"),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x02", "ends too early"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01x", "ends too early"),
        ("string", b"\x01x", "ends too early"),
    ],
)
def test_a_bad_value_has_a_reason_and_only_its_row_is_null(kind: Any, value: bytes, message: str) -> None:
    rows, faults = parse(value, None, with_=simple(kind))
    assert rows == [None, None]
    assert list(faults) == [0]
    assert message in faults[0]


def test_values_out_of_range_do_not_affect_other_rows() -> None:
    longs = simple({"type": "long", "logicalType": "timestamp-millis"})
    rows, faults = parse(b"\x02", b"\xfe" + b"\xff" * 8 + b"\x01", b"", b"\x04", with_=longs)
    assert [row and row["v"].microsecond for row in rows] == [1000, None, None, 2000]
    assert sorted(faults) == [1, 2]


def test_a_registry_prefix_is_skipped_if_declared_and_suggested_if_not() -> None:
    prefixed = Parser("avro", json.dumps(SCHEMA), prefixed=True)
    rows, faults = parse(b"\0\0\0\0\x11" + GOOD, GOOD, b"\0\0", with_=prefixed)
    assert rows[0]["id"] == 7
    assert faults.keys() == {1, 2}
    assert "set avroPrefix=none" in faults[1]
    rows, faults = parse(b"\0\0\0\0\x11" + GOOD)
    assert rows == [None]
    assert "set avroPrefix=confluent" in faults[0]


@pytest.mark.parametrize("schema", ["id long", '{"type": "struct", "fields": []}', '{"type": "object"}'])
def test_avro_values_need_an_avro_schema(schema: str) -> None:
    with pytest.raises(SchemaError):
        Parser("avro", schema)


@given(st.one_of(st.binary(max_size=80), st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=3))))
def test_any_bytes_are_a_row_or_a_reason(noise: bytes | tuple[int, bytes]) -> None:
    value = noise if isinstance(noise, bytes) else GOOD[: noise[0]] + noise[1] + GOOD[noise[0] + len(noise[1]) :]
    result = parser.parse(pa.array([value, GOOD], pa.binary()))
    result.rows.validate(full=True)
    assert result.rows[0].is_valid is not (0 in dict(result.faults))
    assert result.rows[1].is_valid
