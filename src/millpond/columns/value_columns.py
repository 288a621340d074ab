"""Reads whole columns of values with the compiled reader, which may refuse some rows.

It accepts fewer values than json_rows and avro_rows, with the same result for those that it accepts. Refused rows are
read there, one by one.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from millpond.columns import types
from millpond.columns.avro_schema import LocalMillis, Millis
from millpond.wire.kernel.values import (
    BRANCHES_MAX,
    RUN_BYTES_MAX,
    Kind,
    Shape,
    ValueBuffers,
    ValueReader,
    Written,
    value_reader,
)

MILLISECOND: Final = 1_000
"""In microseconds, the unit of columns."""
_KINDS: Final[tuple[tuple[type[types.DataType], Kind], ...]] = (
    (types.StringType, Kind.STRING),
    (types.BinaryType, Kind.BINARY),
    (types.BooleanType, Kind.BOOLEAN),
    (types.ByteType, Kind.INT8),
    (types.ShortType, Kind.INT16),
    (types.IntegerType, Kind.INT32),
    (types.LongType, Kind.INT64),
    (types.FloatType, Kind.FLOAT),
    (types.DoubleType, Kind.DOUBLE),
    (types.DecimalType, Kind.DECIMAL),
    (types.DateType, Kind.DATE),
    (types.TimestampType, Kind.TIMESTAMP),
    (types.TimestampNTZType, Kind.TIMESTAMP),
)
_WRITTEN: Final = {
    "null": Written.NULL,
    "boolean": Written.BOOLEAN,
    "int": Written.NUMBER,
    "long": Written.NUMBER,
    "float": Written.FLOAT,
    "double": Written.DOUBLE,
    "bytes": Written.BYTES,
    "string": Written.BYTES,
    "fixed": Written.FIXED,
    "enum": Written.ENUM,
    "array": Written.BLOCKS,
    "map": Written.BLOCKS,
    "record": Written.RECORD,
}
_ACCEPTED: Final = {
    Written.NUMBER: {Kind.INT32, Kind.INT64, Kind.DATE, Kind.TIMESTAMP},
    Written.FLOAT: {Kind.FLOAT, Kind.DOUBLE},
    Written.DOUBLE: {Kind.DOUBLE},
    Written.BOOLEAN: {Kind.BOOLEAN},
    Written.BYTES: {Kind.STRING, Kind.BINARY, Kind.DECIMAL},
    Written.FIXED: {Kind.BINARY, Kind.DECIMAL},
    Written.ENUM: {Kind.STRING},
    Written.BLOCKS: {Kind.LIST, Kind.MAP},
    Written.RECORD: {Kind.STRUCT},
}
"""The kinds of columns that can hold each kind of written value."""


class ValueColumns:
    """Reads the values of one schema."""

    def __init__(self, reader: ValueReader, target: pa.StructType) -> None:
        self._reader = reader
        self._target = target

    @classmethod
    def of_json(cls, kind: types.StructType, target: pa.StructType) -> ValueColumns | None:
        """None without the compiled module."""
        reader = value_reader(_json_shape(kind), avro=False)
        return None if reader is None else cls(reader, target)

    @classmethod
    def of_avro(
        cls, schema: dict[str, Any], kind: types.StructType, target: pa.StructType, *, skipped: int
    ) -> ValueColumns | None:
        """`schema` is fastavro's parsed schema. None also if only fastavro can read it."""
        try:
            shape = _AvroShapes(schema.get("__named_schemas") or {}).shape(schema, kind)
        except _Unknown:
            return None
        reader = value_reader(shape, avro=True, skipped=skipped)
        return None if reader is None else cls(reader, target)

    def read(self, values: pa.BinaryArray) -> tuple[pa.StructArray, list[int]]:
        """The rows, and the indices of refused ones; these are null, like the rows of null values."""
        count = len(values)
        if count > 1 and values.nbytes > RUN_BYTES_MAX:
            first, refused = self.read(values.slice(0, count // 2))
            second, others = self.read(values.slice(count // 2))
            return pa.concat_arrays([first, second]), refused + [count // 2 + row for row in others]
        validity, offsets, data = values.buffers()
        buffers, refused = self._reader.read(
            count, values.offset, validity, b"\0" * 4 if offsets is None else offsets, data
        )
        return _array(buffers, self._target), refused


def _array(column: ValueBuffers, kind: pa.DataType) -> pa.Array:
    buffers: list[pa.Buffer | None] = [None if column.validity is None else pa.py_buffer(column.validity)]
    buffers += [pa.py_buffer(each) for each in (column.offsets, column.data) if each is not None]
    children: list[pa.Array] = []
    if pa.types.is_struct(kind):
        children = [_array(child, field.type) for child, field in zip(column.children, kind, strict=True)]
    elif pa.types.is_map(kind):
        key, item = column.children
        pairs = [_array(key, kind.key_type), _array(item, kind.item_type)]
        children = [pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])]
    elif pa.types.is_list(kind):
        children = [_array(column.children[0], kind.value_type)]
    return pa.Array.from_buffers(kind, column.rows, buffers, null_count=column.null_count, children=children)


def _kind_of(kind: types.DataType) -> Kind:
    for each, column_kind in _KINDS:
        if isinstance(kind, each):
            return column_kind
    raise AssertionError(f"{kind} was not refused when the schema was read")


def _json_shape(kind: types.DataType, name: str = "", required: bool = False) -> Shape:
    match kind:
        case types.StructType():
            fields = tuple(_json_shape(each.type, each.name, not each.nullable) for each in kind)
            return Shape(Kind.STRUCT, fields, name, required)
        case types.ArrayType():
            return Shape(Kind.LIST, (_json_shape(kind.element),), name, required)
        case types.MapType():
            return Shape(Kind.MAP, (Shape(Kind.STRING), _json_shape(kind.value)), name, required)
        case types.DecimalType():
            return Shape(Kind.DECIMAL, (), name, required, kind.precision, kind.scale)
    return Shape(_kind_of(kind), (), name, required)


class _Unknown(Exception):
    """A schema that the compiled reader does not support."""


class _AvroShapes:
    """Shapes from an Avro schema and its converted type."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def shape(self, schema: Any, kind: types.DataType) -> Shape:
        branches = schema if isinstance(schema, list) else [schema]
        described = [self._described(each) for each in branches]
        written = tuple(self._written(each) for each in described)
        own = [each for each, way in zip(described, written, strict=True) if way is not Written.NULL]
        if len(written) > BRANCHES_MAX or not own:
            raise _Unknown
        if len(own) > 1 and not all(isinstance(each, str) for each in own):
            raise _Unknown
        shape = self._column(own[0], kind, written, isinstance(schema, list))
        if not all(shape.kind in _ACCEPTED[each] for each in written if each is not Written.NULL):
            raise _Unknown
        return shape

    def _column(
        self, schema: str | dict[str, Any], kind: types.DataType, written: tuple[Written, ...], is_union: bool
    ) -> Shape:
        more = schema if isinstance(schema, dict) else {}
        match kind:
            case types.StructType():
                fields = more.get("fields", [])
                if [each["name"] for each in fields] != kind.names:
                    raise _Unknown
                children = tuple(
                    self.shape(each["type"], field.type) for each, field in zip(fields, kind, strict=True)
                )
                return Shape(Kind.STRUCT, children, written=written, is_union=is_union)
            case types.ArrayType():
                items = self.shape(more.get("items"), kind.element)
                return Shape(Kind.LIST, (items,), written=written, is_union=is_union)
            case types.MapType():
                key = Shape(Kind.STRING, written=(Written.BYTES,))
                pair = (key, self.shape(more.get("values"), kind.value))
                return Shape(Kind.MAP, pair, written=written, is_union=is_union)
        precision, scale = (kind.precision, kind.scale) if isinstance(kind, types.DecimalType) else (0, 0)
        return Shape(
            _kind_of(kind),
            precision=precision,
            scale=scale,
            written=written,
            is_union=is_union,
            factor=MILLISECOND if isinstance(kind, Millis | LocalMillis) else 1,
            size=more.get("size", 0),
            symbols=tuple(more.get("symbols", ())),
        )

    def _described(self, schema: Any) -> str | dict[str, Any]:
        """The name of a primitive type, or the description of a complex one."""
        if isinstance(schema, dict):
            name = schema.get("type")
            if isinstance(name, str) and name in ("record", "enum", "fixed", "array", "map"):
                return schema
            return self._described(name)
        if isinstance(schema, str):
            if schema in _WRITTEN:
                return schema
            if schema in self._named:
                return self._described(self._named[schema])
        raise _Unknown

    def _written(self, described: str | dict[str, Any]) -> Written:
        name = described if isinstance(described, str) else described["type"]
        return _WRITTEN[name]
