"""JSON Schemas as Spark's types."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")

from millpond.spark.parsing.errors import SchemaError
from millpond.spark.parsing.json_schema import type_of_json_schema


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_plain_types_formats_and_containers() -> None:
    found = type_of_json_schema(
        schema(
            id={"type": "integer"},
            price={"type": "number"},
            paid={"type": "boolean"},
            name={"type": "string"},
            at={"type": "string", "format": "date-time"},
            day={"type": "string", "format": "date"},
            mail={"type": "string", "format": "email"},
            photo={"type": "string", "contentEncoding": "base64"},
            tags={"type": "array", "items": {"type": "string"}},
            lines={"type": "array", "items": schema(sku={"type": "string"})},
            counts={"type": "object", "additionalProperties": {"type": "integer"}},
            anything={},
            either={"type": ["string", "integer"]},
        )
    )
    assert found.simpleString() == (
        "struct<id:bigint,price:double,paid:boolean,name:string,at:timestamp,day:date,mail:string,photo:binary,"
        "tags:array<string>,lines:array<struct<sku:string>>,counts:map<string,bigint>,anything:string,either:string>"
    )


def test_required_is_not_null_unless_null_is_allowed() -> None:
    given = schema(
        a={"type": "integer"},
        b={"type": "integer"},
        c={"type": ["integer", "null"]},
        d={"anyOf": [{"type": "null"}, {"type": "integer"}]},
    )
    found = type_of_json_schema(given | {"required": ["a", "c", "d"]})
    assert [each.nullable for each in found] == [False, True, True, True]
    assert {each.dataType.simpleString() for each in found} == {"bigint"}


def test_references_within_the_schema_are_followed() -> None:
    given = schema(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address"})
    found = type_of_json_schema(given | {"$defs": {"address": schema(city={"type": "string"})}})
    assert found.simpleString() == "struct<home:struct<city:string>,work:struct<city:string>>"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            schema(child={"$ref": "#/$defs/node"}) | {"$defs": {"node": schema(next={"$ref": "#/$defs/node"})}},
            "itself",
        ),
        (schema(a={"$ref": "#/$defs/gone"}), "is not in the schema"),
        (schema(a={"$ref": "http://elsewhere/x.json"}), "within the schema"),
        (schema(a={"type": "strnig"}), "a: there is no type 'strnig'"),
        (schema(a=3), "a: a schema is an object"),
        ({"type": "array", "items": {"type": "string"}}, "an object with properties"),
        ({"type": "object"}, "an object with properties"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        type_of_json_schema(given)
