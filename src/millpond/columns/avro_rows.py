"""Read Avro values one at a time with fastavro, and their Arrow type."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from millpond.columns import types
from millpond.columns.avro_schema import LocalMillis, Millis
from millpond.columns.errors import Fault, SchemaError
from millpond.columns.schemas import nullable
from millpond.remote.errors import needs

Change: TypeAlias = Callable[[Any], Any]

CONFLUENT_BYTES: Final = 5
"""A zero byte and a four-byte schema id, which schema registry clients write before the value."""

_HINT: Final = "; it reads well behind a schema registry's prefix: set avroPrefix=confluent"


def parsed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema for fastavro: full names, no logical types."""
    try:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError:
        raise needs("fastavro", "arrow") from None
    try:
        parsed = fastavro.parse_schema(_plain(schema))
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as fault:
        raise SchemaError(f"the Avro schema cannot be used: {fault}") from None
    assert isinstance(parsed, dict)
    return parsed


def longest_symbol(schema: Any) -> int:
    """The length of the longest enum symbol in bytes; 1 if there are no enums."""
    match schema:
        case list():
            return max(map(longest_symbol, schema), default=1)
        case {"type": "enum", "symbols": [*symbols]}:
            return max((len(each.encode()) for each in symbols), default=1)
        case dict():
            inside = (schema.get(name) for name in ("type", "items", "values", "fields"))
            return max(map(longest_symbol, inside))
    return 1


def row_reader(
    parsed: dict[str, Any], kind: types.StructType, *, prefixed: bool
) -> Callable[[bytes], dict[str, Any]]:
    """Reads one value by the parsed schema; Fault if it is bad."""
    import fastavro

    decimals = _decimals(kind)

    def read_from(value: bytes, start: int) -> dict[str, Any]:
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            row = fastavro.schemaless_reader(stream, parsed, None)
        except (EOFError, LookupError, ValueError, ArithmeticError, TypeError, MemoryError) as fault:
            raise Fault(f"not this Avro schema: {_reason(fault, value)}") from None
        left = len(value) - stream.tell()
        if left:
            raise Fault(f"not this Avro schema: {left} bytes are left over")
        assert isinstance(row, dict)
        return row if decimals is None else decimals(row)

    def read_prefixed(value: bytes) -> dict[str, Any]:
        if len(value) < CONFLUENT_BYTES or value[0] != 0:
            raise Fault("no schema registry's prefix: set avroPrefix=none if there should be none")
        return read_from(value, CONFLUENT_BYTES)

    def read_bare(value: bytes) -> dict[str, Any]:
        try:
            return read_from(value, 0)
        except Fault as fault:
            if value[:1] != b"\0" or not _reads(read_from, value):
                raise
            raise Fault(f"{fault}{_HINT}") from None

    return read_prefixed if prefixed else read_bare


def _reason(fault: Exception, value: bytes) -> str:
    if isinstance(fault, UnicodeDecodeError):
        return "a string is not UTF-8 text"
    # The value ends within a varint: fastavro reads past the end for the next byte.
    if isinstance(fault, EOFError) or "string index" in str(fault):
        return f"the value ends too early, after {len(value)} bytes"
    return "a union or enum has no such choice"


def _reads(read_from: Callable[[bytes, int], Any], value: bytes) -> bool:
    if len(value) < CONFLUENT_BYTES:
        return False
    try:
        read_from(value, CONFLUENT_BYTES)
    except Fault:
        return False
    return True


def _plain(schema: Any) -> Any:
    """Without logical types: times stay numbers until Arrow converts them, so no number can raise."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _plain(each) for name, each in schema.items() if name not in ("logicalType", "default")}
    return schema


def arrow_written(kind: types.DataType) -> pa.DataType:
    """The Arrow type of the rows: the column's, but milliseconds where the schema says so."""
    match kind:
        case types.StructType():
            return pa.struct([pa.field(each.name, arrow_written(each.type)) for each in kind])
        case types.ArrayType():
            return pa.list_(pa.field("element", arrow_written(kind.element)))
        case types.MapType():
            key = pa.field("key", pa.string(), nullable=False)
            return pa.map_(key, pa.field("value", arrow_written(kind.value)))
        case Millis():
            return pa.timestamp("ms", "UTC")
        case LocalMillis():
            return pa.timestamp("ms")
    return nullable(kind).arrow()


def _decimals(kind: types.DataType) -> Change | None:
    """Converts bytes to decimals at any depth; None if there are none."""
    match kind:
        case types.DecimalType():
            return lambda value: _decimal(int.from_bytes(_bounded(value), "big", signed=True), kind.scale)
        case types.ArrayType():
            return _in_elements(_decimals(kind.element))
        case types.MapType():
            return _in_values(_decimals(kind.value))
        case types.StructType():
            return _in_fields({each.name: change for each in kind if (change := _decimals(each.type))})
    return None


def _decimal(unscaled: int, scale: int) -> Decimal:
    # Arithmetic would round to 28 digits; 64 bytes are 154.
    return Decimal(unscaled).scaleb(-scale, _WIDE)


_WIDE: Final = Context(prec=160)


def _in_elements(change: Change | None) -> Change | None:
    if change is None:
        return None
    return lambda values: [None if each is None else change(each) for each in values]


def _in_values(change: Change | None) -> Change | None:
    if change is None:
        return None
    return lambda values: {name: None if each is None else change(each) for name, each in values.items()}


def _in_fields(changes: dict[str, Change]) -> Change | None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        for name, each in changes.items():
            if row[name] is not None:
                row[name] = each(row[name])
        return row

    return change if changes else None


def _bounded(value: bytes) -> bytes:
    """38 digits take 16 bytes; some leading sign bytes are allowed, up to a limit."""
    if len(value) > 64:
        raise Fault(f"a decimal of {len(value):,} bytes fits into no column")
    return value
