"""Converts Avro schemas to our types, and to the schema for reading values, with times and dates as plain numbers.

A union may have null and one other type, or int with long, or float with double. Logical types without a type of ours
are read as their underlying type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millpond.columns import types
from millpond.columns.errors import SchemaError


class Millis(types.TimestampType):
    """A timestamp stored in milliseconds."""


class LocalMillis(types.TimestampNTZType):
    """The same without a zone."""


_PLAIN: Final[dict[str, Callable[[], types.DataType]]] = {
    "boolean": types.BooleanType,
    "int": types.IntegerType,
    "long": types.LongType,
    "float": types.FloatType,
    "double": types.DoubleType,
    "bytes": types.BinaryType,
    "string": types.StringType,
}
_LOGICAL: Final[dict[tuple[str, str], Callable[[], types.DataType]]] = {
    ("int", "date"): types.DateType,
    ("long", "timestamp-millis"): Millis,
    ("long", "timestamp-micros"): types.TimestampType,
    ("long", "local-timestamp-millis"): LocalMillis,
    ("long", "local-timestamp-micros"): types.TimestampNTZType,
}
_WIDER: Final[dict[frozenset[str], str]] = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
}


def type_of_avro(schema: Any) -> types.StructType:
    """A field that is not a union with null is not nullable; no Avro value could be null there."""
    struct, _ = _Reader().type(schema, "", "")
    if not isinstance(struct, types.StructType):
        raise SchemaError('an Avro schema of records says "type": "record"')
    return struct


class _Reader:
    """Remembers named types for later references."""

    def __init__(self) -> None:
        self._named: dict[str, types.DataType | None] = {}

    def type(self, schema: Any, path: str, space: str) -> tuple[types.DataType, bool]:
        """The type, and whether null is one of its values."""
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if isinstance(schema, str):
            return self._by_name(schema, path, space), False
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError(f"{path or 'the Avro schema'}: {schema!r:.60} is not an Avro type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.type(kind, path, space)
        return self._described(kind, schema, path, space), False

    def _described(self, kind: str, schema: dict[str, Any], path: str, space: str) -> types.DataType:
        logical = str(schema.get("logicalType", ""))
        match kind:
            case "record" | "error":
                return self._record(schema, path, space)
            case "enum":
                return self._note(schema, space, types.StringType())
            case "fixed":
                if not isinstance(schema.get("size"), int) or schema["size"] < 1:
                    # A short value could claim any number of elements that take no bytes.
                    raise SchemaError(f"{path}: a fixed type needs a size of at least 1")
                fixed = _decimal(schema, path) if logical == "decimal" else types.BinaryType()
                return self._note(schema, space, fixed)
            case "array":
                items, _ = self.type(schema.get("items"), f"{path}[]", space)
                return types.ArrayType(items)
            case "map":
                values, _ = self.type(schema.get("values"), f"{path}{{}}", space)
                return types.MapType(types.StringType(), values)
            case "bytes" if logical == "decimal":
                return _decimal(schema, path)
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]()
        return self._by_name(kind, path, space)

    def _record(self, schema: dict[str, Any], path: str, space: str) -> types.DataType:
        name, inner = _full_name(schema, space)
        self._named[name] = None
        fields = []
        declared = schema.get("fields")
        if not isinstance(declared, list) or not declared:
            raise SchemaError(f"{path or 'the Avro schema'}: the record {name!r} has no fields")
        for each in declared:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise SchemaError(f"{path or 'the Avro schema'}: a field of {name!r} has no name")
            where = f"{path}.{each['name']}" if path else each["name"]
            kind, takes_null = self.type(each.get("type"), where, inner)
            fields.append(types.StructField(each["name"], kind, takes_null))
        self._named[name] = types.StructType(fields)
        return types.StructType(fields)

    def _union(self, choices: list[Any], path: str, space: str) -> tuple[types.DataType, bool]:
        others = [each for each in choices if each not in ("null", {"type": "null"})]
        takes_null = len(others) < len(choices)
        if len(others) == 1:
            return self.type(others[0], path, space)[0], takes_null
        plain = frozenset(each for each in others if isinstance(each, str))
        if len(plain) == len(others) and plain in _WIDER:
            return _PLAIN[_WIDER[plain]](), takes_null
        raise SchemaError(
            f"{path or 'the Avro schema'}: a union of several types has no column type; a union is null and one type"
        )

    def _by_name(self, name: str, path: str, space: str) -> types.DataType:
        if name in _PLAIN:
            return _PLAIN[name]()
        if name == "null":
            raise SchemaError(
                f"{path}: a field that is always null has no column type; leave it out of a reader's view"
            )
        for each in (name, f"{space}.{name}" if space else name):
            if each in self._named:
                kind = self._named[each]
                if kind is None:
                    raise SchemaError(f"{path}: the record {name!r} contains itself, which a column cannot")
                return kind
        raise SchemaError(f"{path or 'the Avro schema'}: there is no Avro type {name!r}")

    def _note(self, schema: dict[str, Any], space: str, kind: types.DataType) -> types.DataType:
        self._named[_full_name(schema, space)[0]] = kind
        return kind


def _full_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """The full name, and the namespace for nested types."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"an Avro {schema.get('type')} has no name")
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = str(schema.get("namespace", space) or "")
    return (f"{inner}.{name}" if inner else name), inner


def _decimal(schema: dict[str, Any], path: str) -> types.DecimalType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= 38:
        raise SchemaError(f"{path}: a decimal has a precision of 1 to 38 digits and a scale within it")
    return types.DecimalType(precision, scale)
