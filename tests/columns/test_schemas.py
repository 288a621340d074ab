"""Schemas in all notations, as text and as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.columns import types
from millpond.columns.errors import SchemaError
from millpond.columns.schemas import file_text, inline_schema, nullable, read_schema

WANTED = "struct<id:bigint,tags:array<string>>"
DDL = "id long not null, tags array<string>"
SPARK_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": False, "metadata": {}},
            {
                "name": "tags",
                "type": {"type": "array", "elementType": "string", "containsNull": True},
                "nullable": True,
                "metadata": {},
            },
        ],
    }
)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
        ],
    }
)
JSON_SCHEMA = json.dumps(
    {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    }
)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.ddl", DDL), ("a.txt", DDL), ("a.json", SPARK_JSON), ("a.json", JSON_SCHEMA), ("a.avsc", AVRO)],
)
def test_every_notation_gives_the_same_schema(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    for result in (read_schema(text), read_schema(str(file))):
        assert result.text == WANTED
        assert not result["id"].nullable
        assert result["tags"].nullable
    assert inline_schema(str(file)) == text
    assert inline_schema(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  ", "is empty"),
        ("{", "looks like JSON but is invalid"),
        ("{}", "not the schema of a record"),
        ('{"type": "struct"}', "Spark's JSON cannot be read"),
        ('{"type": "struct", "fields": []}', "has no fields"),
        ("a map<int,string>", "a: the keys of a map are strings"),
        ("nowhere/orders.avsc", "nowhere/orders.avsc cannot be read: No such file"),
        (
            json.dumps({"type": "struct", "fields": [{"name": "v", "type": "variant", "nullable": True}]}),
            "v: values cannot be read as variant",
        ),
    ],
)
def test_an_invalid_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_schema(text)


def test_a_file_with_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"is named \*\.avsc"):
        file_text(tmp_path / "orders.csv")
    bad = tmp_path / "bad.ddl"
    bad.write_text("a strnig")
    with pytest.raises(SchemaError, match=r"character 3: expected a type, such as string, not 'strnig'"):
        read_schema(str(bad))


def test_the_column_is_nullable_and_has_arrow_types() -> None:
    result = nullable(read_schema("a int not null, b array<struct<c:timestamp not null>> not null"))
    assert isinstance(result, types.StructType)
    arrow = result.arrow()
    assert str(arrow) == "struct<a: int32, b: list<element: struct<c: timestamp[us, tz=UTC]>>>"
    assert all(each.nullable for each in arrow)
    assert arrow.field("b").type.value_type.field("c").nullable
