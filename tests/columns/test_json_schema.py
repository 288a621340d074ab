"""JSON Schemas as Spark's types."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.columns.errors import SchemaError
from millpond.columns.json_schema import type_of_json_schema


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_plain_types_formats_and_containers() -> None:
    result = type_of_json_schema(
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
    assert result.text == (
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
    result = type_of_json_schema(given | {"required": ["a", "c", "d"]})
    assert [each.nullable for each in result] == [False, True, True, True]
    assert {each.type.text for each in result} == {"bigint"}


def test_references_within_the_schema_are_followed() -> None:
    given = schema(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address"})
    result = type_of_json_schema(given | {"$defs": {"address": schema(city={"type": "string"})}})
    assert result.text == "struct<home:struct<city:string>,work:struct<city:string>>"


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_an_invalid_schema_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        type_of_json_schema(given)
