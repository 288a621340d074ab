"""Avro schemas as Spark's types."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.columns.avro_schema import type_of_avro
from millpond.columns.errors import SchemaError
from millpond.columns.schemas import nullable


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{number}", "type": each} for number, each in enumerate(fields)],
        **more,
    }


def simple(*fields: Any) -> str:
    text = nullable(type_of_avro(record(*fields))).text
    return ",".join(part.partition(":")[2] for part in [text.removeprefix("struct<").removesuffix(">")])


@pytest.mark.parametrize(
    ("avro", "spark"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        ({"type": "string"}, "string"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 9}, "decimal(9,0)"),
        ({"type": "fixed", "name": "F", "size": 8}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": ["null", "long"]}, "array<bigint>"),
        ({"type": "map", "values": "double"}, "map<string,double>"),
        (record("int", name="Inner"), "struct<f0:int>"),
        (["null", "string"], "string"),
        (["string", "null"], "string"),
        (["int", "long"], "bigint"),
        (["null", "double", "float"], "double"),
        ({"type": ["null", "int"]}, "int"),
    ],
)
def test_types(avro: Any, spark: str) -> None:
    assert simple(avro) == spark


def test_only_a_union_with_null_may_be_null() -> None:
    result = type_of_avro(record("int", ["null", "int"], ["int", "long"]))
    assert [each.nullable for each in result] == [False, True, False]


def test_references_are_resolved_in_their_namespace() -> None:
    inner = record("int", name="Inner")
    result = type_of_avro(record(inner, "Inner", "shop.Inner", namespace="shop"))
    assert {each.type.text for each in result} == {"struct<f0:int>"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record(["null", "R"]), "contains itself"),
        (record(["string", "long"]), "f0: a union of several types"),
        (record("null"), "always null"),
        (record("Gone"), "no Avro type 'Gone'"),
        (record({"type": "array"}), "is not an Avro type"),
        (record(), "has no fields"),
        (record({"type": "fixed", "name": "F", "size": 0}), "at least 1"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 99}), "1 to 38"),
        ({"type": "record", "fields": [{"name": "a", "type": "int"}]}, "has no name"),
        ({"type": "array", "items": "int"}, '"type": "record"'),
    ],
)
def test_an_invalid_schema_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        type_of_avro(schema)
