"""Converts the common part of JSON Schema to our types: objects, arrays, plain values, formats, local
references."""

from __future__ import annotations

from typing import Any, Final

from millpond.columns import types
from millpond.columns.errors import SchemaError

_PLAIN: Final[dict[str, type[types.DataType]]] = {
    "integer": types.LongType,
    "number": types.DoubleType,
    "boolean": types.BooleanType,
}
_FORMATS: Final[dict[str, type[types.DataType]]] = {"date-time": types.TimestampType, "date": types.DateType}
_CHOICES: Final = ("anyOf", "oneOf")


def type_of_json_schema(schema: dict[str, Any]) -> types.StructType:
    """A property that is not required may be missing or null. A property without a type is kept as JSON text."""
    struct, _ = _Reader(schema).type(schema, "", ())
    if not isinstance(struct, types.StructType):
        raise SchemaError("the JSON Schema of a record is an object with properties")
    return struct


class _Reader:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def type(self, schema: Any, path: str, inside: tuple[str, ...]) -> tuple[types.DataType, bool]:
        """The type, and whether null is one of its values."""
        if schema is True or schema == {}:
            return types.StringType(), True
        if not isinstance(schema, dict):
            raise SchemaError(f"{path or 'the JSON Schema'}: a schema is an object, not {schema!r:.60}")
        if "$ref" in schema:
            name = str(schema["$ref"])
            if name in inside:
                raise SchemaError(f"{path}: {name} contains itself, which a column cannot; read it as string instead")
            return self.type(self._referred(name, path), path, (*inside, name))
        for choice in _CHOICES:
            if choice in schema:
                return self._one_of(schema[choice], path, inside)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        names = [kinds] if isinstance(kinds, str) else list(kinds or [])
        others = [each for each in names if each != "null"]
        # Several types, or none: a string column accepts any JSON as text.
        kind = self._named(others[0], schema, path, inside) if len(others) == 1 else types.StringType()
        return kind, len(others) < len(names) or not names

    def _one_of(self, choices: Any, path: str, inside: tuple[str, ...]) -> tuple[types.DataType, bool]:
        others = [each for each in choices if each != {"type": "null"}]
        if len(others) != 1:
            return types.StringType(), True
        kind, takes_null = self.type(others[0], path, inside)
        return kind, takes_null or len(others) < len(choices)

    def _named(self, name: str, schema: dict[str, Any], path: str, inside: tuple[str, ...]) -> types.DataType:
        if name in _PLAIN:
            return _PLAIN[name]()
        if name == "string":
            if schema.get("contentEncoding") == "base64":
                return types.BinaryType()
            return _FORMATS.get(str(schema.get("format")), types.StringType)()
        if name == "array":
            return types.ArrayType(self.type(schema.get("items", {}), f"{path}[]", inside)[0])
        if name == "object":
            return self._object(schema, path, inside)
        raise SchemaError(f"{path or 'the JSON Schema'}: there is no type {name!r}")

    def _object(self, schema: dict[str, Any], path: str, inside: tuple[str, ...]) -> types.DataType:
        properties = schema.get("properties")
        if not properties:
            more = schema.get("additionalProperties", {})
            return types.MapType(types.StringType(), self.type(more or {}, f"{path}{{}}", inside)[0])
        if not isinstance(properties, dict):
            raise SchemaError(f"{path or 'the JSON Schema'}: properties is an object")
        required = set(schema.get("required", ()))
        fields = []
        for name, each in properties.items():
            kind, takes_null = self.type(each, f"{path}.{name}" if path else name, inside)
            fields.append(types.StructField(name, kind, takes_null or name not in required))
        return types.StructType(fields)

    def _referred(self, name: str, path: str) -> Any:
        if not name.startswith("#/"):
            raise SchemaError(f"{path}: only references within the schema are followed, not {name!r}")
        node: Any = self._root
        for part in name[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or key not in node:
                raise SchemaError(f"{path}: {name} is not in the schema")
            node = node[key]
        return node
