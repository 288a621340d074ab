"""Read a schema in any notation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from millpond.columns import types
from millpond.columns.avro_schema import type_of_avro
from millpond.columns.ddl import CHARACTERS_MAX, DEPTH_MAX, read_ddl
from millpond.columns.errors import SchemaError
from millpond.columns.json_schema import type_of_json_schema

ENDINGS: Final = (".avsc", ".json", ".ddl", ".txt")
_LEAVES: Final = (*set(types.SIMPLE.values()), types.DecimalType)


def inline_schema(text: str) -> str:
    """The schema's text if a file is named (`orders.avsc`), which other machines may not have."""
    name = text.strip()
    if not name.lower().endswith(ENDINGS) or name.startswith("{") or "\n" in name:
        return text
    return file_text(name)


def file_text(path: str | Path) -> str:
    where = Path(path)
    if where.suffix.lower() not in ENDINGS:
        raise SchemaError(f"{path}: a file with a schema is named *{', *'.join(ENDINGS)}")
    try:
        with where.open(encoding="utf-8") as file:
            return file.read(CHARACTERS_MAX + 1)
    except OSError as fault:
        raise SchemaError(f"the schema {path} cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError:
        raise SchemaError(f"the schema {path} is not UTF-8 text") from None


def read_schema(text: str) -> types.StructType:
    """From the text or the file it names. The notation of JSON is detected."""
    text = inline_schema(text)
    if not text.strip():
        raise SchemaError("the schema is empty")
    schema = _from_json(read_json(text)) if text.lstrip().startswith("{") else read_ddl(text)
    check(schema)
    return schema


def read_json(text: str) -> dict[str, Any]:
    if len(text) > CHARACTERS_MAX:
        raise SchemaError(f"the schema has more than {CHARACTERS_MAX:,} characters")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise SchemaError(f"the schema looks like JSON but is invalid: {fault}") from None
    if not isinstance(schema, dict):
        raise SchemaError("a schema in JSON is an object")
    return schema


def _from_json(schema: dict[str, Any]) -> types.StructType:
    kind = schema.get("type")
    if kind == "record":
        return type_of_avro(schema)
    if kind == "struct":
        try:
            struct = types.of_spark_json(schema)
            assert isinstance(struct, types.StructType)
            return struct
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as fault:
            raise SchemaError(f"the schema in Spark's JSON cannot be read: {fault!r}") from None
    if kind == "object" or "properties" in schema or "$ref" in schema:
        return type_of_json_schema(schema)
    raise SchemaError(
        'the JSON is not the schema of a record, which has "type": "struct" (Spark), "record" (Avro) or "object" '
        "(JSON Schema)"
    )


def check(kind: types.DataType, path: str = "", depth: int = 0) -> None:
    """SchemaError for unsupported types."""
    if depth > DEPTH_MAX:
        raise SchemaError(f"the schema is nested more than {DEPTH_MAX} deep")
    match kind:
        case types.StructType():
            if not kind.fields:
                raise SchemaError(f"{path or 'the schema'} has no fields")
            if len(set(kind.names)) < len(kind.names):
                raise SchemaError(f"{path or 'the schema'} has two fields of one name")
            for field in kind:
                check(field.type, f"{path}.{field.name}" if path else field.name, depth + 1)
        case types.ArrayType():
            check(kind.element, f"{path}[]", depth + 1)
        case types.MapType():
            if not isinstance(kind.key, types.StringType):
                raise SchemaError(f"{path}: the keys of a map are strings")
            check(kind.value, f"{path}{{}}", depth + 1)
        case _ if not isinstance(kind, _LEAVES):
            raise SchemaError(f"{path}: values cannot be read as {kind.text}; read it as string instead")


def nullable(kind: types.DataType) -> types.DataType:
    """The nullable type: in a bad row everything is null."""
    match kind:
        case types.StructType():
            return types.StructType([types.StructField(each.name, nullable(each.type)) for each in kind])
        case types.ArrayType():
            return types.ArrayType(nullable(kind.element))
        case types.MapType():
            return types.MapType(kind.key, nullable(kind.value))
        case types.StringType():
            return types.StringType()
        case types.TimestampType():
            return types.TimestampType()
        case types.TimestampNTZType():
            return types.TimestampNTZType()
    return kind
