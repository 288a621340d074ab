"""Compares the parser with the compiled reader to the one without."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millpond.columns.parser import Parser


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Times and dates as numbers: Python's own types end with the year 9999."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, pa.field("value", plain_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind


def comparable(value: Any) -> Any:
    """Make zeros keep their signs, and NaN equal to NaN."""
    match value:
        case dict():
            return {name: comparable(each) for name, each in value.items()}
        case list() | tuple():
            return [comparable(each) for each in value]
        case float():
            return repr(value)
    return value


def rows_of(rows: pa.StructArray) -> Any:
    rows.validate(full=True)
    return comparable(rows.cast(plain_type(rows.type)).to_pylist())


def agree(parser: Parser, values: list[bytes | None]) -> int:
    """How many values the compiled reader took."""
    array = pa.array(values, pa.binary())
    assert parser._compiled is not None
    found, plain = parser.parse(array), parser._parse_plain(array)
    assert found.rows.type == plain.rows.type == parser.arrow_type
    assert rows_of(found.rows) == rows_of(plain.rows)
    assert found.faults == plain.faults
    taken, refused = parser._compiled.read(array)
    assert len(taken) == len(values)
    assert taken.null_count == len(refused) + array.null_count
    # Each row separately as well, without Arrow's JSON reader.
    kept = [value for row, value in enumerate(values) if value is not None and row not in set(refused)]
    single = parser._as_column([parser._read_row(value) for value in kept])
    assert rows_of(single) == rows_of(taken.drop_null())
    return len(kept)
